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
  Schedule learning_rate = 0.01;  ///< step size; a number or a function of the update

  static constexpr std::string_view name = "sgd";  ///< by which snapshots know the rule
  static constexpr std::array<Slot, 0> slots{};    ///< no state
  /// What is the same for all elements of an update.
  struct Step {
    double rate;  ///< learning rate
  };
  /// The numbers of an update. @throws InvalidArgument if the schedule gives no finite value.
  Step prepare(const StepInfo& info) const { return {learning_rate(info)}; }
  /// One element or one register of elements: changes `w` in place.
  LOCKSTEP_ALWAYS_INLINE void update(const Step& step, auto& w, auto g) const { w -= step.rate * g; }

  /// Equal options.
  friend bool operator==(const Sgd&, const Sgd&) = default;
};

LOCKSTEP_NAMESPACE_END
