// SPDX-License-Identifier: MIT
/// @file
/// Parameter groups: one rule with options that depend on the variable.
#pragma once

#include <lockstep/gradients/layout.hpp>
#include <lockstep/optimizers/rule.hpp>

#include <functional>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

/// A rule whose options, and whether it applies at all, depend on the variable. Both functions are called
/// once per variable, at binding, so they cost nothing in an update; every replica must give the same
/// answers.
/// @code{.cpp}
/// Local trainer{PerVariable{AdamW{}, [](AdamW& rule, const VariableInfo& variable) {
///                             if (variable.rank() < 2) rule.weight_decay = 0;
///                           }},
///               variables};
/// @endcode
/// @tparam R models lockstep::UpdateRule.
template <DeclaresSlots R>
struct PerVariable {
  R rule;  ///< with the options that most variables have
  std::function<void(R&, const VariableInfo&)> adjust =
      nullptr;  ///< changes a copy of `rule`; empty: keep it
  std::function<bool(const VariableInfo&)> trainable =
      nullptr;  ///< false freezes the variable; empty: train all

  /// The rule of one variable, checked. @throws InvalidArgument if `adjust` made an option invalid.
  R rule_for(const VariableInfo& variable) const {
    R adjusted = rule;
    if (adjust) adjust(adjusted, variable);
    validate_rule(adjusted);
    return adjusted;
  }
  /// Whether updates change this variable; gradients for a frozen one are ignored.
  bool is_trainable(const VariableInfo& variable) const { return !trainable || trainable(variable); }

  /// @throws InvalidArgument if the rule without adjustment has an invalid option.
  void validate() const { validate_rule(rule); }
};

/// Deduces the rule.
template <class R>
PerVariable(R) -> PerVariable<R>;
/// Deduces the rule.
template <class R, class Adjust>
PerVariable(R, Adjust) -> PerVariable<R>;
/// Deduces the rule.
template <class R, class Adjust, class Trainable>
PerVariable(R, Adjust, Trainable) -> PerVariable<R>;

LOCKSTEP_NAMESPACE_END
