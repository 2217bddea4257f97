// SPDX-License-Identifier: MIT
/// @file
/// What an update rule is: the arithmetic of an optimizer, without variables, threads or memory.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/pack.hpp>
#include <lockstep/optimizers/schedule.hpp>

#include <Eigen/Core>

#include <array>
#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

/// One array of optimizer state with the shape of the variable.
struct Slot {
  std::string_view name;        ///< by which `slot(name, handle)` and snapshots know it
  double initial = 0;           ///< value of every element at the start
  bool starts_as_copy = false;  ///< starts as a copy of the variable instead
};

/// A whole variable, slot or gradient: shape (n,), padded with zeros behind the last element.
template <class T>
using Flat = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>, Eigen::Aligned64>;
/// The same, to be read.
template <class T>
using ConstFlat = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>, Eigen::Aligned64>;

namespace detail {

template <class R>
concept HasPrepare = requires(const R& rule, const StepInfo& info) {
  rule.prepare(info);
};

template <class R>
struct StepOf {
  using type = StepInfo;
};
template <HasPrepare R>
struct StepOf<R> {
  using type =
      std::remove_cvref_t<decltype(std::declval<const R&>().prepare(std::declval<const StepInfo&>()))>;
};

}  // namespace detail

/// What `update` gets as its first argument: the result of `R::prepare(StepInfo)`, or `StepInfo` itself.
template <class R>
using step_of_t = typename detail::StepOf<std::remove_cvref_t<R>>::type;

/// `R::slots` is a `std::array<Slot, n>` (or an empty array type): the state per variable.
template <class R>
concept DeclaresSlots = requires {
  { R::slots.size() } -> std::convertible_to<std::size_t>;
};

/// What `prepare` returns can be kept in shared control memory.
template <class R>
concept HasTrivialStep = std::is_trivially_copyable_v<step_of_t<R>>;

/// Number of slots of a rule.
template <DeclaresSlots R>
inline constexpr std::size_t slot_count_v = R::slots.size();

namespace detail {

template <class R, class Element, class Indices>
struct Updates : std::false_type {};
template <class R, class Element, std::size_t... I>
struct Updates<R, Element, std::index_sequence<I...>> {
  template <std::size_t>
  using Ref = Element&;
  static constexpr bool value = requires(const R& rule, const step_of_t<R>& step, Element& w, Element g) {
    { rule.update(step, w, g, std::declval<Ref<I>>()...) } -> std::same_as<void>;
  };
};

template <class R, class T, class Indices>
struct UpdatesWhole : std::false_type {};
template <class R, class T, std::size_t... I>
struct UpdatesWhole<R, T, std::index_sequence<I...>> {
  template <std::size_t>
  using Whole = Flat<T>;
  static constexpr bool value = requires(const R& rule, const step_of_t<R>& step, Flat<T> w, ConstFlat<T> g) {
    { rule.update_variable(step, w, g, std::declval<Whole<I>>()...) } -> std::same_as<void>;
  };
};

}  // namespace detail

/// `rule.update(step, w, g, slots...)` for one element or one register: changes `w` and the slots in place.
template <class R, class T>
concept UpdatesElements =
    DeclaresSlots<R> && detail::Updates<R, Pack<T>, std::make_index_sequence<slot_count_v<R>>>::value &&
    detail::Updates<R, Pack<T, detail::BestPacket<T>>, std::make_index_sequence<slot_count_v<R>>>::value;

/// `rule.update_variable(step, w, g, slots...)` for a whole variable, where a norm of it is needed.
template <class R, class T>
concept UpdatesVariables =
    DeclaresSlots<R> && detail::UpdatesWhole<R, T, std::make_index_sequence<slot_count_v<R>>>::value;

/// The arithmetic of an optimizer: from variable, gradient, slots and step to new variable and slots.
/// A value without state of its own. See docs/concepts.md#update-rule.
template <class R, class T = float>
concept UpdateRule = std::copyable<R> && DeclaresSlots<R> && HasTrivialStep<R> &&
    (UpdatesElements<R, T> || UpdatesVariables<R, T>);

/// `rule.prepare(info)`, or the info itself for a rule without `prepare`.
template <class R>
step_of_t<R> prepare_step(const R& rule, const StepInfo& info) {
  if constexpr (detail::HasPrepare<R>)
    return rule.prepare(info);
  else
    return info;
}

/// Initial value of the elements of slot `index`: `rule.slot_initial(index)` where the rule has it, because
/// an option decides, else what `R::slots` says.
/// @pre index < slot_count_v<R>
template <DeclaresSlots R>
double slot_initial_value(const R& rule, std::size_t index) {
  if constexpr (requires {
                  { rule.slot_initial(index) } -> std::convertible_to<double>;
                })
    return rule.slot_initial(index);
  else if constexpr (slot_count_v<R> > 0)
    return R::slots[index].initial;
  else
    return 0;
}

/// Calls `rule.validate()` where the rule has it; a trainer does so once, when it is bound.
/// @throws InvalidArgument as the rule says, for an option out of its range.
template <class R>
void validate_rule(const R& rule) {
  if constexpr (requires { rule.validate(); }) rule.validate();
}

/// True if rows without a gradient of a row-sparse variable are updated as well, with a zero gradient.
template <class R>
constexpr bool updates_all_rows(const R& rule) {
  if constexpr (requires {
                  { rule.updates_all_rows() } -> std::convertible_to<bool>;
                })
    return rule.updates_all_rows();
  else
    return false;
}

/// `R::name`, by which snapshots know a rule; empty if it has none.
template <class R>
constexpr std::string_view rule_name() {
  if constexpr (requires { std::string_view(R::name); })
    return R::name;
  else
    return {};
}

LOCKSTEP_NAMESPACE_END
