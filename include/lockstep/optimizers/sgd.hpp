// SPDX-License-Identifier: MIT
/// @file
/// Stochastic gradient descent.
#pragma once

#include <lockstep/optimizers/rule.hpp>

#include <string_view>

LOCKSTEP_NAMESPACE_BEGIN

/// Stochastic gradient descent: \f$w \leftarrow w - \eta\, g\f$.
/// Row-sparse gradients change the listed rows only.
/// @par Source TensorFlow GradientDescentOptimizer.
struct Sgd {
  Schedule learning_rate = 0.01;

  static constexpr std::string_view name = "sgd";
  static constexpr std::array<Slot, 0> slots{};
  struct Step {
    double rate;
  };
  Step prepare(const StepInfo& info) const { return {learning_rate(info)}; }
  LOCKSTEP_ALWAYS_INLINE void update(const Step& step, auto& w, auto g) const { w -= step.rate * g; }

  friend bool operator==(const Sgd&, const Sgd&) = default;
};

LOCKSTEP_NAMESPACE_END
