// SPDX-License-Identifier: MIT
/// @file
/// Variables, slots and counters of a `VariableReplicas` trainer in one process.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/rule_groups.hpp>
#include <lockstep/optimizers/updater.hpp>
#include <lockstep/per_variable/rows_in_turn.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/wait.hpp>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// @par Thread safety every function may be called from any thread.
template <class R, class T>
class LocalModel {
 public:
  using Rule = rule_of_t<R>;

  LocalModel(const R& recipe, Variables<T>& variables, const RuleGroups<R>& groups, std::int64_t global_step)
      : groups_(groups),
        in_turn_(groups.count()),
        rows_(variables.layout()),
        memory_(bytes(recipe, variables)),
        carver_(memory_.bytes().data()),
        updater_(recipe, variables, rows_, carver_),
        aggregate_(carver_, variables.layout(), rows_) {
    updater_.initialise();
    aggregate_.clear();
    state_.window.global_step = global_step;
  }

  const Updater<R, T, T>& updater() const { return updater_; }

  /// Calls `f(state)`, which is short and no user code, while nobody writes variables, slots or counters.
  template <class F>
  decltype(auto) look(F&& f) const {
    const std::shared_lock lock(mutex_);
    return std::forward<F>(f)(state_);
  }
  /// From now until `let_go`, and any number of times: nobody writes variables, slots or counters.
  void hold() {
    const std::unique_lock lock(mutex_);
    ++holds_;
  }
  void let_go() {
    const std::unique_lock lock(mutex_);
    if (--holds_ == 0) let_go_.notify_all();
  }
  bool is_held() const {
    const std::shared_lock lock(mutex_);
    return holds_ > 0;
  }
  void set_global_step(std::int64_t step) {
    const std::unique_lock lock(mutex_);
    state_.window.global_step = step;
  }

  /// Applies the aggregates that `takes` has. Schedules are user code, so they run while others may look. One
  /// thread at a time. @return the global step after it; nothing if somebody holds the variables until
  /// `until`.
  /// @throws what a schedule throws; nothing is changed.
  template <class Takes>
  std::optional<std::int64_t> apply(const Takes& takes, Clock::time_point until) {
    const std::array<const Contribution<T>*, 1> sources{&aggregate_};
    for (;;) {
      const UpdaterState planned = look([](const UpdaterState& state) { return state; });
      const UpdatePlan plan = updater_.plan(planned, sources, Reduction::mean, Absent::zero, false);
      prepare(planned, plan);
      std::unique_lock lock(mutex_);
      if (!let_go_.wait_until(lock, until, [this] { return holds_ == 0; })) return {};
      if (state_.window.global_step != planned.window.global_step) continue;  // somebody has set it meanwhile
      load(takes);
      updater_.list(plan, sources, 1, contributors_);
      updater_.run(plan, contributors_, 0, updater_.layout().size());
      updater_.commit(state_, plan, sources);
      aggregate_.clear();
      return state_.window.global_step;
    }
  }

 private:
  using InTurn = typename InTurnStep<Rule>::type;

  /// Computes what the rules need for an update.
  void prepare(const UpdaterState& state, const UpdatePlan& plan) {
    updater_.prepare(state, plan);
    prepare_in_turn(groups_, Updater<R, T, T>::step_info(state, plan), in_turn_.data());
  }
  /// Puts the aggregates where the update reads them, and applies repeated rows that the rule applies in
  /// turn.
  template <class Takes>
  void load(const Takes& takes) {
    for (const VariableInfo& variable : updater_.layout().infos()) {
      if (const auto* dense = takes[variable.id].dense())
        std::copy(dense->elements.begin(), dense->elements.end(), aggregate_.mark_dense(variable.id));
      if (const auto* rows = takes[variable.id].sparse())
        load_rows<Rule>(variable, *rows, aggregate_, [&](Index at, Index width) {
          apply_in_turn(groups_.rule_of(variable.id), in_turn_[groups_.group_of(variable.id)],
                        aggregate_.data(), updater_.values(), at, width);
        });
    }
  }
  std::size_t bytes(const R& recipe, Variables<T>& variables) {
    Carver counter;
    const Updater<R, T, T> updater(recipe, variables, rows_, counter);
    const Contribution<T> aggregate(counter, variables.layout(), rows_);
    return counter.used();
  }

  const RuleGroups<R>& groups_;
  std::vector<InTurn> in_turn_;      // by rule: what repeated rows of the update need
  mutable std::shared_mutex mutex_;  // guards variables, slots, state_ and holds_
  int holds_ = 0;                    // a count, not a lock: a thread may hold and look, or hold twice
  std::condition_variable_any let_go_;
  RowLayout rows_;
  ZeroedMemory memory_;
  Carver carver_;
  Updater<R, T, T> updater_;
  Contribution<T> aggregate_;  // what the takes gave, in the layout of the variables
  Contributors<T, T> contributors_;
  UpdaterState state_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
