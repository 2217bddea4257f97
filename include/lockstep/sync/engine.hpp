// SPDX-License-Identifier: MIT
/// @file
/// The round engine: what replicas share, and how those who wait for an update carry it out together.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/finite.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/step_result.hpp>
#include <lockstep/optimizers/updater.hpp>
#include <lockstep/protocol/round.hpp>
#include <lockstep/sync/control.hpp>
#include <lockstep/sync/options.hpp>
#include <lockstep/sync/tiles.hpp>
#include <lockstep/transport/fork_guard.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/transport.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

template <class R, class Net, class T, class G>
class RoundEngine {
 public:
  using Session = typename Net::template Session<Control>;
  using WorkerType = Worker<T, G>;
  using Scalar = T;

  RoundEngine(const R& recipe, const Net& net, Variables<T, G>& variables, const SyncOptions& options)
      : options_(checked(options)),
        binding_(variables),
        rows_(variables.layout()),
        session_(net, initial_control(options), bytes(recipe)),
        carver_(session_.memory().data()),
        updater_(recipe, variables, rows_, carver_),
        arrays_(carver_, variables.layout(), rows_, updater_.items(), options.replicas()) {
    if (Updater<R, T, G>::aggregates && options.absent == Absent::excluded)
      throw InvalidArgument(
          "absent: Absent::excluded cannot be combined with GradientAggregation inside SyncReplicas");
    if (updater_.options().num_partitions != 1)
      throw InvalidArgument(
          detail::text("num_partitions: the replicas share the work already, must be 1, got ",
                       updater_.options().num_partitions));
    updater_.initialise();
    session_.exclusive([&](Control& control) { publish(control); });
  }

  const SyncOptions& options() const { return options_; }
  /// The policy of the trainer, or that of a window inside it.
  NonFinite non_finite() const {
    return options_.non_finite == NonFinite::propagate ? updater_.options().non_finite : options_.non_finite;
  }
  /// @throws UsageError in a forked child: whoever held the exclusion does not exist there.
  Session& session() {
    fork_guard_.expect_own_process("trainer");
    return session_;
  }
  bool is_in_forked_child() const noexcept { return fork_guard_.is_in_child(); }
  Updater<R, T, G>& updater() { return updater_; }
  const Variables<T, G>& variables() const { return *binding_; }
  Contribution<G>& contribution(int place, int slot) {
    return arrays_.contributions[static_cast<std::size_t>(2 * place + slot)];
  }
  /// First element of a slot array in which variable `id` may be read, of the rule or of the open window.
  const T* slot(std::string_view name, std::uint32_t id) {
    if (!Updater<R, T, G>::aggregates || name != k_grad_accum) return updater_.slot(name);
    return session().exclusive([&](Control&) -> const T* {
      if (updater_.has_window()) {
        updater_.window().zero_absent(id);
        return updater_.window().data();
      }
      no_window_.resize(static_cast<std::size_t>(updater_.layout().size()));
      return no_window_.data();
    });
  }
  WaitWord& progress() { return *arrays_.progress; }
  Outcome outcome(std::int64_t round) {
    return Outcome::unpacked(outcome_word(round).load(std::memory_order_relaxed), round);
  }
  Board& board() { return *arrays_.board; }
  std::atomic<std::int64_t>& waiting(int place) { return arrays_.waiting[place]; }
  int replicas() const { return options_.replicas(); }

  /// Lets everybody look at the state again.
  void announce() {
    progress().bump();
    session_.wake(progress());
  }

  /// Inside exclusion: takes the closed round to plan it, if nobody has. Then `carry_out(me)` must follow.
  bool take_plan(Control& control, Worker<T, G>& me) {
    if (!control.round.can_apply() || control.planner >= 0 || control.round.ending != protocol::Ending::none)
      return false;
    control.planner = me.place;
    me.state = control.updater;
    me.flush = control.flush;
    collect(control, me.contributions);
    me.skips = control.round.poisoned_by >= 0 || me.contributions.empty();
    return true;
  }

  /// Plans the round that `take_plan` took, opens its update, does items of it, and commits it if it sees the
  /// end.
  /// @throws what a schedule or hook throws; the trainer then has failed.
  void carry_out(Worker<T, G>& me) {
    if (me.skips) {
      session_.exclusive([&](Control& control) {
        control.round.start_update();
        finish_round(control, control.round.count, false, true);
      });
      announce();
      return;
    }
    // Schedules are user code, so they run outside the exclusion, once.
    me.plan = updater_.plan(me.state, me.contributions, options_.reduction, options_.absent, me.flush);
    if (me.plan.applies) updater_.prepare(me.state, me.plan);
    me.measures = me.plan.applies && options_.clip_norm > 0;
    me.factor = 1;
    session_.exclusive([&](Control& control) {
      control.plan = me.plan;
      control.clip_factor = 1;
      control.measures = me.measures;
      me.stage = ++control.stage;
      control.round.start_update();
    });
    call_helpers();
    work(me);
  }

  /// Carries the round forward as far as this participant can: plans a closed round, does items of an open
  /// update, commits a finished one. Returns when there is nothing left to do for it.
  /// @param only_round does nothing for another round than this one, if given.
  /// @throws what a schedule or hook throws; the trainer then has failed.
  void advance(Worker<T, G>& me, std::optional<std::int64_t> only_round = {}) {
    for (;;) {
      bool plans = false, works = false;
      session_.exclusive([&](Control& control) {
        if (only_round && *only_round != control.round.id) return;
        plans = take_plan(control, me);
        works = !plans && join_update(control, me);
      });
      if (plans)
        carry_out(me);
      else if (!works || !work(me))
        return;
    }
  }

  /// Calls `f()` while no update is written and none can start.
  /// @throws TimeoutError if an update does not end in time.
  template <class F>
  void while_still(Worker<T, G>& me, F&& f) {
    const Deadline deadline(options_.deadline);
    for (;;) {
      const std::uint32_t seen = progress().seen();
      if (session().exclusive([](Control& control) { return control.planner < 0 && control.round.hold(); }))
        break;
      if (options_.driver == Driver::cooperative) advance(me);
      if (deadline.passed()) throw TimeoutError("snapshot: the update under way does not end", missing());
      session_.wait(progress(), seen, deadline.end(), replicas());
    }
    const auto let_go = [&] {
      session_.exclusive([](Control& control) { control.round.release(); });
      announce();
      if (options_.driver == Driver::cooperative) advance(me);
    };
    try {
      f();
    } catch (...) {
      let_go();
      throw;
    }
    let_go();
  }

  /// The open round is given up: its contributions were computed with variables that are gone.
  void restore(const Snapshot<T>& snapshot) {
    UpdaterState state;
    updater_.load(snapshot, state);
    session_.exclusive([&](Control& control) {
      outcome_word(control.round.id)
          .store(Outcome{.restored = true}.packed(control.round.id), std::memory_order_relaxed);
      control.updater = state;
      control.round.restore(state.window.updates);
      control.planner = control.committer = -1;
      control.flush = false;
      publish(control);
    });
  }

  /// Marks the trainer as failed because of `place`, or of the chief; everybody is told.
  void fail(int place, const std::string& reason) {
    {
      const std::lock_guard lock(reason_mutex_);
      if (reason_.empty()) reason_ = reason;
    }
    session_.exclusive([&](Control& control) {
      if (control.planner == place) control.planner = -1;
      if (place == protocol::k_nobody)
        control.round.end(protocol::Ending::failed, place);
      else
        control.round.fail(place);
    });
    announce();
  }
  std::string failure_reason() {
    const std::lock_guard lock(reason_mutex_);
    return reason_;
  }
  void forget_failure() {
    const std::lock_guard lock(reason_mutex_);
    reason_.clear();
  }

  /// Who the open round or update still waits for.
  std::vector<Missing> missing() {
    std::vector<Missing> result;
    const auto stage = session_.exclusive([&](Control& control) {
      for (int place = 0; place < control.round.total; ++place)
        if (control.round.is_missing(place)) result.push_back({place, why(control.round, place)});
      return control.round.phase == protocol::Phase::applying ? control.stage : 0;
    });
    if (stage != 0)
      arrays_.tiles.for_each_claimed(stage, [&](int owner) {
        result.push_back({owner, Missing::Why::slow});
      });
    return result;
  }

 private:
  struct Arrays {
    Arrays(Carver& carver, const Layout& layout, const RowLayout& rows, Index items, int replicas)
        : progress(carver.array<WaitWord>(1)),
          board(carver.array<Board>(1)),
          tiles(carver.array<Tiles::Word>(static_cast<std::size_t>(items)), items),
          partial(carver.array<double>(static_cast<std::size_t>(items))),
          waiting(carver.array<std::atomic<std::int64_t>>(static_cast<std::size_t>(replicas))) {
      for (int i = 0; i < 2 * replicas; ++i) contributions.emplace_back(carver, layout, rows);
    }
    WaitWord* progress;
    Board* board;
    Tiles tiles;
    double* partial;                             // per item: sum of squares of the mean
    std::atomic<std::int64_t>* waiting;          // per place: nanoseconds
    std::vector<Contribution<G>> contributions;  // two slots per place
  };

  static const SyncOptions& checked(const SyncOptions& options) {
    options.validate();
    return options;
  }
  static Control initial_control(const SyncOptions& options) {
    Control control;
    control.round = protocol::Round(options.replicas_to_aggregate, options.replicas(), options.departure,
                                    std::max(0, options.init_tokens));
    control.round.global_step = control.updater.window.global_step = options.global_step;
    return control;
  }
  std::size_t bytes(const R& recipe) {
    Carver counter;
    const Updater<R, T, G> updater(recipe, *binding_, rows_, counter);
    const Arrays arrays(counter, binding_->layout(), rows_, updater.items(), options_.replicas());
    return counter.used();
  }
  Missing::Why why(const protocol::Round& round, int place) {
    switch (round.places[static_cast<std::size_t>(place)].seat) {
      case protocol::Seat::vacant:
        return Missing::Why::not_joined;
      case protocol::Seat::left:
        return Missing::Why::left;
      case protocol::Seat::dead:
        return Missing::Why::dead;
      case protocol::Seat::active:
        break;
    }
    return session_.alive(place) ? Missing::Why::slow : Missing::Why::dead;
  }

  /// The contributions of the closed round, in replica order.
  void collect(const Control& control, std::vector<const Contribution<G>*>& to) {
    to.clear();
    for (int place = 0; place < control.round.total; ++place) {
      const std::int8_t slot = control.round.places[static_cast<std::size_t>(place)].published;
      if (slot != protocol::k_unpublished) to.push_back(&contribution(place, slot));
    }
  }

  /// Wakes no more sleepers than pay: none below 16 items each.
  void call_helpers() {
    const auto useful =
        std::min<Index>(std::min(session_.cores(), replicas()), updater_.items() / k_items_per_helper) - 1;
    if (useful <= 0) return;
    progress().bump();
    session_.wake(progress(), static_cast<int>(useful));
  }

  /// Inside exclusion: copies what the open stage needs. False if there is none.
  bool join_update(const Control& control, Worker<T, G>& me) {
    if (control.round.phase != protocol::Phase::applying || control.committer >= 0) return false;
    me.stage = control.stage;
    me.plan = control.plan;
    me.factor = control.clip_factor;
    me.measures = control.measures;
    collect(control, me.contributions);
    return true;
  }

  /// Does items of the stage until none is free; the one that sees all done opens the next stage or commits.
  /// @return whether something changed, so that the caller looks again.
  bool work(Worker<T, G>& me) {
    Tiles& tiles = arrays_.tiles;
    bool listed = false;
    const Index first = tiles.count() * me.place / replicas();
    for (Index k = 0; k < tiles.count(); ++k) {
      const Index i = first + k < tiles.count() ? first + k : first + k - tiles.count();
      if (!tiles.claim(i, me.stage, me.place)) continue;
      // Only while a claim of this stage is held is it certain that no owner writes its slot again.
      if (!std::exchange(listed, true)) updater_.list(me.plan, me.contributions, me.factor, me.sources);
      const auto [begin, end] = updater_.item(i);
      if (me.measures)
        arrays_.partial[i] = updater_.squared_norm(me.sources, begin, end);
      else
        updater_.run(me.plan, me.sources, begin, end);
      tiles.finish(i, me.stage, me.place);
    }
    return tiles.all_done(me.stage) && (me.measures ? open_apply_stage(me.stage) : commit(me));
  }

  bool open_apply_stage(std::uint64_t stage) {
    double squares = 0;
    for (Index i = 0; i < arrays_.tiles.count(); ++i) squares += arrays_.partial[i];
    const bool opened = session_.exclusive([&](Control& control) {
      if (control.round.phase != protocol::Phase::applying || control.stage != stage) return false;
      control.clip_factor = clip_factor(squares, options_.clip_norm);
      control.measures = false;
      ++control.stage;
      return true;
    });
    if (opened) call_helpers();
    return true;
  }

  bool commit(Worker<T, G>& me) {
    const bool hooked = static_cast<bool>(options_.hooks.after_update);
    UpdateInfo info{};
    bool call_hook = false;
    const bool mine = session_.exclusive([&](Control& control) {
      if (control.round.phase != protocol::Phase::applying || control.stage != me.stage ||
          control.committer >= 0)
        return false;
      collect(control, me.contributions);
      updater_.commit(control.updater, control.plan, me.contributions);
      if (hooked && control.plan.applies) {
        control.committer = me.place;
        info = {control.updater.window.global_step, averaged(me.contributions)};
        call_hook = true;
      } else {
        finish_round(control, averaged(me.contributions), control.plan.applies, false);
      }
      return true;
    });
    if (!mine) return true;
    if (call_hook) {
      std::exception_ptr failure;
      try {
        options_.hooks.after_update(info);
      } catch (...) {
        failure = std::current_exception();
      }
      session_.exclusive([&](Control& control) { finish_round(control, info.contributions, true, false); });
      announce();
      if (failure) std::rethrow_exception(failure);
      return true;
    }
    announce();
    return true;
  }

  std::atomic<std::uint64_t>& outcome_word(std::int64_t round) {
    return board().outcomes[static_cast<std::size_t>(round) % board().outcomes.size()];
  }

  /// Inside exclusion.
  void publish(const Control& control) {
    Board& b = board();
    b.round_step.store(control.round.global_step, std::memory_order_relaxed);
    b.step.store(control.updater.window.global_step, std::memory_order_relaxed);
    b.generation.store(control.round.generation, std::memory_order_relaxed);
    b.round.store(control.round.id,
                  std::memory_order_release);  // pairs with the acquire of who waits for the round
  }

  /// Gradients that replicas have merged into these contributions. Those that were left out because they are
  /// not finite took part in the round, but are not among them.
  static int averaged(const std::vector<const Contribution<G>*>& contributions) {
    std::int64_t sum = 0;
    for (const auto* contribution : contributions) sum += contribution->header().merged;
    return static_cast<int>(sum);
  }

  void finish_round(Control& control, int contributions, bool applied, bool skipped) {
    const Outcome outcome{.contributions = contributions,
                          .culprit = control.round.poisoned_by,
                          .applied = applied,
                          .skipped = skipped};
    outcome_word(control.round.id).store(outcome.packed(control.round.id), std::memory_order_relaxed);
    control.round.commit(applied, skipped);
    control.planner = control.committer = -1;
    control.flush = false;
    publish(control);
  }

  static constexpr Index k_items_per_helper = 16;

  ForkGuard fork_guard_;
  SyncOptions options_;
  Binding<T, G> binding_;
  RowLayout rows_;
  Session session_;
  Carver carver_;
  Updater<R, T, G> updater_;
  Arrays arrays_;
  std::mutex reason_mutex_;
  std::string reason_;
  std::vector<T> no_window_;  // zeros, for k = 1
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
