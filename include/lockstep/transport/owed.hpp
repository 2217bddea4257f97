// SPDX-License-Identifier: MIT
/// @file
/// Clean-ups that a process could not do when it should, since somebody had stopped inside the session.
#pragma once

#include <lockstep/config.hpp>

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// @brief What a process still has to do to a shared state, in order.
///
/// A transition does it first and forgets it as its last action, so a transition that throws, which commits
/// nothing, leaves it to the next one.
/// @par Thread safety `add` from any thread; the other functions inside the exclusion.
template <class State>
class Owed {
 public:
  void add(std::function<void(State&)> action) {
    const std::lock_guard lock(mutex_);
    actions_.push_back(std::move(action));
    is_any_.store(true, std::memory_order_relaxed);
  }
  /// @return how many there were, for `forget`.
  std::size_t do_all(State& state) {
    if (!is_any_.load(std::memory_order_relaxed)) return 0;
    const std::lock_guard lock(mutex_);
    for (const auto& action : actions_) action(state);
    return actions_.size();
  }
  void forget(std::size_t count) {
    if (count == 0) return;
    const std::lock_guard lock(mutex_);
    actions_.erase(actions_.begin(), actions_.begin() + static_cast<std::ptrdiff_t>(count));
    is_any_.store(!actions_.empty(), std::memory_order_relaxed);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> is_any_{false};
  std::vector<std::function<void(State&)>> actions_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
