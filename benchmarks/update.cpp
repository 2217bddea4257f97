// SPDX-License-Identifier: MIT
// The update of 16,384 elements with two contributions, in cache, against loops of intrinsics as one writes
// them by hand for each rule, with exact square roots. Built once for each optimization level and instruction
// set.
#include "support/interleave.hpp"
#include "support/report.hpp"
#include "support/textbook.hpp"
#include <lockstep/optimizers/fused_update.hpp>
#include <lockstep/transport/memory.hpp>

#include <algorithm>
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

/// Which pages of memory an array has makes a difference of 20 percent in a cache, so there are several.
using Places = std::array<Arrays, 8>;

/// The update in one place, to be called again and again.
/// @param weighted with coefficients, which are 1.
template <class R>
auto by_library(Arrays& arrays, const typename R::Step& step, bool weighted) {
  Sources<float, float> sources;
  sources.add(arrays.at[1], 1);
  sources.add(arrays.at[2], 1);
  sources.scale = 0.5F;
  sources.weighted = weighted;
  std::array<float*, slot_count_v<R>> slots;
  std::copy_n(arrays.at.begin() + 3, slots.size(), slots.begin());
  return [=, w = arrays.w()] { update_elements(R{}, step, w, slots, sources, 0, k_size); };
}
auto by_hand(Arrays& arrays, const Sgd::Step& step) {
  return [at = arrays.at, rate = static_cast<float>(step.rate)] {
    sgd_by_hand(at[0], at[1], at[2], 0.5F, rate, k_size);
  };
}
auto by_hand(Arrays& arrays, const Adam::Step& step) {
  return [at = arrays.at, step] { adam_by_hand(at[0], at[3], at[4], at[1], at[2], 0.5F, step, k_size); };
}

template <class R>
void compare(const std::string& name, Places& places) {
  const auto step = prepare_step(R{}, StepInfo{});
  std::vector<Run> library, weighted, hand;
  const auto add = [&](std::vector<Run>& runs, Arrays& arrays, auto update, const char* who) {
    arrays.reset();
    update();
    expect_updated<R>(arrays.w(), k_size, 1, 2, who + (", " + name));
    runs.push_back(repeated(update));
  };
  for (Arrays& arrays : places) {
    add(hand, arrays, by_hand(arrays, step), "intrinsics");
    add(library, arrays, by_library<R>(arrays, step, false), "update_elements");
    add(weighted, arrays, by_library<R>(arrays, step, true), "update_elements with coefficients");
  }
  // A contender works in another place in each round.
  const auto in_turn = [](const std::vector<Run>& runs) {
    return [runs, round = std::size_t{0}]() mutable { return runs[round++ % runs.size()](); };
  };
  Interleaved rounds;
  rounds.add("lockstep", in_turn(library));
  rounds.add("with coefficients", in_turn(weighted));
  rounds.add("intrinsics", in_turn(hand));
  rounds.run(501);
  const std::string variant = "update/" LOCKSTEP_VARIANT "/" + std::string(k_set) + "/";
  report(variant + name, rounds.ratio("lockstep", "intrinsics"), "x the time", rounds);
  report(variant + "weighted_" + name, rounds.ratio("with coefficients", "lockstep"), "x the time");
}

}  // namespace

int main() {
  Places places;
  compare<Sgd>("sgd", places);
  compare<Adam>("adam", places);
}
