// SPDX-License-Identifier: MIT
/// @file
/// The one waiting loop of the accumulators and the token queue.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/transport/wait.hpp>

#include <chrono>
#include <climits>
#include <cstdint>
#include <stop_token>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

enum class WaitEnd { settled, stopped, expired };

/// Who wait for each other at an accumulator or a queue, as far as it knows.
inline constexpr int k_giver_and_taker = 2;

/// Waits on `word` until `is_settled()`, a stop is requested or the deadline passes, whichever is seen first
/// in this order. Who changes what `is_settled` looks at bumps the word, then wakes.
template <class Session, class IsSettled>
WaitEnd await(Session& session, WaitWord& word, const Deadline& deadline, const std::stop_token& stop,
              IsSettled&& is_settled) {
  const auto rouse = [&] {
    word.bump();
    session.wake(word, INT_MAX);
  };
  const std::stop_callback on_stop(stop, rouse);
  while (true) {
    // Read before the look at the condition, so that a change after the look ends the wait.
    const std::uint32_t seen = word.seen();
    if (is_settled()) return WaitEnd::settled;
    if (stop.stop_requested()) return WaitEnd::stopped;
    if (deadline.passed()) return WaitEnd::expired;
    session.wait(word, seen, deadline.end(), k_giver_and_taker);
  }
}

inline long long milliseconds(const Deadline& deadline) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(deadline.timeout()).count();
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
