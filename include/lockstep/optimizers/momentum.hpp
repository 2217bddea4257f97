// SPDX-License-Identifier: MIT
/// @file
/// Gradient descent with momentum, plain or Nesterov's.
#pragma once

#include <lockstep/optimizers/checks.hpp>
#include <lockstep/optimizers/rule.hpp>

#include <string_view>

LOCKSTEP_NAMESPACE_BEGIN

/// Momentum: \f$a \leftarrow \mu a + g\f$, then \f$w \leftarrow w - \eta\, a\f$, or with `nesterov`
/// \f$w \leftarrow w - (\eta\, g + \eta \mu\, a)\f$ with the new \f$a\f$.
/// The rate is not part of \f$a\f$: a change of rate scales the next step at once.
/// Row-sparse gradients change the listed rows only, \f$a\f$ too.
/// @par Source Polyak, "Some methods of speeding up the convergence of iteration methods", 1964; Sutskever et
/// al., "On the importance of initialization and momentum in deep learning", 2013; TensorFlow
/// MomentumOptimizer.
struct Momentum {
  Schedule learning_rate = 0.01;  ///< step size; a number or a function of the update
  double momentum = 0.9;          ///< share of the slot that is kept, in [0, 1)
  bool nesterov = false;          ///< looks ahead by one step

  static constexpr std::string_view name = "momentum";  ///< by which snapshots know the rule
  static constexpr std::array slots{Slot{"momentum"}};  ///< state per variable
  /// What is the same for all elements of an update.
  struct Step {
    double rate;      ///< learning rate
    double momentum;  ///< as the option
    bool nesterov;    ///< as the option
  };
  /// The numbers of an update. @throws InvalidArgument if the schedule gives no finite value.
  Step prepare(const StepInfo& info) const { return {learning_rate(info), momentum, nesterov}; }
  /// One element or one register of elements: changes `w` and the slot in place.
  LOCKSTEP_ALWAYS_INLINE void update(const Step& step, auto& w, auto g, auto& a) const {
    a = step.momentum * a + g;
    if (step.nesterov)
      w -= step.rate * g + step.rate * step.momentum * a;
    else
      w -= step.rate * a;
  }

  /// @throws InvalidArgument unless momentum is in [0, 1).
  void validate() const { detail::expect_below_one("Momentum", "momentum", momentum); }

  /// Equal options.
  friend bool operator==(const Momentum&, const Momentum&) = default;
};

LOCKSTEP_NAMESPACE_END
