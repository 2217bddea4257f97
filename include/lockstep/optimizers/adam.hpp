// SPDX-License-Identifier: MIT
/// @file
/// Adam.
#pragma once

#include <lockstep/optimizers/checks.hpp>
#include <lockstep/optimizers/rule.hpp>

#include <cmath>
#include <string_view>

LOCKSTEP_NAMESPACE_BEGIN

/// Adam: \f$m \leftarrow m + (1-\beta_1)(g-m)\f$, \f$v \leftarrow v + (1-\beta_2)(g^2-v)\f$,
/// \f$w \leftarrow w - \eta_t\, m/(\sqrt v + \epsilon)\f$ with
/// \f$\eta_t = \eta \sqrt{1-\beta_2^t}/(1-\beta_1^t)\f$ and \f$t\f$ = 1 for the first update.
/// Row-sparse gradients: all rows decay and move, unless `lazy_rows` limits the update to the listed rows.
/// @par Source Kingma and Ba, "Adam: a method for stochastic optimization", 2015, end of section 2 (the form
/// whose epsilon is outside the bias correction); TensorFlow AdamOptimizer. `lazy_rows`: TensorFlow
/// LazyAdamOptimizer.
struct Adam {
  Schedule learning_rate = 1e-3;  ///< step size before bias correction; a number or a function of the update
  double beta1 = 0.9;             ///< decay of the mean of gradients, in [0, 1)
  double beta2 = 0.999;           ///< decay of the mean of their squares, in [0, 1)
  double epsilon = 1e-8;          ///< added to the root; at least 0
  bool lazy_rows = false;         ///< rows without a gradient stay as they are

  static constexpr std::string_view name = "adam";          ///< by which snapshots know the rule
  static constexpr std::array slots{Slot{"m"}, Slot{"v"}};  ///< state per variable
  /// What is the same for all elements of an update.
  struct Step {
    double rate;     ///< with the bias correction
    double keep1;    ///< 1 - beta1
    double keep2;    ///< 1 - beta2
    double epsilon;  ///< as the option
  };
  /// The numbers of an update. @throws InvalidArgument if the schedule gives no finite value.
  Step prepare(const StepInfo& info) const {
    const auto t = static_cast<double>(info.step + 1);
    const double correction = std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t));
    return {learning_rate(info) * correction, 1 - beta1, 1 - beta2, epsilon};
  }
  /// One element or one register of elements: changes `w` and the slots in place.
  LOCKSTEP_ALWAYS_INLINE void update(const Step& step, auto& w, auto g, auto& m, auto& v) const {
    m += step.keep1 * (g - m);
    v += step.keep2 * (square(g) - v);
    w -= step.rate * m / (sqrt(v) + step.epsilon);
  }
  /// Rows without a gradient decay and move, with a gradient of zero.
  bool updates_all_rows() const { return !lazy_rows; }

  /// @throws InvalidArgument unless beta1 and beta2 are in [0, 1) and epsilon is finite and not negative.
  void validate() const {
    detail::expect_below_one("Adam", "beta1", beta1);
    detail::expect_below_one("Adam", "beta2", beta2);
    detail::expect_not_negative("Adam", "epsilon", epsilon);
  }

  /// Equal options.
  friend bool operator==(const Adam&, const Adam&) = default;
};

LOCKSTEP_NAMESPACE_END
