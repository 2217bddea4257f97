// SPDX-License-Identifier: MIT
/// @file
/// The rules of the variables: one for all, or one for each group of variables with the same options.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/layout.hpp>
#include <lockstep/optimizers/aggregation.hpp>

#include <concepts>
#include <cstdint>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Rules of a recipe, made once at binding. Equal rules share a group, so a model with two groups prepares
/// two steps.
template <class R>
class RuleGroups {
 public:
  using Rule = rule_of_t<R>;
  using Traits = RecipeTraits<R>;

  RuleGroups(const R& recipe, const Layout& layout) : variables_(layout.count()) {
    validate_rule(Traits::rule(recipe));
    for (const VariableInfo& info : layout.infos()) {
      Variable& variable = variables_[info.id];
      variable = {find_or_add(Traits::rule_for(recipe, info)), Traits::is_trainable(recipe, info)};
      uniform_ = uniform_ && variable.trainable && variable.group == 0;
    }
  }

  std::size_t count() const { return rules_.size(); }
  /// All variables are trained by rule 0.
  bool is_uniform() const { return uniform_; }
  const Rule& rule(std::size_t group) const { return rules_[group]; }
  std::size_t group_of(std::uint32_t id) const { return variables_[id].group; }
  const Rule& rule_of(std::uint32_t id) const { return rules_[group_of(id)]; }
  bool is_trainable(std::uint32_t id) const { return variables_[id].trainable; }

  void prepare(const StepInfo& info, step_of_t<Rule>* steps) const {
    for (std::size_t group = 0; group < rules_.size(); ++group)
      steps[group] = prepare_step(rules_[group], info);
  }

 private:
  struct Variable {
    std::size_t group;
    bool trainable;
  };

  std::size_t find_or_add(Rule rule) {
    if constexpr (std::equality_comparable<Rule>) {
      for (std::size_t group = 0; group < rules_.size(); ++group)
        if (rules_[group] == rule) return group;
    } else if (!Traits::per_variable && !rules_.empty()) {
      return 0;
    }
    rules_.push_back(std::move(rule));
    return rules_.size() - 1;
  }

  std::vector<Rule> rules_;
  std::vector<Variable> variables_;
  bool uniform_ = true;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
