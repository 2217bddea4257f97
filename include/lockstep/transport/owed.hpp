// SPDX-License-Identifier: MIT
/// @file
/// Clean-ups that a process could not do when it should, since somebody had stopped inside the session.
#pragma once

#include <lockstep/config.hpp>

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
  }
  /// @return how many there were, for `forget`.
  std::size_t do_all(State& state) {
    const std::lock_guard lock(mutex_);
    for (const auto& action : actions_) action(state);
    return actions_.size();
  }
  void forget(std::size_t count) {
    if (count == 0) return;
    const std::lock_guard lock(mutex_);
    actions_.erase(actions_.begin(), actions_.begin() + static_cast<std::ptrdiff_t>(count));
  }

 private:
  std::mutex mutex_;
  std::vector<std::function<void(State&)>> actions_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
