// SPDX-License-Identifier: MIT
/// @file
/// What a rule does to a row that occurs more than once in one row-sparse gradient.
#pragma once

#include <lockstep/accumulators/tensor.hpp>
#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/sources.hpp>
#include <lockstep/optimizers/float_environment.hpp>
#include <lockstep/optimizers/fused_update.hpp>
#include <lockstep/optimizers/moving_average.hpp>
#include <lockstep/optimizers/rule.hpp>
#include <lockstep/optimizers/rule_groups.hpp>
#include <lockstep/optimizers/sgd.hpp>

#include <Eigen/Core>

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

/// Rules that apply equal rows one after the other: `value` is true and `inner(rule)` is the part of the rule
/// that does so, which has no slots. All other rules get the sum of equal rows, because they are not linear
/// in the gradient.
/// @par Source TensorFlow `Optimizer._apply_sparse_duplicate_indices`, which only GradientDescentOptimizer
/// overrides.
template <class R>
struct AppliesRowsInTurn {
  static constexpr bool value = false;  ///< equal rows are summed
};
/// Two steps of -rate * g are one with the sum.
template <>
struct AppliesRowsInTurn<Sgd> {
  static constexpr bool value = true;  ///< equal rows are applied one after the other
  /// The rule itself.
  static const Sgd& inner(const Sgd& rule) { return rule; }
};
/// As the rule inside.
template <class R>
struct AppliesRowsInTurn<MovingAverage<R>> : AppliesRowsInTurn<R> {
  /// The part without slots of the rule inside.
  static decltype(auto) inner(const MovingAverage<R>& rule) requires(AppliesRowsInTurn<R>::value) {
    return AppliesRowsInTurn<R>::inner(rule.rule);
  }
};

namespace detail {

/// What the part of a rule that applies rows in turn computes once for an update.
template <class Rule, bool in_turn = AppliesRowsInTurn<Rule>::value>
struct InTurnStep {
  struct type {};
};
template <class Rule>
struct InTurnStep<Rule, true> {
  using type =
      step_of_t<std::remove_cvref_t<decltype(AppliesRowsInTurn<Rule>::inner(std::declval<const Rule&>()))>>;
};

/// The same for rules that do not, which need nothing.
template <class Rule>
typename InTurnStep<Rule>::type prepare_in_turn(const Rule& rule, const StepInfo& info) {
  if constexpr (AppliesRowsInTurn<Rule>::value)
    return prepare_step(AppliesRowsInTurn<Rule>::inner(rule), info);
  else
    return {};
}

/// The same by rule of a recipe.
template <class R>
void prepare_in_turn(const RuleGroups<R>& groups, const StepInfo& info,
                     typename InTurnStep<rule_of_t<R>>::type* steps) {
  for (std::size_t group = 0; group < groups.count(); ++group)
    steps[group] = prepare_in_turn(groups.rule(group), info);
}

/// Applies elements [at, at + width) of a gradient to those of `values`.
template <class Rule, class T>
void apply_in_turn(const Rule& rule, const typename InTurnStep<Rule>::type& step, const T* gradient,
                   T* values, Index at, Index width) {
  if constexpr (AppliesRowsInTurn<Rule>::value) {
    const auto& inner = AppliesRowsInTurn<Rule>::inner(rule);
    static_assert(slot_count_v<std::remove_cvref_t<decltype(inner)>> == 0);
    Sources<T, T> sources{};
    sources.add(gradient, T(1));
    update_elements(inner, step, values, std::array<T*, 0>{}, sources, at, width);
  }
}

/// Puts the rows of a sparse aggregate into a contribution. A row that is there already is summed, or, for a
/// rule that applies rows in turn, `in_turn(at, width)` applies what is there, so that the last one of equal
/// rows remains to be applied.
/// @pre every index is a row of the variable, and `rows` has one slice per index.
template <class Rule, class T, class InTurn>
void load_rows(const VariableInfo& variable, const SparseTensor<T>& rows, Contribution<T>& to,
               InTurn&& in_turn) {
  using Slice = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;
  const FloatEnvironment same_everywhere;
  to.mark_rows(variable.id);
  RowSet members = to.rows(variable.id);
  const Index width = variable.row_size();
  const T* from = rows.values.elements.data();
  for (const Index row : rows.indices) {
    const Index at = variable.offset + row * width;
    Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>> target(to.data() + at, width);
    const Slice slice(from, width);
    from += width;
    if (members.insert(row)) {
      target = slice;
    } else if constexpr (AppliesRowsInTurn<Rule>::value) {
      in_turn(at, width);
      target = slice;
    } else {
      target += slice;
    }
  }
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
