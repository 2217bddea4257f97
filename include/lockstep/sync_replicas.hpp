// SPDX-License-Identifier: MIT
/// @file
/// SyncReplicas: many replicas train as one.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/observe/observer.hpp>
#include <lockstep/optimizers/aggregation.hpp>
#include <lockstep/optimizers/step_result.hpp>
#include <lockstep/sync/engine.hpp>
#include <lockstep/sync/options.hpp>
#include <lockstep/sync/replica.hpp>
#include <lockstep/sync/replica_threads.hpp>
#include <lockstep/transport/in_process.hpp>
#include <lockstep/transport/transport.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Makes many replicas train as one: averages R contributions and applies them in one update of the wrapped
/// optimizer. The result has the same bits whatever the order of arrival and the number of threads:
/// contributions are added in the order of replica numbers.
/// @tparam R a rule, `PerVariable` of one, or `GradientAggregation` of these (then replicas exchange every
/// micro-batch).
/// @tparam Net models lockstep::Transport.
/// @tparam O models lockstep::Observer: is told what each replica does. `NoObserver` costs nothing.
/// @par Thread safety All members may be called from any thread; a replica belongs to one thread.
/// @par Cost of a step with R contributions of P elements: each contribution is read once, variables and
/// slots are read and written once; nothing else moves.
/// @par Source TensorFlow SyncReplicasOptimizer; differences: docs/coming-from-tensorflow.md.
template <class R, Transport Net = InProcess, class T = float, class G = T, Observer O = NoObserver>
requires Recipe<R, T>
class SyncReplicas {
 public:
  /// What loops see.
  using Replica = SyncReplica<R, Net, T, G, O>;

  /// @throws InvalidArgument for an option without meaning; UsageError if the variables are bound already.
  SyncReplicas(R recipe, Variables<T, G>& variables, const SyncOptions& options, const Net& net = {},
               O observer = {})
      : engine_(std::make_unique<Engine>(recipe, net, variables, options, std::move(observer))) {}

  /// Takes the lowest free replica number. @throws UsageError if all N have joined; as below.
  Replica join(std::stop_token stop = {}, std::chrono::milliseconds timeout = {}) {
    if constexpr (Net::k_survives_kill) {
      engine_->bury_the_dead();
      const std::vector<int> seats = engine_->session().seats_here(replicas());
      if (seats.size() == 1 && seats.front() >= 0) return join(seats.front(), std::move(stop), timeout);
    }
    for (;;) {
      const int place = engine_->session().exclusive([](const detail::Control& control) {
        for (int i = 0; i < control.round.total; ++i)
          if (control.round.places[static_cast<std::size_t>(i)].seat == protocol::Seat::vacant) return i;
        for (int i = 0; i < control.round.total; ++i)
          if (control.round.can_join(i)) return i;
        return -1;
      });
      if (place < 0)
        detail::throw_error<UsageError>(engine_->title(), "join: all ", replicas(),
                                        " replicas have joined already");
      try {
        return sit_down(place, stop, timeout);
      } catch (const detail::SeatTaken&) {  // another one was faster: the next place
      }
    }
  }
  /// Takes a certain replica number: at the start, or in place of one that has left. A replacement sees the
  /// current variables and waits for the next round if its place has contributed to this one.
  /// @param timeout longest wait of this call; 0: the trainer's deadline.
  /// @throws InvalidArgument if there is no such number; UsageError if somebody sits there; TimeoutError,
  /// Cancelled if there is no room for it in time; what the hook at the beginning throws.
  Replica join(int place, std::stop_token stop = {}, std::chrono::milliseconds timeout = {}) {
    expect_place("join", place);
    try {
      return sit_down(place, std::move(stop), timeout);
    } catch (const detail::SeatTaken& taken) {
      throw UsageError(taken.what());
    }
  }

  /// Runs `loop(replica)` on one thread per replica of this process and returns when these have ended. No
  /// thread outlives the call. They begin on different cores as far as there are enough, bound to none.
  /// @throws the first exception that left a loop, or SystemError if the system gives no thread; the other
  /// replicas have been told by `PeerFailed`.
  template <class F>
  void run(F&& loop, std::stop_token stop = {}) {
    const std::vector<int> seats = engine_->session().seats_here(replicas());
    if (static_cast<int>(seats.size()) == replicas()) start_over();  // all of them are here
    detail::run_replica_threads(engine_->title(), static_cast<int>(seats.size()),
                                [&](int i, const std::exception_ptr& no_thread) {
                                  const int place = seats[static_cast<std::size_t>(i)];
                                  Replica replica = place < 0 ? join(stop) : join(place, stop);
                                  try {
                                    if (no_thread) std::rethrow_exception(no_thread);
                                    loop(replica);    // may move it away; one without a seat does nothing
                                    replica.leave();  // NOLINT(clang-analyzer-cplusplus.Move)
                                  } catch (const std::exception& error) {
                                    replica.abandon(error.what());  // NOLINT(clang-analyzer-cplusplus.Move)
                                    throw;
                                  }
                                });
  }

  /// Forgets who has joined, left or failed, so that replicas may join anew. The variables, slots and
  /// counters stay.
  /// @throws UsageError while a replica is active; TimeoutError if an update under way does not end in time.
  void start_over(std::chrono::milliseconds timeout = {}) { engine_->start_over(timeout); }

  /// With `Driver::chief`: waits for the round to close and carries out its update.
  /// @throws TimeoutError with the replicas that are missing.
  std::int64_t chief_step(std::chrono::milliseconds timeout = {}, std::stop_token stop = {}) {
    return detail::drive_one_round(
        *engine_, detail::timeout_or("chief_step", timeout, engine_->options().deadline), stop);
  }

  /// N.
  int replicas() const { return engine_->replicas(); }
  /// Updates applied, from `SyncOptions::global_step`; or what the variant of a window inside counts.
  std::int64_t global_step() const {
    return engine_->session().exclusive(
        [](const detail::Control& control) { return control.updater.window.global_step; });
  }
  /// As given.
  const SyncOptions& options() const { return engine_->options(); }
  /// The one that was given, or what was moved from it.
  const O& observer() const { return engine_->observer(); }

  /// Counters of one replica number; cheap, at any time.
  /// @throws InvalidArgument if there is no such number.
  ReplicaStats stats(int place) const {
    expect_place("stats", place);
    ReplicaStats stats = engine_->session().exclusive([&](const detail::Control& control) {
      const protocol::Place& p = control.round.places.at(static_cast<std::size_t>(place));
      return ReplicaStats{.accepted = p.counters.accepted,
                          .stale = p.counters.stale,
                          .not_needed = p.counters.not_needed,
                          .skipped = p.counters.skipped,
                          .last_arrivals = p.counters.last_arrivals,
                          .incarnation = p.incarnation,
                          .local_step = p.local_step};
    });
    stats.waiting = std::chrono::nanoseconds(engine_->waiting(place).load(std::memory_order_relaxed));
    return stats;
  }

  // ---- saving

  /// Variables, slots, open window and counters of the last update, while replicas go on: an update waits for
  /// the copy.
  /// @throws TimeoutError if an update under way does not end within the deadline.
  Snapshot<T> snapshot(std::chrono::milliseconds timeout = {}) const {
    Snapshot<T> result;
    snapshot_into(result, timeout);
    return result;
  }
  /// The same into a snapshot that was there before, whose memory is used again: new memory costs several
  /// times what the copy costs.
  /// @throws as `snapshot`; what it holds then is of no use.
  void snapshot_into(Snapshot<T>& to, std::chrono::milliseconds timeout = {}) const {
    engine_->while_still(timeout, [&] {
      std::int64_t generation = 0;
      const UpdaterState state = engine_->session().exclusive([&](const detail::Control& control) {
        generation = control.round.generation;
        return control.updater;
      });
      engine_->updater().save(state, to);
      to.generation = generation;
    });
  }
  /// Goes on from a snapshot, of any trainer with the same variables and rule. Starts a new generation: what
  /// replicas have computed before gets `Status::old_generation`. No replica may be reading variables in
  /// place meanwhile.
  /// @throws LayoutMismatch if it is of other variables or another rule, InvalidArgument for counters that no
  /// training can have brought about, and nothing has changed then; TimeoutError if an update or readers do
  /// not end in time.
  void restore(const Snapshot<T>& snapshot, std::chrono::milliseconds timeout = {}) {
    engine_->restore(snapshot, timeout);
  }

  // ---- the wrapped optimizer

  /// The set that it trains.
  const Variables<T, G>& variables() const { return engine_->variables(); }
  /// Slots of the rule, then "grad_accum" if it aggregates.
  std::vector<std::string> slot_names() const { return engine_->updater().slot_names(); }
  /// Not while replicas are at work.
  template <class M>
  typename TensorTraits<M, T>::ConstView slot(std::string_view name, const Handle<M, T>& handle) const {
    variables().check(handle);
    return TensorTraits<M, T>::view(engine_->slot(name, handle.id) + handle.offset, handle.shape);
  }

 private:
  using Engine = detail::RoundEngine<R, Net, T, G, O>;

  /// @throws detail::SeatTaken, which tells that the next free number may be tried, and as `join`.
  Replica sit_down(int place, std::stop_token stop, std::chrono::milliseconds timeout) {
    detail::expect_timeout("join", timeout);
    return Replica(*engine_, place, timeout, engine_->options().deadline, std::move(stop));
  }
  void expect_place(const char* call, int place) const {
    if (place < 0 || place >= replicas())
      detail::throw_error<InvalidArgument>(engine_->title(), call, ": replica numbers are 0 to ",
                                           replicas() - 1, ", got ", place);
  }

  std::unique_ptr<Engine> engine_;
};

/// Deduces the scalars.
template <class R, class T, class G>
SyncReplicas(R, Variables<T, G>&, SyncOptions) -> SyncReplicas<R, InProcess, T, G>;
/// Deduces the transport and the scalars.
template <class R, class T, class G, Transport Net>
SyncReplicas(R, Variables<T, G>&, SyncOptions, Net) -> SyncReplicas<R, Net, T, G>;
/// Deduces the transport, the scalars and the observer.
template <class R, class T, class G, Transport Net, Observer O>
SyncReplicas(R, Variables<T, G>&, SyncOptions, Net, O) -> SyncReplicas<R, Net, T, G, O>;

LOCKSTEP_NAMESPACE_END
