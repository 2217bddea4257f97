// SPDX-License-Identifier: MIT
/// @file
/// RMSProp with momentum.
#pragma once

#include <lockstep/optimizers/checks.hpp>
#include <lockstep/optimizers/rule.hpp>

#include <string_view>

LOCKSTEP_NAMESPACE_BEGIN

/// RMSProp: \f$s \leftarrow s + (1-\rho)(g^2-s)\f$, \f$a \leftarrow \mu a + \eta\, g/\sqrt{s+\epsilon}\f$,
/// \f$w \leftarrow w - a\f$; \f$s\f$ starts at 1, and epsilon is inside the root.
/// The rate is part of \f$a\f$, unlike in `Momentum`. Row-sparse gradients change the listed rows only,
/// \f$s\f$ and \f$a\f$ too.
/// @par Source Hinton, Srivastava and Swersky, "Neural networks for machine learning", lecture 6e, 2012;
/// TensorFlow RMSPropOptimizer (not centered), where \f$\rho\f$ is called decay.
struct RmsProp {
  Schedule learning_rate = 1e-3;  ///< step size; a number or a function of the update
  double rho = 0.9;               ///< share of the mean of squares that is kept, in [0, 1)
  double momentum = 0;            ///< share of the step that is kept, in [0, 1)
  double epsilon = 1e-10;         ///< added under the root; at least 0

  static constexpr std::string_view name = "rmsprop";                   ///< by which snapshots know the rule
  static constexpr std::array slots{Slot{"rms", 1}, Slot{"momentum"}};  ///< state per variable
  /// What is the same for all elements of an update.
  struct Step {
    double rate;      ///< learning rate
    double fresh;     ///< 1 - rho
    double momentum;  ///< as the option
    double epsilon;   ///< as the option
  };
  /// The numbers of an update. @throws InvalidArgument if the schedule gives no finite value.
  Step prepare(const StepInfo& info) const { return {learning_rate(info), 1 - rho, momentum, epsilon}; }
  /// One element or one register of elements: changes `w` and the slots in place.
  LOCKSTEP_ALWAYS_INLINE void update(const Step& step, auto& w, auto g, auto& rms, auto& a) const {
    rms += step.fresh * (square(g) - rms);
    a = step.momentum * a + step.rate * g / sqrt(rms + step.epsilon);
    w -= a;
  }

  /// @throws InvalidArgument unless rho and momentum are in [0, 1) and epsilon is finite and not negative.
  void validate() const {
    detail::expect_below_one("RmsProp", "rho", rho);
    detail::expect_below_one("RmsProp", "momentum", momentum);
    detail::expect_not_negative("RmsProp", "epsilon", epsilon);
  }

  /// Equal options.
  friend bool operator==(const RmsProp&, const RmsProp&) = default;
};

LOCKSTEP_NAMESPACE_END
