// SPDX-License-Identifier: MIT
/// @file
/// A rule that also keeps the exponential moving average of the variables.
#pragma once

#include <lockstep/optimizers/checks.hpp>
#include <lockstep/optimizers/rule.hpp>
#include <lockstep/optimizers/whole.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

template <class Slots, std::size_t... I>
constexpr std::array<Slot, sizeof...(I) + 1> with_slot(const Slots& slots, const Slot& added,
                                                       std::index_sequence<I...>) {
  return {{slots[I]..., added}};
}

template <class Slots>
constexpr bool has_slot(const Slots& slots, std::string_view name) {
  for (const Slot& slot : slots)
    if (slot.name == name) return true;
  return false;
}

}  // namespace detail

/// The inner rule, then \f$s \leftarrow s - (1-d)(s-w)\f$ with the new \f$w\f$; \f$s\f$ is the slot "average"
/// and starts as a copy of the variable. \f$d\f$ is `decay`, or with `num_updates` \f$\min(\mathrm{decay},
/// (1+n)/(10+n))\f$ where \f$n\f$ counts the updates with this one, so early averages do not cling to the
/// initial value. The average follows in the registers of the update: no second pass over memory. It moves at
/// every update, also for variables and rows without a gradient in that round (`update_absent`). With
/// `enabled = false`, or decay 0, it is a plain copy of the variable: set it by `PerVariable` for variables
/// that are not to be averaged, and the averages of all variables are still the model to evaluate.
/// @tparam R models lockstep::UpdateRule, for elements or for whole variables.
/// @par Source TensorFlow ExponentialMovingAverage with zero_debias off; SyncReplicasOptimizer's
/// variable_averages reads the counter after its increment. \f$1-d\f$ is formed in double and rounded once,
/// where TensorFlow rounds decay to float.
template <DeclaresSlots R>
struct MovingAverage {
  static_assert(
      !detail::has_slot(R::slots, "average"),
      "[lockstep.rule.average] the rule inside MovingAverage already has a slot named 'average'; see "
      "docs/concepts.md#update-rule");

  R rule;                    ///< whose variables are averaged
  double decay = 0.999;      ///< share of the average that is kept per update, in [0, 1]
  bool num_updates = false;  ///< early averages move faster
  bool enabled = true;       ///< false: the average is a copy

  static constexpr std::size_t k_inner_slots = slot_count_v<R>;  ///< slots of the inner rule
  static constexpr std::string_view name = rule_name<R>();       ///< that of the inner rule
  /// Slots of the inner rule, then "average".
  static constexpr auto slots =
      detail::with_slot(R::slots, Slot{"average", 0, true}, std::make_index_sequence<k_inner_slots>{});
  /// Initial value of slot `index`, as the inner rule says.
  double slot_initial(std::size_t index) const {
    return index < k_inner_slots ? slot_initial_value(rule, index) : 0;
  }

  /// What is the same for all elements of an update.
  struct Step {
    step_of_t<R> rule;  ///< of the inner rule
    double move;        ///< 1 - d
  };
  /// The numbers of an update. @throws InvalidArgument if a schedule gives no finite value.
  Step prepare(const StepInfo& info) const {
    double keep = enabled ? decay : 0;
    if (num_updates) {
      const auto n = static_cast<double>(info.step + 1);
      keep = std::min(keep, (1 + n) / (10 + n));
    }
    return {prepare_step(rule, info), 1 - keep};
  }

  /// One element or one register of elements: the inner rule, then the average.
  template <class W, class... S>
  requires(sizeof...(S) == k_inner_slots + 1 && UpdatesElements<R, typename W::Scalar>) LOCKSTEP_ALWAYS_INLINE
      void update(const Step& step, W& w, W g, S&... all_slots) const {
    const std::tuple<S&...> tied(all_slots...);
    update_inner(step, w, g, tied, std::make_index_sequence<k_inner_slots>{});
    follow(step, w, std::get<k_inner_slots>(tied));
  }

  /// A whole variable: the inner rule, then the average.
  template <class T, class... S>
  requires(sizeof...(S) == k_inner_slots + 1 &&
           UpdatesVariables<R, T>) void update_variable(const Step& step, Flat<T> w, ConstFlat<T> g,
                                                        S... all_slots) const {
    const std::tuple<S&...> tied(all_slots...);
    update_inner_variable(step, w, g, tied, std::make_index_sequence<k_inner_slots>{});
    follow(step, w, std::get<k_inner_slots>(tied));
  }

  /// For a variable or row without a gradient: only the average moves; `w` and the slots of the inner rule
  /// stay. Takes registers or whole variables.
  template <class W, class... S>
  requires(sizeof...(S) == k_inner_slots + 1) LOCKSTEP_ALWAYS_INLINE
      void update_absent(const Step& step, const W& w, S&&... all_slots) const {
    follow(step, w, std::get<k_inner_slots>(std::forward_as_tuple(all_slots...)));
  }

  /// As the inner rule says.
  bool updates_all_rows() const { return lockstep::updates_all_rows(rule); }

  /// @throws InvalidArgument unless decay is in [0, 1], or as the inner rule says.
  void validate() const {
    detail::expect_at_most_one("MovingAverage", "decay", decay);
    validate_rule(rule);
  }

  /// Equal options.
  friend bool operator==(const MovingAverage&, const MovingAverage&) = default;

 private:
  template <class W, class Tuple, std::size_t... I>
  LOCKSTEP_ALWAYS_INLINE void update_inner(const Step& step, W& w, W g, const Tuple& tied,
                                           std::index_sequence<I...>) const {
    rule.update(step.rule, w, g, std::get<I>(tied)...);
  }
  template <class T, class Tuple, std::size_t... I>
  void update_inner_variable(const Step& step, Flat<T> w, ConstFlat<T> g, const Tuple& tied,
                             std::index_sequence<I...>) const {
    rule.update_variable(step.rule, w, g, std::get<I>(tied)...);
  }

  template <class T, class Packet>
  LOCKSTEP_ALWAYS_INLINE static void follow(const Step& step, const Pack<T, Packet>& w,
                                            Pack<T, Packet>& average) {
    // A copy, since average - (average - w) is not w in rounded arithmetic.
    if (step.move == 1)
      average = w;
    else
      average -= step.move * (average - w);
  }
  template <class T>
  static void follow(const Step& step, const Flat<T>& w, Flat<T>& average) {
    using P = detail::BestPack<T>;
    for (Index at = 0; at < w.size(); at += detail::k_pack_size<T>) {
      P pack = P::load(average.data() + at);
      follow(step, P::load(w.data() + at), pack);
      pack.store(average.data() + at);
    }
  }
};

/// Deduces the inner rule.
template <class R>
MovingAverage(R) -> MovingAverage<R>;
/// Deduces the inner rule.
template <class R>
MovingAverage(R, double) -> MovingAverage<R>;
/// Deduces the inner rule.
template <class R>
MovingAverage(R, double, bool) -> MovingAverage<R>;
/// Deduces the inner rule.
template <class R>
MovingAverage(R, double, bool, bool) -> MovingAverage<R>;

LOCKSTEP_NAMESPACE_END
