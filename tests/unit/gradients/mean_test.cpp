// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/gradients/mean.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <tuple>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Kinds =
    std::tuple<Kind<float, float>, Kind<double, double>, Kind<float, Eigen::half>,
               Kind<float, Eigen::bfloat16>, Kind<double, Eigen::half>, Kind<double, Eigen::bfloat16>>;

constexpr Index k_guard = 16;

template <class T, class G>
struct Inputs {
  Inputs(int count, Index size, std::uint64_t seed) {
    Numbers numbers(seed);
    for (int k = 0; k < count; ++k) {
      gradients.emplace_back();
      for (Index i = 0; i < size; ++i) gradients.back().push_back(static_cast<G>(numbers.real()));
      coefficients.push_back(static_cast<T>(numbers.real()));
    }
    for (Index i = 0; i < size; ++i) window.push_back(static_cast<T>(numbers.real()));
  }
  std::vector<std::vector<G>> gradients;
  std::vector<T> coefficients, window;
};

/// Element i of the mean, by a plain loop: each operation is rounded to T, in the order of the list.
template <class T, class G>
T expected(const Inputs<T, G>& inputs, std::size_t i, bool weighted, bool windowed, T scale) {
  T sum = windowed ? inputs.window[i] : T(0);
  for (std::size_t k = 0; k < inputs.gradients.size(); ++k) {
    T term = static_cast<T>(inputs.gradients[k][i]);
    if (weighted) term = rounded(inputs.coefficients[k] * term);
    sum = k == 0 && !windowed ? term : rounded(sum + term);
  }
  return rounded(sum * scale);
}

template <class T, class G>
Sources<T, G> sources_of(const Inputs<T, G>& inputs, bool weighted, bool windowed, T scale) {
  Sources<T, G> sources;
  sources.scale = scale;
  if (windowed) sources.wide = inputs.window.data();
  for (std::size_t k = 0; k < inputs.gradients.size(); ++k)
    sources.add(inputs.gradients[k].data(), weighted ? inputs.coefficients[k] : T(1));
  return sources;
}

/// Number of elements with other bits than the plain loop, or -1 if memory beside the target was written.
/// @param write(sources, target) writes elements [start, start + size) of the scaled sum to a target, which
/// points to the first of them.
template <class T, class G, class Write>
Index wrong_elements(const Inputs<T, G>& inputs, Index start, Index size, bool weighted, bool windowed,
                     Write&& write) {
  const T scale = T(1) / T(3);
  const Sources<T, G> sources = sources_of(inputs, weighted, windowed, scale);
  std::vector<T> target(static_cast<std::size_t>(size + 2 * k_guard), T(77));
  write(sources, target.data() + k_guard);
  Index wrong = 0;
  for (Index i = 0; i < size; ++i)
    if (!same_bits(target[static_cast<std::size_t>(k_guard + i)],
                   expected(inputs, static_cast<std::size_t>(start + i), weighted, windowed, scale)))
      ++wrong;
  const auto untouched = [](T value) { return value == T(77); };
  if (!std::all_of(target.begin(), target.begin() + k_guard, untouched)) return -1;
  if (!std::all_of(target.end() - k_guard, target.end(), untouched)) return -1;
  return wrong;
}
/// The same of the expression.
template <class T, class G>
Index wrong_elements(const Inputs<T, G>& inputs, Index start, Index size, bool weighted, bool windowed) {
  return wrong_elements(inputs, start, size, weighted, windowed, [&](const auto& sources, T* target) {
    with_mean(sources, start, size,
              [&](const auto& mean) { Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>(target, size) = mean; });
  });
}
/// The same of what `sum_elements` writes.
template <class T, class G>
Index wrong_sums(const Inputs<T, G>& inputs, Index start, Index size, bool weighted, bool windowed) {
  return wrong_elements(inputs, start, size, weighted, windowed, [&](const auto& sources, T* target) {
    sum_elements(sources, target - start, start, size);
  });
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("mean: the scaled sum in the order of the list, for one to thirteen sources",
                        "[gradients][mean]", Kinds) {
  using T = typename TestType::T;
  using G = typename TestType::G;
  for (const Index size : k_sizes)
    for (int count = 1; count <= 13; ++count) {
      if (size > 4000 && count % 3 != 0) continue;
      const Inputs<T, G> inputs(count, size, static_cast<std::uint64_t>(100 * size + count));
      INFO(count << " sources of " << size << " elements");
      CHECK(wrong_elements(inputs, 0, size, false, false) == 0);
      CHECK(wrong_elements(inputs, 0, size, true, false) == 0);
      CHECK(wrong_elements(inputs, 0, size, false, true) == 0);
      CHECK(wrong_elements(inputs, 0, size, true, true) == 0);
    }
}

TEMPLATE_LIST_TEST_CASE("mean: ranges may start and end anywhere", "[gradients][mean]", Kinds) {
  using T = typename TestType::T;
  using G = typename TestType::G;
  const Inputs<T, G> inputs(3, 80, 5);
  for (Index start = 0; start < 18; ++start)
    for (const Index size : {0, 1, 2, 7, 8, 15, 16, 17, 33, 62}) {
      INFO("from " << start << ", " << size << " elements");
      CHECK(wrong_elements(inputs, start, size, false, false) == 0);
      CHECK(wrong_elements(inputs, start, size, true, false) == 0);
    }
}

TEMPLATE_LIST_TEST_CASE("mean: the most sources that there can be", "[gradients][mean]", Kinds) {
  using T = typename TestType::T;
  using G = typename TestType::G;
  const Inputs<T, G> inputs(k_max_sources, 33, 9);
  CHECK(wrong_elements(inputs, 0, 33, false, false) == 0);
  CHECK(wrong_elements(inputs, 0, 33, true, false) == 0);
}

TEMPLATE_LIST_TEST_CASE("mean: a window alone", "[gradients][mean]", Kinds) {
  using T = typename TestType::T;
  using G = typename TestType::G;
  const Inputs<T, G> inputs(0, 33, 9);
  CHECK(wrong_elements(inputs, 0, 33, false, true) == 0);
}

TEST_CASE("mean: 16-bit gradients are summed in the scalar of the variables", "[gradients][mean]") {
  // In half 2048 + 1 is 2048; in float eight of them are 2056.
  const Eigen::half large(2048.0F), one(1.0F);
  Sources<float, Eigen::half> sources;
  sources.add(&large, 1);
  for (int i = 0; i < 8; ++i) sources.add(&one, 1);
  Eigen::Array<float, Eigen::Dynamic, 1> mean(1);
  with_mean(sources, 0, 1, [&](const auto& expression) { mean = expression; });
  CHECK(mean[0] == 2056);
}

TEST_CASE("mean: one source with coefficient and scale 1 is copied bit for bit", "[gradients][mean]") {
  const std::vector<float> odd{-0.0F, 0.0F, 1e-45F, -3.0F, 3e38F};
  for (const bool weighted : {false, true}) {
    Sources<float, float> sources;
    sources.add(odd.data(), 1);
    sources.weighted = weighted;
    Eigen::Array<float, Eigen::Dynamic, 1> mean(5);
    with_mean(sources, 0, 5, [&](const auto& expression) { mean = expression; });
    for (Index i = 0; i < 5; ++i) CHECK(same_bits(mean[i], odd[static_cast<std::size_t>(i)]));
  }
}

TEST_CASE("mean: works inside a larger Eigen expression", "[gradients][mean]") {
  const Inputs<float, float> inputs(2, 50, 3);
  const auto sources = sources_of(inputs, false, false, 0.5F);
  double sum = 0, wanted = 0;
  with_mean(sources, 2, 47, [&](const auto& mean) { sum = mean.template cast<double>().square().sum(); });
  for (std::size_t i = 2; i < 49; ++i) {
    const double element = static_cast<double>(expected(inputs, i, false, false, 0.5F));
    wanted += element * element;
  }
  CHECK(sum == Approx(wanted).epsilon(1e-14));
}

TEST_CASE("mean: the list of sources can be used again", "[gradients][mean]") {
  const Inputs<float, float> inputs(3, 16, 4);
  Sources<float, float> sources = sources_of(inputs, true, true, 2.0F);
  CHECK(sources.weighted);
  CHECK_FALSE(sources.empty());
  sources.clear();
  CHECK(sources.empty());
  CHECK_FALSE(sources.weighted);
  sources.add(inputs.gradients[1].data(), 1);
  CHECK_FALSE(sources.weighted);
  CHECK(sources.count == 1);
}

TEMPLATE_LIST_TEST_CASE("sum_elements: many sources are added up part by part, in the order of the list",
                        "[gradients][mean]", Kinds) {
  using T = typename TestType::T;
  using G = typename TestType::G;
  const Index part = detail::k_part<T>;
  for (const int count : {1, 8, 9, 15, 16, 22, 23, k_max_sources})
    for (const Index size : {Index{1}, part - 1, part, 2 * part + 17}) {
      if (count == k_max_sources && size > part) continue;
      const Inputs<T, G> inputs(count, size + 3, static_cast<std::uint64_t>(100 * size + count));
      INFO(count << " sources of " << size << " elements");
      for (const bool windowed : {false, true})
        for (const bool weighted : {false, true}) CHECK(wrong_sums(inputs, 3, size, weighted, windowed) == 0);
    }
}

TEST_CASE("sum_elements: the target may be one of many sources", "[gradients][mean]") {
  const Index size = 2 * detail::k_part<float> + 5;
  for (const std::size_t place : {0U, 7U, 8U, 19U}) {
    Inputs<float, float> inputs(20, size, 11);
    std::vector<float> wanted;
    for (std::size_t i = 0; i < static_cast<std::size_t>(size); ++i)
      wanted.push_back(expected(inputs, i, true, false, 0.5F));
    sum_elements(sources_of(inputs, true, false, 0.5F), inputs.gradients[place].data(), 0, size);
    INFO("source " << place);
    CHECK(inputs.gradients[place] == wanted);
  }
}
