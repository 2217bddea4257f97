// SPDX-License-Identifier: MIT
/// @file
/// `explain_rule`: says in a sentence which requirement of `UpdateRule` a type misses.
#pragma once

#include <lockstep/optimizers/rule.hpp>

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// The type has a member `prepare` that takes the info, but perhaps only on a rule that is not const.
template <class R>
concept PreparesMutably = requires(R& rule, const StepInfo& info) {
  rule.prepare(info);
};

/// The ways in which `update` (Element is a Pack) or `update_variable` (Element is a Flat) can be called, one
/// by one.
template <class R, class T, class Indices>
struct Calls;
template <class R, class T, std::size_t... I>
struct Calls<R, T, std::index_sequence<I...>> {
  using Step = step_of_t<R>;
  template <class Element, std::size_t>
  using Ref = Element&;
  template <std::size_t>
  using Whole = Flat<T>;

  template <class Rule, class Element>
  static constexpr bool elements = requires(Rule& rule, const Step& step, Element& w, Element g) {
    rule.update(step, w, g, std::declval<Ref<Element, I>>()...);
  };
  template <class Rule>
  static constexpr bool variables = requires(Rule& rule, const Step& step, Flat<T> w, ConstFlat<T> g) {
    rule.update_variable(step, w, g, std::declval<Whole<I>>()...);
  };
  template <class Element>
  static constexpr bool elements_void = requires(const R& rule, const Step& step, Element& w, Element g) {
    { rule.update(step, w, g, std::declval<Ref<Element, I>>()...) } -> std::same_as<void>;
  };
  static constexpr bool variables_void =
      requires(const R& rule, const Step& step, Flat<T> w, ConstFlat<T> g) {
    { rule.update_variable(step, w, g, std::declval<Whole<I>>()...) } -> std::same_as<void>;
  };

  using One = Pack<T>;
  using Many = Pack<T, BestPacket<T>>;
  static constexpr bool any_mutably = elements<R, One> || elements<R, Many> || variables<R>;
  static constexpr bool any = elements<const R, One> || elements<const R, Many> || variables<const R>;
  static constexpr bool both_widths =
      variables<const R> || (elements<const R, One> && elements<const R, Many>);
  static constexpr bool returns_void = variables_void || (elements_void<One> && elements_void<Many>);
};

/// Some other number of slots, up to eight, would fit the signature.
template <class R, class T, std::size_t... N>
constexpr bool fits_other_slot_count(std::index_sequence<N...>) {
  return (Calls<R, T, std::make_index_sequence<N>>::any_mutably || ...);
}

// Each answer is true where an earlier requirement already failed, so that only the first cause is reported.
template <class R, class T>
struct RuleAnswers {
  static constexpr bool copyable = std::copyable<R>;
  static constexpr bool slots = DeclaresSlots<R>;
  static constexpr bool prepare = HasPrepare<R> || !PreparesMutably<R>;
  static constexpr bool step = !prepare || HasTrivialStep<R>;
  static constexpr bool slot_count = true, update = true, is_const = true, both_widths = true,
                        returns_void = true;
};
template <class R, class T>
requires(DeclaresSlots<R> && (HasPrepare<R> || !PreparesMutably<R>)) struct RuleAnswers<R, T> {
  using Call = Calls<R, T, std::make_index_sequence<slot_count_v<R>>>;
  static constexpr bool copyable = std::copyable<R>;
  static constexpr bool slots = true;
  static constexpr bool prepare = true;
  static constexpr bool step = HasTrivialStep<R>;
  static constexpr bool slot_count =
      Call::any_mutably || !fits_other_slot_count<R, T>(std::make_index_sequence<9>{});
  static constexpr bool update = !slot_count || Call::any_mutably;
  static constexpr bool is_const = !Call::any_mutably || Call::any;
  static constexpr bool both_widths = !Call::any || Call::both_widths;
  static constexpr bool returns_void = !Call::any || !Call::both_widths || Call::returns_void;
};

}  // namespace detail

/// Explains why a type is no `UpdateRule`: one sentence per missing requirement, as a compile error. Authors
/// of a rule put one line in a test:
/// @code{.cpp}
/// template struct lockstep::explain_rule<MyRule>;
/// @endcode
/// The tags in brackets are stable text. Compiles to nothing for a type that is a rule.
/// @tparam T scalar of the variables.
template <class R, class T = float>
struct explain_rule {
  /// What the checks below found.
  using Answers = detail::RuleAnswers<R, T>;
  static_assert(
      Answers::copyable,
      "[lockstep.rule.copyable] a rule must be a copyable and assignable value (std::copyable), so no "
      "references, const members or unique owners; see docs/concepts.md#update-rule");
  static_assert(
      Answers::slots,
      "[lockstep.rule.slots] a rule must declare its state per variable as 'static constexpr "
      "std::array<Slot, n> slots{...};', with n = 0 if it has none; see docs/concepts.md#update-rule");
  static_assert(Answers::prepare,
                "[lockstep.rule.prepare] 'prepare(const StepInfo&)' must be callable on a const rule; see "
                "docs/concepts.md#update-rule");
  static_assert(Answers::step,
                "[lockstep.rule.step] what 'prepare' returns must be trivially copyable, as it is kept in "
                "shared memory: "
                "plain numbers only; see docs/concepts.md#update-rule");
  static_assert(Answers::slot_count,
                "[lockstep.rule.slot_count] 'update' or 'update_variable' must take one argument per slot "
                "after (step, w, "
                "g), but takes another number than 'slots' declares; see docs/concepts.md#update-rule");
  static_assert(
      Answers::update,
      "[lockstep.rule.update] a rule must have 'void update(const Step&, auto& w, auto g, auto&... slots) "
      "const' for elements, or 'void update_variable(const Step&, Flat<T> w, ConstFlat<T> g, Flat<T>... "
      "slots) "
      "const' for whole variables; see docs/concepts.md#update-rule");
  static_assert(
      Answers::is_const,
      "[lockstep.rule.const] 'update' or 'update_variable' must be callable on a const rule: replicas share "
      "it, and state belongs into slots; see docs/concepts.md#update-rule");
  static_assert(
      Answers::both_widths,
      "[lockstep.rule.width] 'update' must take one element (Pack<T>) and one register (Pack<T, Packet>) "
      "alike: write 'auto' for their type; see docs/concepts.md#update-rule");
  static_assert(Answers::returns_void,
                "[lockstep.rule.void] 'update' or 'update_variable' must return void, spelled out: they "
                "change w and the "
                "slots in place; see docs/concepts.md#update-rule");
};

LOCKSTEP_NAMESPACE_END
