// SPDX-License-Identifier: MIT
/// @file
/// How those who wait for an update carry it out together, item by item, without a lock on the data.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/finite.hpp>
#include <lockstep/observe/observer.hpp>
#include <lockstep/protocol/round.hpp>
#include <lockstep/sync/control.hpp>
#include <lockstep/sync/options.hpp>
#include <lockstep/sync/undo.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/wait.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Those who wait carry out the update: each calls `advance` with its own worker.
/// @tparam State what they share.
template <class State>
class UpdateCrew {
 public:
  using T = typename State::Scalar;
  using Worker = typename State::WorkerType;
  using Contributions = decltype(Worker::contributions);

  explicit UpdateCrew(State& state) : state_(state) {}

  /// Inside exclusion: takes the closed round to plan it, if nobody has, or `me` has and could not go on.
  /// Then `carry_out(me)` must follow.
  bool take_plan(Control& control, Worker& me) {
    const bool is_free = control.wants_plan(state_.options().driver) && control.round.readers == 0;
    if (!is_free && !me.has(Task::plan, control.planner)) return false;
    control.planner = me.place;
    me.task = Task::plan;
    me.state = control.updater;
    me.flush = control.flush;
    collect(control, me.contributions);
    me.skips = control.round.poisoned_by >= 0 || me.contributions.empty();
    return true;
  }

  /// Plans the round that `take_plan` took, opens its update, does items of it, and commits it if it sees the
  /// end.
  /// @throws what a schedule or hook throws; the trainer then has failed. TimeoutError if the session cannot
  /// be entered: what `me` has begun is its own still, and `advance` carries it on.
  void carry_out(Worker& me) {
    if (me.skips)
      skip_round(me);
    else
      plan_and_work(me);
  }

  /// Carries the round forward as far as this participant can: plans a closed round, does items of an open
  /// update, commits a finished one. Returns when there is nothing left to do for it.
  /// @param only_round does nothing for another round than this one, if given.
  /// @throws as `carry_out`.
  void advance(Worker& me, std::optional<std::int64_t> only_round = {}) {
    for (;;) {
      bool ends = false, plans = false, works = false;
      state_.session().exclusive([&](Control& control) {
        if (only_round && *only_round != control.round.id) return;
        ends = me.has(Task::commit, control.committer);
        plans = !ends && take_plan(control, me);
        works = !ends && !plans && join_update(control, me);
      });
      if (ends)
        end_update(me);
      else if (plans)
        carry_out(me);
      else if (!works || !work(me))
        return;
    }
  }

  /// The calling thread is in a hook after an update: the variables are still.
  bool is_in_hook() const {
    return hook_thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

 private:
  /// The round changes nothing.
  void skip_round(Worker& me) {
    [[maybe_unused]] const auto committing = state_.span(me.place, Activity::commit, 1);
    fault_point("skip: begun");
    state_.session().exclusive(
        [&](Control& control) {
          control.round.start_update();
          finish_round(control, control.round.count, false, true);
          me.task = Task::none;
        },
        published());
    state_.announce();
  }

  void plan_and_work(Worker& me) {
    // Schedules are user code, so they run outside the exclusion, once.
    state_.guarded(
        me.place,
        [&] {
          me.plan = state_.updater().plan(me.state, me.contributions, state_.options().reduction,
                                          state_.options().absent, me.flush);
          if (me.plan.applies) state_.updater().prepare(me.state, me.plan);
        },
        [&](Control& control) {
          control.planner = k_unclaimed;
          control.unplannable = true;
          me.task = Task::none;
        });
    fault_point("plan: made");
    me.measures = me.plan.applies && state_.options().clip_norm > 0;
    me.factor = 1;
    if (State::k_survives_kill || state_.replicas() > 1) {
      state_.session().exclusive([&](Control& control) { open_update(control, me); });
      call_helpers();
      work(me);
    } else {
      work_alone(me);
    }
  }

  /// Inside exclusion: what the planner has made becomes an update.
  void open_update(Control& control, Worker& me) {
    control.plan = me.plan;
    control.clip_factor = 1;
    control.measures = me.measures;
    me.stage = ++control.stage;
    control.round.start_update();
    me.task = Task::none;
  }

  /// For a single replica: the plan keeps everybody else away already, so no item needs a claim, and the
  /// update is opened and ended in one go.
  void work_alone(Worker& me) {
    auto& updater = state_.updater();
    auto applying = state_.span(me.place, Activity::apply, updater.partition().items());
    updater.list(me.plan, me.contributions, 1, me.sources);
    if (me.measures)
      updater.list(me.plan, me.contributions,
                   clip_factor(updater.squared_norm(me.sources), state_.options().clip_norm), me.sources);
    updater.run(me.plan, me.sources, 0, updater.layout().size());
    applying.end();
    commit(me, true);
  }

  /// The contributions of the closed round, in replica order.
  void collect(const Control& control, Contributions& to) {
    to.clear();
    for (int place = 0; place < control.round.total; ++place) {
      const std::int8_t slot = control.round.places[static_cast<std::size_t>(place)].published;
      if (slot != protocol::k_unpublished) to.push_back(&state_.contribution(place, slot));
    }
  }

  /// Tells of an update with which others can help. Who is awake looks at it; no more sleepers are woken than
  /// pay.
  void call_helpers() {
    const Index elements = state_.updater().layout().size(), items = state_.updater().partition().items();
    if (elements <= k_elements_of_one || items == 1) return;
    state_.progress().bump();
    const Index most = std::min({Index{available_cores()}, Index{state_.replicas()}, items});
    const auto sleepers = static_cast<int>(std::min(most, elements / k_elements_per_sleeper) - 1);
    if (sleepers > 0) state_.session().wake(state_.progress(), sleepers);
  }

  /// Inside exclusion: copies what the open stage needs. False if there is none.
  bool join_update(const Control& control, Worker& me) {
    if (control.round.phase != protocol::Phase::applying || control.committer != k_unclaimed ||
        control.restoring)
      return false;
    me.stage = control.stage;
    me.plan = control.plan;
    me.factor = control.clip_factor;
    me.measures = control.measures;
    collect(control, me.contributions);
    return true;
  }

  /// Does items of the stage until none is free; the one that sees all done opens the next stage or commits.
  /// @return whether something changed, so that the caller looks again.
  bool work(Worker& me) {
    Tiles& tiles = state_.arrays().tiles;
    auto working = state_.span(me.place, me.measures ? Activity::measure : Activity::apply);
    if constexpr (State::k_survives_kill) state_.undo(me.place).forget();
    bool listed = false;
    Index longest = 1;  // items in one run, after the first
    const Index first = tiles.count() * std::max(me.place, 0) / state_.replicas();
    for (Index k = 0; k < tiles.count();) {
      const Index begin = first + k < tiles.count() ? first + k : first + k - tiles.count();
      Index end = begin;
      while (end < std::min(begin + longest, tiles.count()) && tiles.claim(end, me.stage, me.place)) ++end;
      k += std::max<Index>(end - begin, 1);
      if (begin == end) continue;
      // Only while a claim of this stage is held is it certain that no owner writes its slot again.
      if (!std::exchange(listed, true))
        state_.updater().list(me.plan, me.contributions, me.factor, me.sources);
      longest = run_length(tiles.count() - k, me.sources.is_dense());
      do_items(me, begin, end);
      working.add(end - begin);
    }
    working.end();
    return tiles.all_done(me.stage) && (me.measures ? open_apply_stage(me.stage) : commit(me));
  }

  /// How many items to claim in one run when `left` may be free. A claim waits for all that was written
  /// before it, and where rows are few the way from item to item costs more than the items. Runs get shorter
  /// towards the end, so that all participants end together.
  Index run_length(Index left, bool is_dense) const {
    const Index most = !is_dense ? 64 : State::by_elements ? 16 : 1;  // whole variables differ in size
    return std::clamp<Index>(left / (16 * state_.replicas()), 1, most);
  }

  /// Does items that are claimed and marks them as done.
  void do_items(Worker& me, Index begin, Index end) {
    fault_point("item: claimed");
    for (Index i = begin; i < end;) {
      const Index next = do_run(me, i, end);
      fault_point("item: changed");
      for (; i < next; ++i) {
        if (i + 1 < end)
          state_.arrays().tiles.finish(i, me.stage, me.place);
        else
          state_.arrays().tiles.finish_last(i, me.stage, me.place);
        fault_point("item: done");
      }
    }
  }

  /// Does claimed items from `i` on. @return one past the last of them.
  Index do_run(Worker& me, Index i, Index end) {
    auto& updater = state_.updater();
    if (me.measures) {
      for (; i < end; ++i) {
        const auto [first, last] = updater.partition().item(i);
        state_.arrays().partial[i] = updater.squared_norm(me.sources, first, last);
      }
    } else if constexpr (State::k_survives_kill) {
      return run_claimed(updater, me.plan, me.sources, state_.undo(me.place), state_.arrays().tiles, me.stage,
                         i, end);
    } else {
      updater.run(me.plan, me.sources, updater.partition().item(i).first,
                  updater.partition().item(end - 1).second);
    }
    return end;
  }

  bool open_apply_stage(std::uint64_t stage) {
    double squares = 0;
    for (Index i = 0; i < state_.arrays().tiles.count(); ++i) squares += state_.arrays().partial[i];
    const bool opened = state_.session().exclusive([&](Control& control) {
      if (control.round.phase != protocol::Phase::applying || control.stage != stage) return false;
      control.clip_factor = clip_factor(squares, state_.options().clip_norm);
      control.measures = false;
      ++control.stage;
      return true;
    });
    if (opened) call_helpers();
    return true;
  }

  /// @param opens the update was carried out alone, and is opened here as well.
  bool commit(Worker& me, bool opens = false) {
    const bool hooked = static_cast<bool>(state_.options().hooks.after_update);
    UpdateInfo info{};
    bool call_hook = false;
    fault_point("commit: all items done");
    auto committing = state_.span(me.place, Activity::commit);
    const bool mine = state_.session().exclusive(
        [&](Control& control) {
          if (opens) open_update(control, me);
          if (control.round.phase != protocol::Phase::applying || control.stage != me.stage ||
              control.committer != k_unclaimed)
            return false;
          collect(control, me.contributions);
          // An earlier commit of this update may have been killed while it marked what is in the window.
          if constexpr (State::k_survives_kill)
            if (state_.updater().has_window()) state_.updater().window().recount();
          state_.updater().commit(control.updater, control.plan, me.contributions);
          if (hooked && control.plan.applies) {
            control.committer = me.place;
            control.averaged = averaged(me.contributions);
            info = {control.updater.window.global_step, control.averaged};
            call_hook = true;
          } else {
            finish_round(control, averaged(me.contributions), control.plan.applies, false);
          }
          return true;
        },
        published());
    fault_point("commit: not announced");
    if (!mine) return true;
    committing.add(1);
    if (!call_hook) {
      state_.announce();
      return true;
    }
    hook_thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    try {
      state_.options().hooks.after_update(info);
    } catch (...) {
      me.failure = std::current_exception();
    }
    hook_thread_.store({}, std::memory_order_relaxed);
    me.task = Task::commit;
    end_update(me);
    return true;
  }

  /// Ends an update whose hook has been called, by whom it was called. @throws what the hook has thrown.
  void end_update(Worker& me) {
    fault_point("commit: hook called");
    state_.session().exclusive(
        [&](Control& control) {
          finish_round(control, control.averaged, true, false);
          me.task = Task::none;
        },
        published());
    state_.announce();
    if (const std::exception_ptr failure = std::exchange(me.failure, nullptr))
      state_.guarded(me.place, [&] { std::rethrow_exception(failure); });
  }

  /// Gradients that replicas have merged into these contributions. Those that were left out because they are
  /// not finite took part in the round, but are not among them.
  static int averaged(const Contributions& contributions) {
    std::int64_t sum = 0;
    for (const auto* contribution : contributions) sum += contribution->header().merged;
    return static_cast<int>(sum);
  }

  static void finish_round(Control& control, int contributions, bool applied, bool skipped) {
    control.end_round({.contributions = contributions,
                       .culprit = control.round.poisoned_by,
                       .applied = applied,
                       .skipped = skipped});
  }
  /// Tells those who wait without exclusion.
  auto published() {
    return [this](const Control& control) { state_.board().publish(control); };
  }

  static constexpr Index k_elements_of_one = 2 * Partition<true>::k_smallest_tile;  // that one does alone
  static constexpr Index k_elements_per_sleeper = 4 * k_elements_of_one;
  static_assert(Partition<true>::k_largest_tile < Tiles::k_positions);

  State& state_;
  std::atomic<std::thread::id> hook_thread_{};  // that calls a hook after an update
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
