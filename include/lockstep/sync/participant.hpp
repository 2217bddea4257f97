// SPDX-License-Identifier: MIT
/// @file
/// Somebody who waits for rounds: sleeps, helps with updates, and knows which variables it has seen.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/function_ref.hpp>
#include <lockstep/observe/observer.hpp>
#include <lockstep/optimizers/step_result.hpp>
#include <lockstep/sync/engine.hpp>
#include <lockstep/transport/fault_point.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {
template <class Engine>
struct Announce {
  Engine* engine;
  void operator()() const { engine->announce(); }
};

/// @tparam Engine the round engine that it takes part in.
template <class Engine>
class Participant {
 public:
  using T = typename Engine::Scalar;

  Participant(Engine& engine, int place, std::chrono::milliseconds deadline, std::stop_token stop)
      : engine_(&engine),
        deadline_(deadline),
        stop_(std::move(stop)),
        lease_(engine.session().lease(place)),
        worker_(place) {}

  /// Inside exclusion: from now on it is alive, until this object ends. False if another one is.
  bool take_lease() { return lease_.take(); }

  Engine& engine() const { return *engine_; }
  typename Engine::WorkerType& worker() { return worker_; }
  int index() const { return worker_.place; }
  /// Step of the variables that it sees, as the optimizer counts.
  std::int64_t step() const { return step_; }
  /// Updates that these variables have.
  std::int64_t updates() const { return updates_; }
  /// Their step, as rounds label gradients.
  std::int64_t label_step() const { return label_step_; }
  std::int64_t label_generation() const { return label_generation_; }
  /// First element of the variables as it sees them.
  const T* values() const { return snapshot_.empty() ? engine_->updater().values() : snapshot_.data(); }

  /// Sleeps and helps until `quick()` or, under exclusion, `done(control)`; then takes the variables as they
  /// are.
  /// @param seen the progress word before the caller looked at the state and found nothing to wait for yet.
  template <class Quick, class Done>
  StepResult wait(const ApplyOptions& options, std::optional<std::uint32_t> seen, const Quick& quick,
                  const Done& done) {
    if (reads_snapshot() || !quick()) return sleep_and_help(options, seen, quick, done);
    read_board();
    return {.status = Status::accepted, .global_step = step_};
  }

  // For the observer: from now on the program computes; it does not any more; it hands over what it has
  // computed, until the timer ends.
  void computes() { computing_ = engine_->span(index(), Activity::compute); }
  void stops_computing() { computing_.end(); }
  auto pushes() {
    stops_computing();
    return engine_->span(index(), Activity::push);
  }
  /// What `step()` returns, once the observer knows; the program computes then.
  template <class Step>
  StepResult observed(Step&& step) {
    const StepResult result = step();
    if constexpr (SeesSteps<typename Engine::ObserverType>) engine_->observer().on(StepEnd{index(), result});
    computes();
    return result;
  }

  /// Inside exclusion: no longer keeps the variables still, as the copy of them did that could not end it.
  void end_hold(Control& control) {
    if (std::exchange(holds_, false)) control.round.release(index());
  }

  bool cooperates() const { return engine_->options().driver == Driver::cooperative; }

  /// Takes the variables as they are, once no update is being written.
  StepResult observe(const ApplyOptions& options) {
    return wait(
        options, std::nullopt, [] { return false; },
        [](const Control& control) { return control.round.phase != protocol::Phase::applying; });
  }

 private:
  /// `wait` where there is something to wait for. Compiled once, whatever it is.
  StepResult sleep_and_help(const ApplyOptions& options, std::optional<std::uint32_t> seen,
                            FunctionRef<bool()> quick, FunctionRef<bool(Control&)> done) {
    const auto timeout = timeout_or("wait", options.timeout, deadline_);
    std::optional<Deadline> deadline;
    std::optional<std::stop_callback<detail::Announce<Engine>>> wake_up;
    Clock::time_point since;
    SpanTimer<typename Engine::ObserverType> sleeping;  // over all slices of a wait
    const auto note_waiting = [&] {
      if (deadline)
        engine_->waiting(index()).fetch_add((Clock::now() - since).count(), std::memory_order_relaxed);
    };
    for (;; seen.reset()) {
      if (!reads_snapshot() && quick()) {
        note_waiting();
        read_board();
        return {.status = Status::accepted, .global_step = step_};
      }
      bool is_done = false, helps = false;
      auto ending = protocol::Ending::none;
      int culprit = -1;
      const std::uint32_t before = seen ? *seen : engine_->progress().seen();
      if (!seen) {
        engine_->session().exclusive([&](Control& control) {
          protocol::Round& round = control.round;
          end_hold(control);
          // A plan that was taken becomes an update without another look at the holds.
          const bool may_hold = reads_snapshot() && control.is_quiet();
          is_done = (!reads_snapshot() || may_hold) && done(control) &&
                    (!may_hold || (holds_ = round.hold(index())));
          const Driver driver = engine_->options().driver;
          const bool busy = control.is_busy(driver);
          // Nobody can help with a hook; this one may have called it, and then could not go on.
          helps = busy && (control.committer == k_unclaimed || worker_.has(Task::commit, control.committer));
          if (!busy) ending = round.ending;
          culprit = round.culprit;
          if (is_done) take_note(control);
        });
      }
      if (is_done) {
        note_waiting();
        sleeping.end();
        if (reads_snapshot()) take_snapshot();
        return {.status = Status::accepted, .global_step = step_};
      }
      if (helps && cooperates()) {
        sleeping.end();
        engine_->crew().advance(worker_);
        if (engine_->progress().seen() != before) continue;
      }
      if (stop_.stop_requested()) {
        note_waiting();
        throw_error<Cancelled>(engine_->title(), "replica ", index(), ": cancelled while waiting in step ",
                               step_);
      }
      if (ending != protocol::Ending::none) {
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
      if (!sleeping.is_running()) sleeping = engine_->span(index(), Activity::wait);
      engine_->sleep(before, deadline->end());
    }
  }

  StepResult ended(protocol::Ending ending, int culprit) {
    if (ending == protocol::Ending::stopped)
      return {.status = Status::stopped, .global_step = step_, .culprit = culprit};
    throw PeerFailed(text(engine_->title(), "step ", step_, ": ", engine_->failure_text(culprit),
                          "; replica ", index(), " cannot go on"),
                     culprit);
  }

  TimeoutError timed_out(std::chrono::milliseconds timeout) {
    std::vector<Missing> missing = engine_->missing(index());
    const std::string who = missing.empty() ? engine_->visitor_title() : to_string(missing);
    return TimeoutError(text(engine_->title(), "replica ", index(), " waited ", timeout.count(),
                             " ms in step ", step_, " for: ", who),
                        std::move(missing));
  }

  /// The variables that it computes with from now on are those of this moment.
  void take_note(const Control& control) {
    label_step_ = control.round.global_step;
    label_generation_ = control.round.generation;
    step_ = control.updater.window.global_step;
    updates_ = control.updater.window.updates;
  }
  /// The same without exclusion, right after a commit: no update can start before this replica contributes
  /// again.
  void read_board() {
    const detail::Board& board = engine_->board();
    label_step_ = board.round_step.load(std::memory_order_relaxed);
    label_generation_ = board.generation.load(std::memory_order_relaxed);
    step_ = board.step.load(std::memory_order_relaxed);
    updates_ = board.updates.load(std::memory_order_relaxed);
  }

  bool reads_snapshot() const {
    const SyncOptions& options = engine_->options();
    if (options.reading != Reading::automatic) return options.reading == Reading::snapshot;
    return options.replicas_to_aggregate < options.replicas() ||
           options.init_tokens > options.replicas_to_aggregate - options.replicas();
  }
  /// Copies the variables while a hold keeps them still.
  void take_snapshot() {
    const auto size = static_cast<std::size_t>(engine_->updater().layout().size());
    auto copying = engine_->span(index(), Activity::snapshot);
    snapshot_.resize(size);
    std::copy_n(engine_->updater().values(), size, snapshot_.data());
    copying.end();
    fault_point("snapshot: copied");
    engine_->session().exclusive([&](Control& control) { end_hold(control); });
    engine_->announce();
    if (cooperates()) engine_->crew().advance(worker_);
  }

  Engine* engine_;
  std::chrono::milliseconds deadline_;
  std::stop_token stop_;
  decltype(std::declval<typename Engine::Session&>().lease(0)) lease_;
  typename Engine::WorkerType worker_;
  std::vector<T> snapshot_;
  bool holds_ = false;
  std::int64_t label_step_ = 0;
  std::int64_t label_generation_ = 0;
  std::int64_t step_ = 0;
  std::int64_t updates_ = 0;
  [[no_unique_address]] SpanTimer<typename Engine::ObserverType> computing_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
