// SPDX-License-Identifier: MIT
/// @file
/// Threads for the replicas of one process, and the loop of a chief.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/function_ref.hpp>
#include <lockstep/sync/engine.hpp>
#include <lockstep/transport/core_claims.hpp>
#include <lockstep/transport/start_thread.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Calls `body(i, nullptr)` for i in [0, count), each on its own thread, the last one on the caller's, and
/// joins them all. They begin on cores of their own, as far as there are enough. If the system gives no
/// thread, the caller's calls `body(i, why)` instead: replica i is to join and to fail with that, so that
/// those who are there do not wait for it. No further one is started.
/// @param title what error texts begin with.
/// @throws the exception that came first, but one that caused others (not PeerFailed) before one that was
/// caused; SystemError if the system gives no thread.
inline void run_replica_threads(const std::string& title, int count,
                                FunctionRef<void(int, const std::exception_ptr&)> body) {
  std::mutex mutex;
  std::exception_ptr cause, consequence;
  CoreClaims cores;
  const auto guarded = [&](int i, const std::exception_ptr& no_thread) {
    cores.claim();
    try {
      body(i, no_thread);
    } catch (const PeerFailed&) {
      const std::lock_guard lock(mutex);
      if (!consequence) consequence = std::current_exception();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!cause) cause = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(count - 1));
    std::exception_ptr no_thread;
    int next = 0;
    try {
      for (; next + 1 < count; ++next)
        threads.push_back(
            start_thread(title + "run", next + 1, count - 1, [&, next] { guarded(next, nullptr); }));
    } catch (...) {
      no_thread = std::current_exception();
    }
    guarded(next, no_thread);
  }
  if (cause) std::rethrow_exception(cause);
  if (consequence) std::rethrow_exception(consequence);
}

/// Waits until the open round has closed and carries it out, and no other one. Returns the global step after
/// it.
/// @throws PeerFailed or Cancelled if no round will be completed any more; TimeoutError; what a schedule or
/// hook throws, and then the replicas are told.
template <class Engine>
std::int64_t drive_one_round(Engine& engine, std::chrono::milliseconds timeout, const std::stop_token& stop) {
  const Deadline deadline(timeout);
  typename Engine::Visitor visitor(engine);
  const std::stop_callback wake_up(stop, [&] { engine.announce(); });
  struct Now {
    std::int64_t round, step;
    protocol::Ending ending;
    int culprit;
  };
  const auto look = [](const Control& control) {
    return Now{control.round.id, control.updater.window.global_step, control.round.ending,
               control.round.culprit};
  };
  const std::int64_t round = engine.session().exclusive(look).round;
  for (;;) {
    const std::uint32_t seen = engine.progress().seen();
    const bool has_work = engine.session().exclusive([&](Control& control) {
      return (control.wants_plan(engine.options().driver) ||
              control.round.phase == protocol::Phase::applying) &&
             visitor.enter(control);
    });
    if (has_work) {
      engine.crew().advance(visitor.worker, round);
      visitor.leave();
    }
    const Now now = engine.session().exclusive(look);
    if (now.round != round) return now.step;
    if (now.ending == protocol::Ending::failed)
      throw PeerFailed(text(engine.title(), "chief_step: ", engine.failure_text(now.culprit)), now.culprit);
    if (now.ending == protocol::Ending::stopped)
      throw_error<Cancelled>(engine.title(), "chief_step: training has ended, replica ", now.culprit,
                             " has left");
    if (stop.stop_requested()) throw Cancelled(engine.title() + "chief_step: cancelled");
    if (deadline.passed()) {
      std::vector<Missing> missing = engine.missing();
      const std::string who = to_string(missing);
      throw TimeoutError(text(engine.title(), "chief_step: waited ", timeout.count(), " ms for: ", who),
                         std::move(missing));
    }
    engine.sleep(seen, deadline.end());
  }
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
