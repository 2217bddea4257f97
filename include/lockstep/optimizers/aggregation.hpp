// SPDX-License-Identifier: MIT
/// @file
/// Options of gradient aggregation, and its recipe form: a rule that sees the mean of k micro-batches.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/enumerator.hpp>
#include <lockstep/error.hpp>
#include <lockstep/optimizers/per_variable.hpp>
#include <lockstep/optimizers/rule.hpp>
#include <lockstep/protocol/window.hpp>
#include <lockstep/reduction.hpp>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

/// Number of micro-batches per update: a number, or a callable of the updates applied so far.
class WindowLength {
 public:
  /// The same length for every window.
  template <std::integral I>
  WindowLength(I constant)
      : constant_(static_cast<std::int64_t>(constant)) {}  // NOLINT(google-explicit-constructor)
  /// @param function maps the number of updates applied so far to the length of the next window.
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, WindowLength> && !std::integral<F> &&
           std::invocable<const F&, std::int64_t>)
      WindowLength(F function)  // NOLINT(google-explicit-constructor)
      : function_(std::make_shared<Function>([f = std::move(function)](std::int64_t updates) {
          return static_cast<std::int64_t>(f(updates));
        })) {}

  /// @throws InvalidArgument if the length is not positive.
  std::int64_t operator()(std::int64_t updates) const {
    const std::int64_t k = function_ ? (*function_)(updates) : constant_;
    if (k <= 0) detail::throw_error<InvalidArgument>("grad_steps: must be at least 1, got ", k);
    return k;
  }
  /// False only for the constant 1, which needs no accumulator.
  bool needs_accumulator() const { return function_ != nullptr || constant_ != 1; }

 private:
  using Function = std::function<std::int64_t(std::int64_t)>;
  std::int64_t constant_ = 1;
  std::shared_ptr<const Function> function_;
};

/// What happens to a gradient that holds NaN or infinity.
enum class NonFinite : std::uint8_t {
  propagate,          ///< it is used as it is; nothing is tested
  skip_contribution,  ///< it is left out of the mean
  skip_update,        ///< the whole round changes nothing, for any replica
};

/// Options of a window.
struct AggregationOptions {
  WindowLength grad_steps = 1;                                   ///< k, at least 1
  Reduction reduction = Reduction::mean;                         ///< over the micro-batches of a window
  AggregationVariant variant = AggregationVariant::own_counter;  ///< which counter closes the window
  NonFinite non_finite = NonFinite::propagate;                   ///< for each micro-batch
  int num_partitions = 1;                                        ///< threads that share an accumulation
};

template <class Inner>
struct GradientAggregation;

namespace detail {

/// @throws InvalidArgument for a value without meaning; `num_partitions` is not looked at.
inline void expect_valid(const AggregationOptions& options) {
  (void)options.grad_steps(0);
  expect_enumerator("reduction", options.reduction, Reduction::sum);
  expect_enumerator("variant", options.variant, AggregationVariant::lingvo);
  expect_enumerator("non_finite", options.non_finite, NonFinite::skip_update);
}

/// A rule, or a rule with options per variable.
template <class R>
struct IsPerVariable : std::false_type {};
template <class R>
struct IsPerVariable<PerVariable<R>> : std::true_type {};

template <class R>
concept PlainRecipe = DeclaresSlots<R> || IsPerVariable<R>::value;

template <class R>
struct IsAggregation : std::false_type {};
template <class R>
struct IsAggregation<GradientAggregation<R>> : std::true_type {};

}  // namespace detail

/// Gradient aggregation as a recipe: an unbound value, to be given to `Local` or `SyncReplicas`.
/// One window of `grad_steps` micro-batches makes one update of `rule` with their weighted mean.
template <detail::PlainRecipe R>
struct GradientAggregation<R> {
  R rule;                      ///< runs once per window
  AggregationOptions options;  ///< of the window
};

namespace detail {

/// Takes a recipe apart.
template <class Recipe>
struct RecipeTraits {
  using Rule = Recipe;
  static constexpr bool aggregates = false;
  static constexpr bool per_variable = false;
  static const Rule& rule(const Recipe& recipe) { return recipe; }
  static Rule rule_for(const Recipe& recipe, const VariableInfo&) { return recipe; }
  static bool is_trainable(const Recipe&, const VariableInfo&) { return true; }
  static AggregationOptions options(const Recipe&) { return {}; }
};
template <class R>
struct RecipeTraits<PerVariable<R>> : RecipeTraits<R> {
  using Recipe = PerVariable<R>;
  static constexpr bool per_variable = true;
  static const R& rule(const Recipe& recipe) { return recipe.rule; }
  static R rule_for(const Recipe& recipe, const VariableInfo& info) { return recipe.rule_for(info); }
  static bool is_trainable(const Recipe& recipe, const VariableInfo& info) {
    return recipe.is_trainable(info);
  }
  static AggregationOptions options(const Recipe&) { return {}; }
};
template <class R>
struct RecipeTraits<GradientAggregation<R>> {
  using Recipe = GradientAggregation<R>;
  using Inner = RecipeTraits<R>;
  using Rule = typename Inner::Rule;
  static constexpr bool aggregates = true;
  static constexpr bool per_variable = Inner::per_variable;
  static const Rule& rule(const Recipe& recipe) { return Inner::rule(recipe.rule); }
  static Rule rule_for(const Recipe& recipe, const VariableInfo& info) {
    return Inner::rule_for(recipe.rule, info);
  }
  static bool is_trainable(const Recipe& recipe, const VariableInfo& info) {
    return Inner::is_trainable(recipe.rule, info);
  }
  static AggregationOptions options(const Recipe& recipe) { return recipe.options; }
};

}  // namespace detail

/// The update rule inside a recipe.
template <class Recipe>
using rule_of_t = typename detail::RecipeTraits<Recipe>::Rule;

/// What a trainer is made of: a rule, `PerVariable` of a rule, or `GradientAggregation` of one of these.
template <class R, class T = float>
concept Recipe = std::copyable<R> && UpdateRule<rule_of_t<R>, T>;

LOCKSTEP_NAMESPACE_END
