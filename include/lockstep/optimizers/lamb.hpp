// SPDX-License-Identifier: MIT
/// @file
/// LAMB: Adam with one trust ratio per variable, for large batches.
#pragma once

#include <lockstep/optimizers/checks.hpp>
#include <lockstep/optimizers/rule.hpp>
#include <lockstep/optimizers/whole.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>

LOCKSTEP_NAMESPACE_BEGIN

/// LAMB, per variable: \f$m \leftarrow m + (1-\beta_1)(g-m)\f$, \f$v \leftarrow v + (1-\beta_2)(g^2-v)\f$,
/// \f$u = \hat m/(\sqrt{\hat v} + \epsilon) + \lambda w\f$, \f$w \leftarrow w - \eta\, r\, u\f$ with
/// \f$\hat m = m/(1-\beta_1^t)\f$, \f$\hat v = v/(1-\beta_2^t)\f$ and the trust ratio
/// \f$r = \|w\|_2/\|u\|_2\f$. The ratio is 1 if either norm is zero, or if `layer_adaptation` is off.
/// Norms are formed in double, in an order that does not depend on the machine.
/// It is usual to switch decay and adaptation off for biases and for scales of normalisations: see
/// `PerVariable`. Needs the gradient of the whole variable, so a row-sparse one counts as dense with zero
/// rows.
/// @par Source You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020,
/// algorithm 2 with \f$\phi(z) = z\f$, which the paper leaves open; the two cases of ratio 1 are those of
/// TensorFlow Addons' LAMB.
struct Lamb {
  Schedule learning_rate = 1e-3;  ///< step size before the trust ratio; a number or a function of the update
  double beta1 = 0.9;             ///< decay of the mean of gradients, in [0, 1)
  double beta2 = 0.999;           ///< decay of the mean of their squares, in [0, 1)
  double epsilon = 1e-6;          ///< added to the corrected root; at least 1.2e-38
  double weight_decay = 0.01;     ///< of the variable in the direction of the step; at least 0
  bool layer_adaptation = true;   ///< false: the trust ratio is 1

  static constexpr std::string_view name = "lamb";          ///< by which snapshots know the rule
  static constexpr std::array slots{Slot{"m"}, Slot{"v"}};  ///< state per variable
  /// What is the same for a whole variable in an update.
  struct Step {
    double rate;            ///< learning rate
    double decay;           ///< weight decay
    double fresh1;          ///< 1 - beta1
    double fresh2;          ///< 1 - beta2
    double scale;           ///< 1 / (1 - beta1^t)
    double root;            ///< 1 / sqrt(1 - beta2^t)
    double epsilon;         ///< as the option
    bool layer_adaptation;  ///< as the option
  };
  /// The numbers of an update. @throws InvalidArgument if the schedule gives no finite value.
  Step prepare(const StepInfo& info) const {
    const auto t = static_cast<double>(info.step + 1);
    return {learning_rate(info),
            weight_decay,
            1 - beta1,
            1 - beta2,
            1 / (1 - std::pow(beta1, t)),
            1 / std::sqrt(1 - std::pow(beta2, t)),
            epsilon,
            layer_adaptation};
  }

  /// @pre All maps have the same size, a multiple of 64 bytes, and zeros behind the last element of the
  /// variable: these do not change a norm and stay zero.
  template <class T>
  void update_variable(const Step& step, Flat<T> w, ConstFlat<T> g, Flat<T> m, Flat<T> v) const {
    using P = detail::BestPack<T>;
    constexpr Index width = detail::k_pack_size<T>, unit = detail::k_unit<T>;
    const auto direction = [&step](P weight, P first, P second) {
      return step.scale * first / (step.root * sqrt(second) + step.epsilon) + step.decay * weight;
    };
    detail::SumOfSquares of_w, of_u;
    for (Index begin = 0; begin < w.size(); begin += unit) {
      alignas(k_alignment) std::array<T, static_cast<std::size_t>(unit)> u;
      for (Index i = 0; i < unit; i += width) {
        const Index at = begin + i;
        const P gradient = P::load(g.data() + at);
        P first = P::load(m.data() + at), second = P::load(v.data() + at);
        first += step.fresh1 * (gradient - first);
        second += step.fresh2 * (square(gradient) - second);
        first.store(m.data() + at);
        second.store(v.data() + at);
        direction(P::load(w.data() + at), first, second).store(u.data() + i);
      }
      of_w.add(w.data() + begin);
      of_u.add(u.data());
    }
    // The direction is computed again rather than kept: no scratch memory of the size of the variable.
    const double rate = step.rate * (step.layer_adaptation ? trust_ratio(of_w.norm(), of_u.norm()) : 1);
    for (Index at = 0; at < w.size(); at += width) {
      P weight = P::load(w.data() + at);
      weight -= rate * direction(weight, P::load(m.data() + at), P::load(v.data() + at));
      weight.store(w.data() + at);
    }
  }

  /// Norm of the variable over norm of its direction; 1 if one of them is zero.
  static double trust_ratio(double norm_w, double norm_u) {
    return norm_w > 0 && norm_u > 0 ? norm_w / norm_u : 1;
  }

  /// @throws InvalidArgument unless beta1 and beta2 are in [0, 1), weight_decay is finite and not negative,
  /// and epsilon is finite and at least the smallest normal float: with 0 in the denominator one element
  /// without gradient would turn the norm, and with it the whole variable, into NaN.
  void validate() const {
    detail::expect_below_one("Lamb", "beta1", beta1);
    detail::expect_below_one("Lamb", "beta2", beta2);
    detail::expect_not_negative("Lamb", "weight_decay", weight_decay);
    detail::expect_option(
        epsilon >= static_cast<double>(std::numeric_limits<float>::min()) && std::isfinite(epsilon), "Lamb",
        "epsilon", "finite and at least 1.2e-38", epsilon);
  }

  /// Equal options.
  friend bool operator==(const Lamb&, const Lamb&) = default;
};

LOCKSTEP_NAMESPACE_END
