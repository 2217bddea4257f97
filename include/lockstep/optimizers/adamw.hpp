// SPDX-License-Identifier: MIT
/// @file
/// Adam with decoupled weight decay.
#pragma once

#include <lockstep/optimizers/checks.hpp>
#include <lockstep/optimizers/rule.hpp>

#include <cmath>
#include <string_view>

LOCKSTEP_NAMESPACE_BEGIN

/// AdamW: \f$m \leftarrow m + (1-\beta_1)(g-m)\f$, \f$v \leftarrow v + (1-\beta_2)(g^2-v)\f$,
/// \f$w \leftarrow w - \eta\,(\hat m/(\sqrt{\hat v} + \epsilon) + \lambda w)\f$ with
/// \f$\hat m = m/(1-\beta_1^t)\f$, \f$\hat v = v/(1-\beta_2^t)\f$ and \f$t\f$ = 1 for the first update.
/// Epsilon is added after the bias correction, so even without decay the bits differ from `Adam`.
/// Row-sparse gradients: all rows decay and move, unless `lazy_rows` limits the update to the listed rows.
/// @par Source Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, algorithm 2, where the
/// rate is written as the product of a base rate and a schedule. As in PyTorch's and optax's adamw the decay
/// is multiplied by the whole rate; the paper, and TensorFlow Addons, multiply it by the schedule only.
struct AdamW {
  Schedule learning_rate = 1e-3;  ///< step size; a number or a function of the update
  double beta1 = 0.9;             ///< decay of the mean of gradients, in [0, 1)
  double beta2 = 0.999;           ///< decay of the mean of their squares, in [0, 1)
  double epsilon = 1e-8;          ///< added to the corrected root; at least 0
  double weight_decay = 0.01;     ///< times the learning rate, per update; at least 0
  bool lazy_rows = false;         ///< rows without a gradient stay as they are

  static constexpr std::string_view name = "adamw";         ///< by which snapshots know the rule
  static constexpr std::array slots{Slot{"m"}, Slot{"v"}};  ///< state per variable
  /// What is the same for all elements of an update.
  struct Step {
    double rate;     ///< learning rate / (1 - beta1^t)
    double decay;    ///< learning rate * weight decay
    double fresh1;   ///< 1 - beta1
    double fresh2;   ///< 1 - beta2
    double root;     ///< 1 / sqrt(1 - beta2^t)
    double epsilon;  ///< as the option
  };
  /// The numbers of an update. @throws InvalidArgument if the schedule gives no finite value.
  Step prepare(const StepInfo& info) const {
    const auto t = static_cast<double>(info.step + 1);
    const double rate = learning_rate(info);
    return {rate / (1 - std::pow(beta1, t)),
            rate * weight_decay,
            1 - beta1,
            1 - beta2,
            1 / std::sqrt(1 - std::pow(beta2, t)),
            epsilon};
  }
  /// One element or one register of elements: changes `w` and the slots in place.
  LOCKSTEP_ALWAYS_INLINE void update(const Step& step, auto& w, auto g, auto& m, auto& v) const {
    m += step.fresh1 * (g - m);
    v += step.fresh2 * (square(g) - v);
    w -= step.rate * m / (step.root * sqrt(v) + step.epsilon) + step.decay * w;
  }
  /// Rows without a gradient decay and move, with a gradient of zero.
  bool updates_all_rows() const { return !lazy_rows; }

  /// @throws InvalidArgument unless beta1 and beta2 are in [0, 1), and epsilon and weight_decay are finite
  /// and not negative.
  void validate() const {
    detail::expect_below_one("AdamW", "beta1", beta1);
    detail::expect_below_one("AdamW", "beta2", beta2);
    detail::expect_not_negative("AdamW", "epsilon", epsilon);
    detail::expect_not_negative("AdamW", "weight_decay", weight_decay);
  }

  /// Equal options.
  friend bool operator==(const AdamW&, const AdamW&) = default;
};

LOCKSTEP_NAMESPACE_END
