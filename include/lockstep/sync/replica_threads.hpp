// SPDX-License-Identifier: MIT
/// @file
/// Threads for the replicas of one process, and the loop of a chief.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/sync/engine.hpp>

#include <chrono>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Calls `body(i)` for i in [0, count), each on its own thread, the last one on the caller's, and joins them
/// all.
/// @throws the exception that came first, but one that caused others (not PeerFailed) before one that was
/// caused.
template <class F>
void run_replica_threads(int count, F&& body) {
  std::mutex mutex;
  std::exception_ptr cause, consequence;
  const auto guarded = [&](int i) {
    try {
      body(i);
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
    for (int i = 0; i + 1 < count; ++i) threads.emplace_back(guarded, i);
    guarded(count - 1);
  }
  if (cause) std::rethrow_exception(cause);
  if (consequence) std::rethrow_exception(consequence);
}

/// Waits until the open round has closed and carries it out. Returns the global step after it.
template <class Engine>
std::int64_t drive_one_round(Engine& engine, std::chrono::milliseconds timeout, const std::stop_token& stop) {
  const Deadline deadline(timeout);
  typename Engine::WorkerType worker(0);
  const std::stop_callback wake_up(stop, [&] { engine.announce(); });
  const auto now = [&](Control& control) {
    return std::pair(control.round.id, control.updater.window.global_step);
  };
  const std::int64_t round = engine.session().exclusive(now).first;
  for (;;) {
    const std::uint32_t seen = engine.progress().seen();
    engine.advance(worker);
    const auto [id, step] = engine.session().exclusive(now);
    if (id != round) return step;
    if (stop.stop_requested()) throw Cancelled("chief_step: cancelled");
    if (deadline.passed()) {
      std::vector<Missing> missing = engine.missing();
      const std::string who = to_string(missing);
      throw TimeoutError(text("chief_step: waited ", timeout.count(), " ms for: ", who), std::move(missing));
    }
    engine.session().wait(engine.progress(), seen, deadline.end(), engine.replicas());
  }
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
