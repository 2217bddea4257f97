// SPDX-License-Identifier: MIT
/// @file
/// One replica of a synchronous trainer: contributes, waits, learns what happened.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/finite.hpp>
#include <lockstep/gradients/merge.hpp>
#include <lockstep/optimizers/gradient_access.hpp>
#include <lockstep/sync/engine.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {
template <class Engine>
struct Announce {
  Engine* engine;
  void operator()() const { engine->announce(); }
};
}  // namespace detail

/// A seat at a `SyncReplicas` trainer, made by its `join()`. Leaves when it is destroyed; when an exception
/// destroys it, the others get `PeerFailed`.
/// @par Thread safety One thread at a time; different replicas on different threads.
template <class R, class Net, class T, class G>
class SyncReplica : public GradientAccess<SyncReplica<R, Net, T, G>, T, G> {
  using Engine = detail::RoundEngine<R, Net, T, G>;
  using Control = detail::Control;

 public:
  /// Used by `SyncReplicas::join`.
  SyncReplica(Engine& engine, int place, std::chrono::milliseconds deadline, std::stop_token stop)
      : engine_(&engine),
        deadline_(deadline),
        stop_(std::move(stop)),
        worker_(place),
        unwinding_(std::uncaught_exceptions()) {
    engine.session().exclusive([&](Control& control) {
      if (!control.round.can_join(place))
        throw UsageError(detail::text("join: replica ", place, " has joined already"));
      control.round.join(place);
      find_free_slot(control);
    });
    engine.announce();
    staging_slot().clear();
    try {
      wait_until_admitted();
      if (engine.options().hooks.begin) engine.options().hooks.begin(place);
    } catch (const std::exception& error) {
      engine.fail(place, error.what());
      throw;
    }
  }

  SyncReplica(SyncReplica&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)),
        deadline_(other.deadline_),
        stop_(std::move(other.stop_)),
        worker_(std::move(other.worker_)),
        scratch_(std::move(other.scratch_)),
        snapshot_(std::move(other.snapshot_)),
        unwinding_(other.unwinding_),
        staged_(other.staged_),
        pending_(other.pending_),
        skipped_(other.skipped_),
        round_(other.round_),
        computed_at_(other.computed_at_),
        label_step_(other.label_step_),
        label_generation_(other.label_generation_),
        step_(other.step_),
        sequence_(other.sequence_) {}
  SyncReplica& operator=(SyncReplica&&) = delete;

  ~SyncReplica() {
    if (!engine_ || engine_->is_in_forked_child()) return;  // the seat is the parent's
    if (std::uncaught_exceptions() > unwinding_)
      engine_->fail(index(), "an exception ended its loop");
    else
      depart();
  }

  // ---- where it is

  int index() const { return worker_.place; }
  /// Step of the variables that this replica sees.
  std::int64_t global_step() const { return step_; }
  /// Accepted contributions at this replica number so far, over all who sat there: the key for the next
  /// batch.
  std::int64_t sequence() const { return sequence_; }
  const Variables<T, G>& variables() const { return engine().variables(); }
  std::vector<std::string> slot_names() const { return engine().updater().slot_names(); }

  // ---- the step

  /// Contributes this step's gradients and waits until this replica may go on: for the update, unless the
  /// open round wants another contribution of it (`StepResult::round_open`).
  /// @throws NoGradients, InvalidArgument (nothing has happened then); TimeoutError with who is missing (the
  /// contribution stands: `resume()` or `withdraw()`); PeerFailed; Cancelled.
  StepResult apply_gradients(const ApplyOptions& options = {}) {
    expect_free("apply_gradients");
    detail::expect_options(options);
    Contribution<G>& staged = staging_slot();
    if (staged.is_empty())
      throw NoGradients(detail::text("apply_gradients: replica ", index(),
                                     " has no gradient for any variable in step ", step_));
    staged.header().unit = staged.header().total = options.weight;
    staged.header().merged = 1;
    return contribute(options);
  }

  /// For a wrapper that has merged several gradients into the contribution: its header is final already.
  StepResult apply_merged(const ApplyOptions& options) {
    expect_free("apply_gradients");
    return contribute(options);
  }

  /// Waits on after a TimeoutError.
  StepResult resume(const ApplyOptions& options = {}) {
    if (!pending_)
      throw UsageError(detail::text("resume: replica ", index(), " has no pending contribution"));
    return wait_for_outcome(options, std::nullopt);
  }
  /// After a TimeoutError: takes the contribution back. False if the round has closed: `resume()` then.
  bool withdraw() {
    if (!pending_)
      throw UsageError(detail::text("withdraw: replica ", index(), " has no pending contribution"));
    const bool taken = engine().session().exclusive([&](Control& control) {
      if (control.round.id != round_ || !control.round.withdraw(index())) return false;
      find_free_slot(control);
      sequence_ = control.round.places[static_cast<std::size_t>(index())].sequence;
      return true;
    });
    if (!taken) return false;
    pending_ = false;
    staging_slot().clear();
    return true;
  }

  /// No more data: the others go on as the departure policy says. All views end.
  void leave() {
    if (!engine_) return;
    depart();
    engine_ = nullptr;
  }

  // ---- for GradientAccess and wrappers

  const T* values() const { return snapshot_.empty() ? engine().updater().values() : snapshot_.data(); }
  Contribution<G>& staging() {
    expect_free("gradient");
    return staging_slot();
  }
  const T* slot_data(std::string_view name, std::uint32_t) const { return engine().updater().slot(name); }
  Reduction reduction() const { return engine().options().reduction; }

 private:
  Engine& engine() const {
    if (!engine_) throw UsageError(detail::text("replica ", worker_.place, " has left"));
    return *engine_;
  }
  /// The next contribution is written to the slot that the round does not hold.
  void find_free_slot(const Control& control) {
    staged_ = control.round.places[static_cast<std::size_t>(index())].published == 0 ? 1 : 0;
  }
  Contribution<G>& staging_slot() { return engine().contribution(index(), staged_); }

  void expect_free(const char* call) {
    if (pending_)
      throw UsageError(detail::text(call, ": the contribution of replica ", index(),
                                    " is still pending after a timeout; call resume() or withdraw() first"));
  }

  void depart() {
    const int place = index();
    engine_->session().exclusive([&](Control& control) {
      if (pending_ && control.round.id == round_) control.round.withdraw(place);
      control.round.leave(place);
    });
    engine_->announce();
    if (engine_->options().driver == Driver::cooperative) {
      try {
        engine_->advance(worker_);  // a round that its leaving has closed
      } catch (const std::exception& error) {
        engine_->fail(place, error.what());
      }
    }
    if (engine_->options().hooks.end) {
      try {
        engine_->options().hooks.end(place);
      } catch (const std::exception& error) {
        engine_->fail(place, error.what());
      }
    }
  }

  StepResult contribute(const ApplyOptions& options) {
    Contribution<G>& staged = staging_slot();
    const SyncOptions& settings = engine().options();
    const bool finite = settings.non_finite == NonFinite::propagate || all_finite(staged);
    const bool poisons = !finite && settings.non_finite == NonFinite::skip_update;
    if (finite && settings.clip_contribution_norm > 0)
      staged.header().unit *= clip_factor(squared_norm(staged), settings.clip_contribution_norm);
    const auto slot = finite ? static_cast<std::int8_t>(staged_) : protocol::k_unpublished;

    std::int64_t merged_in = -1;  // round whose published contribution has been merged into the staged one
    for (;;) {
      bool must_merge = false, plans = false, open = false, waits = false;
      auto verdict = protocol::Verdict::accepted;
      const std::uint32_t seen = engine().progress().seen();
      engine().session().exclusive([&](Control& control) {
        protocol::Round& round = control.round;
        protocol::Place& place = round.places[static_cast<std::size_t>(index())];
        must_merge = finite && place.published != protocol::k_unpublished && place.published != staged_ &&
                     merged_in != round.id && round.has_quota(index());
        if (must_merge) {
          merged_in = round.id;
          return;
        }
        round.label(index(), label_step_, label_generation_);
        verdict = round.contribute(index(), slot, poisons);
        round_ = round.id;
        sequence_ = place.sequence;
        if (verdict != protocol::Verdict::accepted) return;
        if (options.flush) control.flush = true;
        plans =
            cooperates() && round.phase == protocol::Phase::closed && engine().take_plan(control, worker_);
        open = round.phase == protocol::Phase::collecting &&
               (round.has_quota(index()) || round.take_token(index()));
        waits = round.phase == protocol::Phase::collecting && round.ending == protocol::Ending::none;
      });
      if (must_merge) {
        Contribution<G>& earlier = engine().contribution(index(), 1 - staged_);
        detail::merge(earlier, staged, staged, scratch_);
        continue;
      }
      computed_at_ = step_;
      if (verdict != protocol::Verdict::accepted) {
        staged.clear();
        return refused(verdict, options);
      }
      if (finite) staged_ = 1 - staged_;
      skipped_ = !finite;
      if (plans) guarded([&] { engine().carry_out(worker_); });
      if (open) return round_is_open();
      pending_ = true;
      return wait_for_outcome(options, waits ? std::optional(seen) : std::nullopt);
    }
  }

  /// The round waits for another contribution of this replica: the variables are as they were.
  StepResult round_is_open() {
    staging_slot().clear();
    return {.status = skipped_ ? Status::skipped : Status::accepted,
            .global_step = step_,
            .round_open = true,
            .computed_at = computed_at_};
  }

  StepResult refused(protocol::Verdict verdict, const ApplyOptions& options) {
    StepResult result{.status = verdict == protocol::Verdict::stale            ? Status::stale
                                : verdict == protocol::Verdict::old_generation ? Status::old_generation
                                                                               : Status::not_needed,
                      .computed_at = computed_at_};
    // A stale replica catches up at once; one that the round does not need waits for the update.
    if (verdict == protocol::Verdict::not_needed) {
      const auto committed = [&] { return engine_->board().round.load(std::memory_order_acquire) != round_; };
      const StepResult after = wait(options, std::nullopt, committed,
                                    [&](const Control& control) { return control.round.id != round_; });
      if (after.status == Status::stopped) return after;
    } else {
      observe(options);
    }
    result.global_step = step_;
    return result;
  }

  /// Waits until the contribution's round has ended, or wants more of this replica.
  StepResult wait_for_outcome(const ApplyOptions& options, std::optional<std::uint32_t> seen) {
    bool open = false;
    const auto committed = [&] { return engine_->board().round.load(std::memory_order_acquire) != round_; };
    const StepResult ended = wait(options, seen, committed, [&](Control& control) {
      if (control.round.id != round_) return true;
      open = control.round.phase == protocol::Phase::collecting &&
             (control.round.has_quota(index()) || control.round.take_token(index()));
      return open;
    });
    if (ended.status == Status::stopped) return ended;
    pending_ = false;
    if (open) return round_is_open();
    const detail::Outcome outcome = engine().outcome(round_);
    staged_ = 0;
    engine().contribution(index(), 0).clear();
    engine().contribution(index(), 1).clear();
    return {.status = outcome.restored              ? Status::old_generation
                      : skipped_ || outcome.skipped ? Status::skipped
                      : outcome.applied             ? Status::accepted
                                                    : Status::accumulated,
            .global_step = step_,
            .contributions = outcome.contributions,
            .computed_at = computed_at_,
            .culprit = outcome.culprit};
  }

  /// A replacement whose place has been served already waits for the next round.
  void wait_until_admitted() {
    (void)wait(
        {}, std::nullopt, [] { return false; },
        [&](const Control& control) {
          return control.round.has_quota(index()) || control.round.ending != protocol::Ending::none;
        });
    engine().session().exclusive([&](Control& control) {
      sequence_ = control.round.places[static_cast<std::size_t>(index())].sequence;
    });
  }

  /// Sleeps and helps until `quick()` or, under exclusion, `done(control)`; then takes the variables as they
  /// are.
  /// @param seen the progress word before the caller looked at the state and found nothing to wait for yet.
  template <class Quick, class Done>
  StepResult wait(const ApplyOptions& options, std::optional<std::uint32_t> seen, Quick&& quick,
                  Done&& done) {
    const auto timeout = options.timeout.count() > 0 ? options.timeout : deadline_;
    std::optional<Deadline> deadline;
    std::optional<std::stop_callback<detail::Announce<Engine>>> wake_up;
    Clock::time_point since;
    const auto note_waiting = [&] {
      if (deadline)
        engine().waiting(index()).fetch_add((Clock::now() - since).count(), std::memory_order_relaxed);
    };
    for (;; seen.reset()) {
      if (!reads_snapshot() && quick()) {
        note_waiting();
        read_board();
        return {.status = Status::accepted, .global_step = step_};
      }
      bool is_done = false, busy = false;
      auto ending = protocol::Ending::none;
      int culprit = -1;
      const std::uint32_t before = seen ? *seen : engine().progress().seen();
      if (!seen) {
        engine().session().exclusive([&](Control& control) {
          protocol::Round& round = control.round;
          is_done = done(control) && (!reads_snapshot() || round.hold(index()));
          busy = round.phase == protocol::Phase::applying ||
                 (round.phase == protocol::Phase::closed && round.ending == protocol::Ending::none);
          ending = round.ending;
          culprit = round.culprit;
          if (is_done) take_note(control);
        });
      }
      if (is_done) {
        note_waiting();
        if (reads_snapshot()) take_snapshot();
        return {.status = Status::accepted, .global_step = step_};
      }
      if (busy && cooperates()) {
        guarded([&] { engine().advance(worker_); });
        if (engine().progress().seen() != before) continue;
      }
      if (stop_.stop_requested()) {
        note_waiting();
        throw Cancelled(detail::text("replica ", index(), ": cancelled while waiting in step ", step_));
      }
      if (ending != protocol::Ending::none && !busy) {
        note_waiting();
        return ended(ending, culprit);
      }
      if (!deadline) {
        since = Clock::now();
        deadline.emplace(timeout);
        if (stop_.stop_possible()) wake_up.emplace(stop_, detail::Announce<Engine>{engine_});
      } else if (deadline->passed()) {
        note_waiting();
        throw timed_out(timeout);
      }
      engine().session().wait(engine().progress(), before, deadline->end(), engine().replicas());
    }
  }

  /// User code that runs inside an update (schedules, hooks) fails the trainer.
  template <class F>
  void guarded(F&& f) {
    try {
      f();
    } catch (const std::exception& error) {
      engine().fail(index(), error.what());
      throw;
    } catch (...) {
      engine().fail(index(), "an exception that is no std::exception");
      throw;
    }
  }
  bool cooperates() const { return engine_->options().driver == Driver::cooperative; }

  StepResult ended(protocol::Ending ending, int culprit) {
    pending_ = false;
    staging_slot().clear();
    if (ending == protocol::Ending::stopped)
      return {.status = Status::stopped, .global_step = step_, .culprit = culprit};
    const std::string reason = engine().failure_reason();
    throw PeerFailed(detail::text("step ", step_, ": replica ", culprit, " failed",
                                  reason.empty() ? ": it has left" : ": " + reason, "; replica ", index(),
                                  " cannot go on"),
                     culprit);
  }

  TimeoutError timed_out(std::chrono::milliseconds timeout) {
    std::vector<Missing> missing = engine().missing();
    missing.erase(std::remove_if(missing.begin(), missing.end(),
                                 [&](const Missing& m) { return m.replica == index(); }),
                  missing.end());
    const std::string who = missing.empty() ? "the chief" : to_string(missing);
    return TimeoutError(
        detail::text("replica ", index(), " waited ", timeout.count(), " ms in step ", step_, " for: ", who),
        std::move(missing));
  }

  void observe(const ApplyOptions& options) {
    (void)wait(
        options, std::nullopt, [] { return false; },
        [](const Control& control) { return control.round.phase != protocol::Phase::applying; });
  }
  /// The variables that it computes with from now on are those of this moment.
  void take_note(const Control& control) {
    label_step_ = control.round.global_step;
    label_generation_ = control.round.generation;
    step_ = control.updater.window.global_step;
  }
  /// The same without exclusion, right after a commit: no update can start before this replica contributes
  /// again.
  void read_board() {
    const detail::Board& board = engine().board();
    label_step_ = board.round_step.load(std::memory_order_relaxed);
    label_generation_ = board.generation.load(std::memory_order_relaxed);
    step_ = board.step.load(std::memory_order_relaxed);
  }

  bool reads_snapshot() const {
    const SyncOptions& options = engine_->options();
    if (options.reading != Reading::automatic) return options.reading == Reading::snapshot;
    return options.replicas_to_aggregate < options.replicas() ||
           options.init_tokens > options.replicas_to_aggregate - options.replicas();
  }
  /// Copies the variables while a hold keeps them still.
  void take_snapshot() {
    const auto size = static_cast<std::size_t>(engine().updater().layout().size());
    snapshot_.resize(size);
    std::copy_n(engine().updater().values(), size, snapshot_.data());
    engine().session().exclusive([&](Control& control) { control.round.release(index()); });
    engine().announce();
    if (cooperates()) guarded([&] { engine().advance(worker_); });
  }

  Engine* engine_;
  std::chrono::milliseconds deadline_;
  std::stop_token stop_;
  detail::Worker<T, G> worker_;
  Contributors<T, G> scratch_;
  std::vector<T> snapshot_;
  int unwinding_;
  int staged_ = 0;        // slot that the next contribution is written to
  bool pending_ = false;  // a published contribution whose outcome is not known yet
  bool skipped_ = false;
  std::int64_t round_ = 0;
  std::int64_t computed_at_ = 0;
  std::int64_t label_step_ = 0;  // what its gradients were computed with, in terms of the round
  std::int64_t label_generation_ = 0;
  std::int64_t step_ = 0;
  std::int64_t sequence_ = 0;
};

LOCKSTEP_NAMESPACE_END
