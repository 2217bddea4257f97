// SPDX-License-Identifier: MIT
#include "drive.hpp"
#include <lockstep/optimizers/lamb.hpp>

#include <limits>
#include <numeric>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Zeroed, aligned and padded memory of a variable and what belongs to it.
template <class T>
struct Whole {
  static constexpr Index k_size = 64;
  alignas(k_alignment) std::array<T, k_size> w{}, g{}, m{}, v{};

  void update(const Lamb& rule, std::int64_t step) {
    const auto flat = [](auto& array) { return Flat<T>(array.data(), k_size); };
    rule.update_variable(rule.prepare({.step = step, .schedule = step}), flat(w),
                         ConstFlat<T>(g.data(), k_size), flat(m), flat(v));
  }
};

double norm(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

}  // namespace

TEMPLATE_TEST_CASE("Lamb: several updates follow algorithm 2 of the paper", "[optimizers]", float, double) {
  using T = TestType;
  for (const bool adapt : {true, false}) {
    const Lamb rule{.learning_rate = 0.1,
                    .beta1 = 0.8,
                    .beta2 = 0.95,
                    .epsilon = 1e-3,
                    .weight_decay = 0.25,
                    .layer_adaptation = adapt};
    Whole<T> whole;
    const std::size_t elements = k_elements - 5;  // the rest is padding
    std::vector<double> w = some_weights<double>(), m(k_elements), v(k_elements), u(k_elements);
    w.resize(elements);
    u.resize(elements);
    for (std::size_t i = 0; i < elements; ++i) whole.w[i] = static_cast<T>(w[i]);
    for (int t = 1; t <= k_steps; ++t) {
      const std::vector<double> g = some_gradient<double>(t);
      for (std::size_t i = 0; i < elements; ++i) whole.g[i] = static_cast<T>(g[i]);
      whole.update(rule, t - 1);

      for (std::size_t i = 0; i < elements; ++i) {
        m[i] = 0.8 * m[i] + (1 - 0.8) * g[i];
        v[i] = 0.95 * v[i] + (1 - 0.95) * g[i] * g[i];
        const double corrected_m = m[i] / (1 - std::pow(0.8, t)),
                     corrected_v = v[i] / (1 - std::pow(0.95, t));
        u[i] = corrected_m / (std::sqrt(corrected_v) + 1e-3) + 0.25 * w[i];
      }
      const double ratio = adapt ? norm(w) / norm(u) : 1;
      for (std::size_t i = 0; i < elements; ++i) w[i] -= 0.1 * ratio * u[i];
    }
    const double tolerance = 32 * k_steps * static_cast<double>(std::numeric_limits<T>::epsilon());
    double error = 0;
    for (std::size_t i = 0; i < elements; ++i)
      error = std::max(error, std::abs(static_cast<double>(whole.w[i]) - w[i]) / (1 + std::abs(w[i])));
    CHECK(error <= tolerance);
    bool padding_is_zero = true;
    for (std::size_t i = elements; i < whole.w.size(); ++i)
      padding_is_zero &= whole.w[i] == 0 && whole.m[i] == 0 && whole.v[i] == 0;
    CHECK(padding_is_zero);
  }
}

TEST_CASE("Lamb: the trust ratio is one where a norm is zero", "[optimizers]") {
  CHECK(Lamb::trust_ratio(3, 2) == 1.5);
  CHECK(Lamb::trust_ratio(0, 2) == 1);
  CHECK(Lamb::trust_ratio(3, 0) == 1);
  CHECK(Lamb::trust_ratio(0, 0) == 1);
}

TEST_CASE("Lamb: a variable that is all zeros moves as by AdamW", "[optimizers]") {
  Whole<double> whole;
  whole.g[0] = 2;
  whole.update(Lamb{.learning_rate = 0.5, .epsilon = 1e-30}, 0);
  CHECK(whole.w[0] == Approx(-0.5).epsilon(1e-12));
  CHECK(whole.w[1] == 0);
}

TEST_CASE("Lamb: no gradient and no decay leave the variable", "[optimizers]") {
  Whole<float> whole;
  whole.w[0] = 3;
  whole.update(Lamb{.learning_rate = 0.5, .weight_decay = 0}, 0);
  CHECK(whole.w[0] == 3);
}

TEST_CASE("Lamb: norms of large float values do not overflow", "[optimizers]") {
  Whole<float> whole;
  whole.w[0] = 1e30F;
  whole.w[1] = 1e30F;
  whole.update(Lamb{.learning_rate = 0.5, .weight_decay = 1}, 0);  // u = w, ratio 1
  CHECK(whole.w[0] == Approx(5e29F).epsilon(1e-6));
}

TEST_CASE("Lamb: validate names option, range and value", "[optimizers]") {
  CHECK_NOTHROW(Lamb{}.validate());
  check_invalid(Lamb{.beta1 = 1}, "Lamb: beta1 must be in [0, 1), got 1");
  check_invalid(Lamb{.beta2 = -1}, "Lamb: beta2 must be in [0, 1), got -1");
  check_invalid(Lamb{.epsilon = 0}, "Lamb: epsilon must be finite and at least 1.2e-38, got 0");
  check_invalid(Lamb{.weight_decay = -1}, "Lamb: weight_decay must be finite and at least 0, got -1");
}

TEMPLATE_TEST_CASE("SumOfSquares: has one order of additions on every machine", "[optimizers]", float,
                   double) {
  constexpr std::size_t count = 64;
  alignas(k_alignment) std::array<TestType, count> values;
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<TestType>(1 / (1 + static_cast<double>(i)));
  detail::SumOfSquares sum;
  for (std::size_t i = 0; i < count; i += static_cast<std::size_t>(detail::k_unit<TestType>))
    sum.add(&values[i]);

  std::array<double, 8> lanes{};
  for (std::size_t i = 0; i < count; ++i) {
    volatile double square =
        static_cast<double>(values[i]) * static_cast<double>(values[i]);  // not contracted
    lanes[i % 8] += square;
  }
  const double even = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6]),
               odd = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7]);
  CHECK(sum.norm() == std::sqrt(even + odd));
}
