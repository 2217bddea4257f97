// SPDX-License-Identifier: MIT
/// @file
/// Drives an update rule without a trainer, and compares it with a reference for one element in double.
#pragma once

#include "support/bits.hpp"
#include "support/catch.hpp"
#include <lockstep/optimizers/rule.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <tuple>
#include <vector>

namespace lockstep::test {

template <class T>
using Register = Pack<T, detail::BestPacket<T>>;

/// A variable and its slots.
template <class T>
struct Model {
  std::vector<T> w;
  std::vector<std::vector<T>> slots;
};

template <class R, class T>
Model<T> model_of(const R& rule, const std::vector<T>& initial) {
  Model<T> model{initial, {}};
  for (std::size_t k = 0; k < slot_count_v<R>; ++k)
    model.slots.push_back(R::slots[k].starts_as_copy
                              ? initial
                              : std::vector<T>(initial.size(), static_cast<T>(slot_initial_value(rule, k))));
  return model;
}

/// One update, in steps of the width of P. The size must be a multiple of it.
template <class P, class R, class T>
void update(const R& rule, const StepInfo& info, Model<T>& model, const std::vector<T>& gradient) {
  const auto step = prepare_step(rule, info);
  const std::size_t width = sizeof(P) / sizeof(T);
  REQUIRE(model.w.size() % width == 0);
  for (std::size_t at = 0; at < model.w.size(); at += width) {
    P w = P::load(&model.w[at]);
    std::array<P, slot_count_v<R>> slots;
    for (std::size_t k = 0; k < slots.size(); ++k) slots[k] = P::load(&model.slots[k][at]);
    std::apply([&](auto&... slot) { rule.update(step, w, P::load(&gradient[at]), slot...); }, slots);
    w.store(&model.w[at]);
    for (std::size_t k = 0; k < slots.size(); ++k) slots[k].store(&model.slots[k][at]);
  }
}

/// One element in double.
template <class R>
Model<double> update_one(const R& rule, Model<double> model, double gradient, std::int64_t step) {
  update<Pack<double>>(rule, StepInfo{.step = step, .schedule = step}, model, std::vector{gradient});
  return model;
}

inline constexpr std::size_t k_elements = 48;
inline constexpr int k_steps = 7;

template <class T>
std::vector<T> some_weights() {
  std::vector<T> w(k_elements);
  for (std::size_t i = 0; i < w.size(); ++i)
    w[i] = static_cast<T>((static_cast<double>(i * 29 % 61) - 30) / 8);
  return w;
}

/// Different for each step and element; zeros, tiny and large ones among them.
template <class T>
std::vector<T> some_gradient(int step) {
  std::vector<T> g(k_elements);
  for (std::size_t i = 0; i < g.size(); ++i) {
    const std::size_t mixed = i * 37 + static_cast<std::size_t>(step) * 23;
    g[i] = static_cast<T>((static_cast<double>(mixed % 101) - 50) / 16 *
                          (mixed % 7 == 0   ? 1024
                           : mixed % 5 == 0 ? 0x1p-20
                                            : 1));
  }
  return g;
}

/// Runs several updates by elements and by registers: the bits must be equal, and the values those of
/// `reference(double& w, double g, std::vector<double>& slots, int t)` with t = 1 for the first update.
template <class T, class R, class Reference>
void check_rule(const R& rule, Reference reference) {
  Model<T> by_element = model_of(rule, some_weights<T>()), by_register = by_element;
  Model<double> expected = model_of(rule, some_weights<double>());
  for (int t = 1; t <= k_steps; ++t) {
    const StepInfo info{.step = t - 1, .schedule = t - 1};
    update<Pack<T>>(rule, info, by_element, some_gradient<T>(t));
    update<Register<T>>(rule, info, by_register, some_gradient<T>(t));
    for (std::size_t i = 0; i < k_elements; ++i) {
      std::vector<double> slots;
      for (const auto& slot : expected.slots) slots.push_back(slot[i]);
      reference(expected.w[i], some_gradient<double>(t)[i], slots, t);
      for (std::size_t k = 0; k < slots.size(); ++k) expected.slots[k][i] = slots[k];
    }
  }
  CHECK(same_bits(by_element.w, by_register.w));
  for (std::size_t k = 0; k < by_element.slots.size(); ++k)
    CHECK(same_bits(by_element.slots[k], by_register.slots[k]));

  // Errors of a few roundings per update, relative to the largest term of the sums.
  const double tolerance = 16 * k_steps * static_cast<double>(std::numeric_limits<T>::epsilon());
  const auto error = [](const std::vector<T>& found, const std::vector<double>& wanted) {
    double largest = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double difference =
          std::abs(static_cast<double>(found[i]) - wanted[i]) / (4 + std::abs(wanted[i]));
      if (!(difference <= largest)) largest = difference;
    }
    return largest;
  };
  CHECK(error(by_element.w, expected.w) <= tolerance);
  for (std::size_t k = 0; k < expected.slots.size(); ++k)
    CHECK(error(by_element.slots[k], expected.slots[k]) <= tolerance);
}

template <class R>
void check_invalid(const R& rule, const char* text) {
  CHECK_THROWS_AS(validate_rule(rule), InvalidArgument);
  CHECK_THROWS_WITH(validate_rule(rule), Catch::Matchers::ContainsSubstring(text));
}

}  // namespace lockstep::test
