// SPDX-License-Identifier: MIT
/// @file
/// Adagrad.
#pragma once

#include <lockstep/optimizers/checks.hpp>
#include <lockstep/optimizers/rule.hpp>

#include <string_view>

LOCKSTEP_NAMESPACE_BEGIN

/// Adagrad: \f$a \leftarrow a + g^2\f$, \f$w \leftarrow w - \eta\, g/\sqrt a\f$; \f$a\f$ starts at
/// `initial_accumulator_value`, which takes the place of an epsilon.
/// Row-sparse gradients: duplicates are summed before squaring, and the listed rows change only.
/// @par Source Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
/// optimization", 2011; TensorFlow AdagradOptimizer.
struct Adagrad {
  Schedule learning_rate = 0.01;           ///< step size; a number or a function of the update
  double initial_accumulator_value = 0.1;  ///< of every element; greater than 0

  static constexpr std::string_view name = "adagrad";           ///< by which snapshots know the rule
  static constexpr std::array slots{Slot{"accumulator", 0.1}};  ///< state per variable
  /// Initial value of the slot. @pre the index is 0
  double slot_initial(std::size_t) const { return initial_accumulator_value; }
  /// What is the same for all elements of an update.
  struct Step {
    double rate;  ///< learning rate
  };
  /// The numbers of an update. @throws InvalidArgument if the schedule gives no finite value.
  Step prepare(const StepInfo& info) const { return {learning_rate(info)}; }
  /// One element or one register of elements: changes `w` and the slot in place.
  LOCKSTEP_ALWAYS_INLINE void update(const Step& step, auto& w, auto g, auto& accumulator) const {
    accumulator += square(g);
    w -= step.rate * g / sqrt(accumulator);
  }

  /// @throws InvalidArgument unless initial_accumulator_value is greater than 0: with 0, an element whose
  /// gradients were all zero would become 0/0.
  void validate() const {
    detail::expect_positive("Adagrad", "initial_accumulator_value", initial_accumulator_value);
  }

  /// Equal options.
  friend bool operator==(const Adagrad&, const Adagrad&) = default;
};

LOCKSTEP_NAMESPACE_END
