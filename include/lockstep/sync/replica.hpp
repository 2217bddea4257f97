// SPDX-License-Identifier: MIT
/// @file
/// One replica of a synchronous trainer: contributes, waits, learns what happened.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/merge.hpp>
#include <lockstep/optimizers/float_environment.hpp>
#include <lockstep/optimizers/gradient_access.hpp>
#include <lockstep/sync/offer.hpp>
#include <lockstep/sync/participant.hpp>
#include <lockstep/transport/fault_point.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {
/// Somebody else sits at the place.
struct SeatTaken : UsageError {
  using UsageError::UsageError;
};
}  // namespace detail

/// A seat at a `SyncReplicas` trainer, made by its `join()`. Leaves when it is destroyed; when an exception
/// destroys it, the others get `PeerFailed`.
/// @par Thread safety One thread at a time; different replicas on different threads.
template <class R, class Net, class T, class G, class O>
class SyncReplica : public GradientAccess<SyncReplica<R, Net, T, G, O>, T, G> {
  using Engine = detail::RoundEngine<R, Net, T, G, O>;
  using Participant = detail::Participant<Engine>;
  using Control = detail::Control;
  using Pending = detail::Pending;

 public:
  /// Used by `SyncReplicas::join`.
  SyncReplica(Engine& engine, int place, std::chrono::milliseconds timeout,
              std::chrono::milliseconds deadline, std::stop_token stop)
      : me_(std::make_unique<Participant>(engine, place, deadline, std::move(stop))),
        place_(place),
        unwinding_(std::uncaught_exceptions()) {
    engine.session().exclusive([&](Control& control) {
      (void)engine.bury(control, place);  // who sat there and died
      if (!control.round.can_join(place) || !me().take_lease())
        detail::throw_error<detail::SeatTaken>(engine.title(), "join: replica ", place,
                                               " has joined already");
      control.round.join(place);
      find_free_slot(control);
      const bool holds_other = control.round.places[static_cast<std::size_t>(place)].published == 1 - staged_;
      if (!holds_other) engine.contribution(place, 1 - staged_).reset();
    });
    detail::fault_point("join: seated");
    engine.announce();
    staging_slot().reset();
    try {
      wait_until_admitted({.timeout = timeout});
    } catch (...) {
      engine.session().exclusive([&](Control& control) { control.round.leave(place); });
      engine.announce();
      throw;
    }
    if (engine.options().hooks.begin) engine.guarded(place, [&] { engine.options().hooks.begin(place); });
    me().computes();
  }

  /// Takes over the seat; the other one has none any more.
  SyncReplica(SyncReplica&&) noexcept = default;
  SyncReplica& operator=(SyncReplica&&) = delete;

  ~SyncReplica() {
    if (!me_ || engine().is_in_forked_child()) return;  // the seat is the parent's
    try {
      if (std::uncaught_exceptions() > unwinding_) {
        me().stops_computing();  // before another one may have its number
        engine().fail(index(), "an exception ended its loop");
        return;
      }
      leave();
    } catch (...) {  // the others are told; whoever wants to know calls leave()
    }
  }

  // ---- where it is

  /// Its replica number.
  int index() const { return me().index(); }
  /// Step of the variables that this replica sees.
  std::int64_t global_step() const { return me().step(); }
  /// Updates that the variables have which this replica sees.
  std::int64_t updates() const { return me().updates(); }
  /// Batches in accepted contributions at this replica number so far, over all who sat there: the key for the
  /// next batch.
  std::int64_t sequence() const { return sequence_; }
  /// The set that it trains.
  const Variables<T, G>& variables() const { return engine().variables(); }
  /// Slots of the wrapped optimizer.
  std::vector<std::string> slot_names() const { return engine().updater().slot_names(); }

  // ---- the step

  /// Contributes this step's gradients and waits until this replica may go on: for the update, unless the
  /// open round wants another contribution of it (`StepResult::round_open`).
  /// @throws NoGradients, InvalidArgument (nothing has happened then); TimeoutError with who is missing, or
  /// Cancelled (the contribution stands: `resume()` or `withdraw()`, which leaving does too); PeerFailed.
  StepResult apply_gradients(const ApplyOptions& options = {}) {
    expect_free("apply_gradients");
    detail::expect_options(options);
    Contribution<G>& staged = staging_slot();
    if (staged.is_empty())
      detail::throw_error<NoGradients>(engine().title(), "apply_gradients: replica ", index(),
                                       " has no gradient for any variable in step ", me().step());
    staged.header().unit = staged.header().total = options.weight;
    return me().observed([&] { return contribute(options, 1); });
  }

  /// For a wrapper that has merged the gradients of several batches into the contribution: its header is
  /// final already.
  StepResult apply_merged(const ApplyOptions& options, std::int64_t batches) {
    expect_free("apply_gradients");
    return me().observed([&] { return contribute(options, batches); });
  }

  /// Goes on after a TimeoutError or Cancelled: with what has not reached the round yet, or waits on.
  StepResult resume(const ApplyOptions& options = {}) {
    detail::expect_options(options, "resume");
    expect_pending("resume");
    return me().observed([&] { return in_doubt([&] { return go_on(options); }); });
  }
  /// After a TimeoutError or Cancelled: takes the contribution back. False if the round has closed:
  /// `resume()` then. One that was refused is gone.
  bool withdraw() {
    expect_pending("withdraw");
    const bool taken = pending_ != Pending::outcome || engine().session().exclusive([&](Control& control) {
      if (control.round.id != round_ || !control.round.withdraw(index())) return false;
      find_free_slot(control);
      sequence_ = control.round.places[static_cast<std::size_t>(index())].sequence;
      return true;
    });
    if (!taken) return false;
    pending_ = Pending::nothing;
    staging_slot().clear();
    me().computes();
    return true;
  }

  /// Its loop has failed: the others get `PeerFailed` with the reason.
  void abandon(const std::string& reason) {
    if (!me_) return;
    me().stops_computing();
    engine().fail(index(), reason);
    me_.reset();
  }

  /// No more data: the others go on as the departure policy says. All views end.
  /// @throws what the hook at the end throws, or a schedule in a round that its leaving closes. It has left
  /// all the same, and the others get `PeerFailed`.
  void leave() {
    if (!me_) return;
    const std::unique_ptr<Participant> leaving = std::move(me_);
    depart(*leaving);
  }

  // ---- for GradientAccess and wrappers

  /// First element of the variables as this replica sees them.
  const T* values() const { return me().values(); }
  /// What the next gradients are written to. @throws UsageError while a contribution is pending.
  Contribution<G>& staging() {
    expect_free("gradient");
    return staging_slot();
  }
  /// First element of a slot array in which variable `id` may be read. @throws UnknownVariable
  const T* slot_data(std::string_view name, std::uint32_t id) const { return engine().slot(name, id); }
  /// Over the contributions of an update.
  Reduction reduction() const { return engine().options().reduction; }

 private:
  Participant& me() const {
    if (!me_) refuse_as_left();
    return *me_;
  }
  /// Apart, so that what every call looks at first is inlined.
  [[noreturn]] void refuse_as_left() const {
    detail::throw_error<UsageError>("replica ", place_, " has left");
  }
  Engine& engine() const { return me().engine(); }
  /// The next contribution is written to the slot that the round does not hold.
  void find_free_slot(const Control& control) {
    staged_ = control.round.places[static_cast<std::size_t>(index())].published == 0 ? 1 : 0;
  }
  Contribution<G>& staging_slot() { return engine().contribution(index(), staged_); }

  void expect_pending(const char* call) {
    if (pending_ == Pending::nothing)
      detail::throw_error<UsageError>(engine().title(), call, ": replica ", index(),
                                      " has no pending contribution");
  }
  void expect_free(const char* call) {
    if (pending_ != Pending::nothing)
      detail::throw_error<UsageError>(
          call, ": the contribution of replica ", index(),
          " is still pending after a timeout or a cancellation; call resume() or withdraw() first");
  }

  void depart(Participant& leaving) {
    leaving.stops_computing();
    Engine& engine = leaving.engine();
    engine.session().exclusive([&](Control& control) {
      if (pending_ == Pending::outcome && control.round.id == round_) control.round.withdraw(place_);
      control.round.leave(place_);
    });
    engine.announce();
    if (leaving.cooperates()) engine.crew().advance(leaving.worker());  // a round that its leaving has closed
    if (engine.options().hooks.end) engine.guarded(place_, [&] { engine.options().hooks.end(place_); });
  }

  StepResult contribute(const ApplyOptions& options, std::int64_t batches) {
    engine().expect_own_process();  // what is offered in a child is pending nowhere
    auto pushing = me().pushes();
    offer_ = detail::prepare_offer(staging_slot(), engine().non_finite(),
                                   engine().options().clip_contribution_norm);
    offer_.batches = batches;
    offer_.flush = options.flush;
    pending_ = Pending::offer;
    return in_doubt([&] { return offer(options, pushing); });
  }

  StepResult go_on(const ApplyOptions& options) {
    switch (pending_) {
      case Pending::offer: {
        auto pushing = me().pushes();
        return offer(options, pushing);
      }
      case Pending::refusal:
        return wait_after_refusal(options);
      default:
        return wait_for_outcome(options, std::nullopt);
    }
  }
  /// Offers what is staged to the open round: for the first time, or because the session could not be
  /// entered.
  template <class Timer>
  StepResult offer(const ApplyOptions& options, Timer& pushing) {
    const auto slot = offer_.is_finite ? static_cast<std::int8_t>(staged_) : protocol::k_unpublished;
    for (;;) {
      bool must_merge = false, plans = false, open = false, waits = false, calls_chief = false;
      std::int64_t open_round = 0;
      const std::uint32_t seen = engine().progress().seen();
      engine().session().exclusive([&](Control& control) {
        protocol::Round& round = control.round;
        protocol::Place& place = round.places[static_cast<std::size_t>(index())];
        me().end_hold(control);
        must_merge = offer_.is_finite && place.published != protocol::k_unpublished &&
                     place.published != staged_ && offer_.merged_in != round.id && round.has_quota(index());
        open_round = round.id;
        if (must_merge) return;
        round.label(index(), me().label_step(), me().label_generation());
        // What was merged for a round that has ended is in that round already, and cannot be taken apart.
        const bool is_in = offer_.merged_in >= 0 && offer_.merged_in != round.id;
        verdict_ =
            is_in ? round.refuse(index()) : round.contribute(index(), slot, offer_.poisons, offer_.batches);
        sequence_ = place.sequence;
        if (verdict_ != protocol::Verdict::accepted) return;
        if (offer_.flush) control.flush = true;
        plans = me().cooperates() && round.phase == protocol::Phase::closed &&
                engine().crew().take_plan(control, me().worker());
        calls_chief = !me().cooperates() && round.phase == protocol::Phase::closed;
        waits = round.is_collecting();
        open = waits && (round.has_quota(index()) || round.take_token(index()));
      });
      if (must_merge) {
        const FloatEnvironment same_everywhere;
        merger_(engine().contribution(index(), 1 - staged_), staging_slot());
        offer_.merged_in = open_round;
        continue;
      }
      pushing.end();
      round_ = open_round;
      computed_at_ = me().step();
      if (verdict_ != protocol::Verdict::accepted) {
        staging_slot().clear();
        pending_ = Pending::refusal;
        return wait_after_refusal(options);
      }
      if (offer_.is_finite) staged_ = 1 - staged_;
      pending_ = open ? Pending::nothing : Pending::outcome;
      if (plans) engine().crew().carry_out(me().worker());
      if (calls_chief) engine().announce();
      return open ? round_is_open() : wait_for_outcome(options, waits ? std::optional(seen) : std::nullopt);
    }
  }

  /// The round waits for another contribution of this replica: the variables are as they were.
  StepResult round_is_open() {
    staging_slot().clear();
    return {.status = offer_.is_finite ? Status::accepted : Status::skipped,
            .global_step = me().step(),
            .round_open = true,
            .computed_at = computed_at_};
  }

  /// A stale replica catches up at once; one that the round does not need waits for the update, or until it
  /// is needed after all because another one has left.
  StepResult wait_after_refusal(const ApplyOptions& options) {
    const auto committed = [&] { return engine().board().round.load(std::memory_order_acquire) > round_; };
    const auto needed = [&](const Control& control) {
      return control.round.id != round_ || control.round.has_quota(index());
    };
    const StepResult after = verdict_ == protocol::Verdict::not_needed
                                 ? me().wait(options, std::nullopt, committed, needed)
                                 : me().observe(options);
    pending_ = Pending::nothing;
    if (verdict_ == protocol::Verdict::not_needed && after.status == Status::stopped) return after;
    return {.status = verdict_ == protocol::Verdict::stale            ? Status::stale
                      : verdict_ == protocol::Verdict::old_generation ? Status::old_generation
                                                                      : Status::not_needed,
            .global_step = me().step(),
            .computed_at = computed_at_};
  }

  /// Waits until the contribution's round has ended, or wants more of this replica.
  StepResult wait_for_outcome(const ApplyOptions& options, std::optional<std::uint32_t> seen) {
    bool open = false;
    std::uint64_t packed = 0;  // a word, because a struct would go through memory by its bytes
    const auto committed = [&] {
      const detail::Board& board = engine().board();
      if (board.round.load(std::memory_order_acquire) <= round_) return false;  // it may be behind
      packed = board.outcome(round_);
      return true;
    };
    const StepResult ended = me().wait(options, seen, committed, [&](Control& control) {
      if (control.round.id != round_) {
        packed = control.outcome(round_);
        return true;
      }
      open = control.round.has_quota(index()) || control.round.take_token(index());
      return open;
    });
    pending_ = Pending::nothing;
    if (ended.status == Status::stopped) return ended;
    if (open) return round_is_open();
    staged_ = 0;
    engine().contribution(index(), 0).clear();
    engine().contribution(index(), 1).clear();
    const auto outcome = detail::Outcome::unpacked(packed, round_);
    return {.status = outcome.restored                       ? Status::old_generation
                      : !offer_.is_finite || outcome.skipped ? Status::skipped
                      : outcome.applied                      ? Status::accepted
                                                             : Status::accumulated,
            .global_step = me().step(),
            .contributions = outcome.contributions,
            .computed_at = computed_at_,
            .culprit = outcome.culprit};
  }

  /// A step with a contribution that is not settled: it stands after a timeout, a cancellation or what a hook
  /// or schedule throws here; it is gone after a failure of others.
  template <class Step>
  StepResult in_doubt(Step&& step) {
    try {
      return step();
    } catch (const PeerFailed&) {
      pending_ = Pending::nothing;
      staging_slot().clear();
      throw;
    }
  }

  /// The first replica writes the initial values, if they are not there; all others wait for them. A
  /// replacement whose place has been served already waits for the next round.
  void wait_until_admitted(const ApplyOptions& options) {
    bool writes = true;
    while (writes) {
      (void)me().wait(
          options, std::nullopt, [] { return false; },
          [&](Control& control) {
            writes = !control.initialised && !control.restoring &&
                     control.initialiser == detail::k_unclaimed && control.round.first_expected() == index();
            if (writes) control.initialiser = index();
            return writes || control.round.ending != protocol::Ending::none ||
                   (control.initialised && control.round.has_quota(index()));
          });
      if (writes) engine().start_training();
    }
    engine().session().exclusive([&](const Control& control) {
      sequence_ = control.round.places[static_cast<std::size_t>(index())].sequence;
      if constexpr (Net::k_survives_kill)
        if (control.initialised) engine().show_values();
    });
  }

  std::unique_ptr<Participant> me_;
  detail::Merger<T, G> merger_;
  int place_;
  int unwinding_;
  int staged_ = 0;       // slot that the next contribution is written to
  detail::Offer offer_;  // the last one
  Pending pending_ = Pending::nothing;
  protocol::Verdict verdict_ = protocol::Verdict::accepted;
  std::int64_t round_ = 0;
  std::int64_t computed_at_ = 0;
  std::int64_t sequence_ = 0;
};

LOCKSTEP_NAMESPACE_END
