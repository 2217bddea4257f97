// SPDX-License-Identifier: MIT
// The update of 16,384 elements with two contributions, in cache, against loops of intrinsics as one writes
// them by hand for each rule, with exact square roots. Built once for each optimization level and instruction
// set.
#include "support/interleave.hpp"
#include "support/report.hpp"
#include "support/textbook.hpp"
#include <lockstep/optimizers/fused_update.hpp>
#include <lockstep/transport/memory.hpp>

#include <array>
#include <immintrin.h>
#include <string>
#include <vector>

namespace {

using namespace lockstep;
using namespace lockstep::bench;

#if defined(__AVX512F__)
constexpr const char* k_set = "avx512";
constexpr Index k_lanes = 16;
using Vector = __m512;
#define SIMD(operation) _mm512_##operation
#elif defined(__AVX__)
constexpr const char* k_set = "avx";
constexpr Index k_lanes = 8;
using Vector = __m256;
#define SIMD(operation) _mm256_##operation
#else
constexpr const char* k_set = "sse";
constexpr Index k_lanes = 4;
using Vector = __m128;
#define SIMD(operation) _mm_##operation
#endif

[[gnu::noinline]] void sgd_by_hand(float* w, const float* g0, const float* g1, float scale, float rate,
                                   Index size) {
  const Vector half = SIMD(set1_ps)(scale), eta = SIMD(set1_ps)(rate);
  for (Index i = 0; i < size; i += k_lanes) {
    const Vector g = SIMD(mul_ps)(SIMD(add_ps)(SIMD(loadu_ps)(g0 + i), SIMD(loadu_ps)(g1 + i)), half);
    SIMD(storeu_ps)(w + i, SIMD(sub_ps)(SIMD(loadu_ps)(w + i), SIMD(mul_ps)(eta, g)));
  }
}

[[gnu::noinline]] void adam_by_hand(float* w, float* m, float* v, const float* g0, const float* g1,
                                    float scale, const Adam::Step& step, Index size) {
  const Vector half = SIMD(set1_ps)(scale), eta = SIMD(set1_ps)(static_cast<float>(step.rate));
  const Vector keep1 = SIMD(set1_ps)(static_cast<float>(step.keep1));
  const Vector keep2 = SIMD(set1_ps)(static_cast<float>(step.keep2));
  const Vector epsilon = SIMD(set1_ps)(static_cast<float>(step.epsilon));
  for (Index i = 0; i < size; i += k_lanes) {
    const Vector g = SIMD(mul_ps)(SIMD(add_ps)(SIMD(loadu_ps)(g0 + i), SIMD(loadu_ps)(g1 + i)), half);
    Vector mean = SIMD(loadu_ps)(m + i), square = SIMD(loadu_ps)(v + i);
    mean = SIMD(add_ps)(mean, SIMD(mul_ps)(keep1, SIMD(sub_ps)(g, mean)));
    square = SIMD(add_ps)(square, SIMD(mul_ps)(keep2, SIMD(sub_ps)(SIMD(mul_ps)(g, g), square)));
    const Vector change = SIMD(div_ps)(SIMD(mul_ps)(eta, mean), SIMD(add_ps)(SIMD(sqrt_ps)(square), epsilon));
    SIMD(storeu_ps)(w + i, SIMD(sub_ps)(SIMD(loadu_ps)(w + i), change));
    SIMD(storeu_ps)(m + i, mean);
    SIMD(storeu_ps)(v + i, square);
  }
}

constexpr Index k_size = 16'384;

/// Arrays that both contenders work on, so that neither has the luckier addresses.
struct Arrays {
  Arrays() : memory(6 * (k_size + 16) * sizeof(float)) {
    float* base = reinterpret_cast<float*>(memory.bytes().data());
    // 64 bytes between the arrays, so that equal indices do not fall on equal offsets of a page.
    for (std::size_t k = 0; k < 6; ++k) at[k] = base + static_cast<Index>(k) * (k_size + 16);
    reset();
  }
  void reset() {
    fill_with_pattern(w(), k_size, k_values_seed);
    fill_with_pattern(at[1], k_size, 0);
    fill_with_pattern(at[2], k_size, 1);
    std::fill(at[3], at[3] + k_size, 0.0F);
    std::fill(at[4], at[4] + k_size, 0.0F);
  }
  float* w() { return at[0]; }
  ZeroedMemory memory;
  std::array<float*, 6> at{};
};

template <class R, class ByHand>
void compare(const std::string& name, Arrays& arrays, const std::array<float*, slot_count_v<R>>& slots,
             ByHand by_hand) {
  const R rule;
  const auto step = prepare_step(rule, StepInfo{});
  Sources<float, float> sources;
  sources.add(arrays.at[1], 1);
  sources.add(arrays.at[2], 1);
  sources.scale = 0.5F;
  const auto library = [&] { update_elements(rule, step, arrays.w(), slots, sources, 0, k_size); };

  arrays.reset();
  by_hand(step);
  expect_updated<R>(arrays.w(), k_size, 1, 2, "intrinsics, " + name);
  arrays.reset();
  library();
  expect_updated<R>(arrays.w(), k_size, 1, 2, "update_elements, " + name);

  Interleaved rounds;
  rounds.add("lockstep", repeated(library));
  rounds.add("intrinsics", repeated([&] { by_hand(step); }));
  rounds.run(501);
  report("update/" LOCKSTEP_VARIANT "/" + std::string(k_set) + "/" + name,
         rounds.ratio("lockstep", "intrinsics"), "x the time", rounds);
}

}  // namespace

int main() {
  Arrays arrays;
  compare<Sgd>("sgd", arrays, {}, [&](const Sgd::Step& step) {
    sgd_by_hand(arrays.w(), arrays.at[1], arrays.at[2], 0.5F, static_cast<float>(step.rate), k_size);
  });
  compare<Adam>("adam", arrays, {arrays.at[3], arrays.at[4]}, [&](const Adam::Step& step) {
    adam_by_hand(arrays.w(), arrays.at[3], arrays.at[4], arrays.at[1], arrays.at[2], 0.5F, step, k_size);
  });
}
