// SPDX-License-Identifier: MIT
/// @file
/// A mutex between processes whose owner may die.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/wait.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Guards short sections only. What it guards must be whole at every instruction: after the death of an owner
/// the next one simply goes on. Zeroed memory is one that nobody holds.
///
/// Its word names the owner by a number that is never given out again and says nothing to the system, so it
/// serves processes that do not see each other's numbers, as those of different containers. Whether an owner
/// that lets nobody in is still there, is asked of the caller.
class RobustMutex {
 public:
  /// Owners have numbers from 1 to this.
  static constexpr std::uint32_t k_most_owners = (std::uint32_t{1} << 30) - 1;

  /// @param me number of the owner to be; threads of one process may share it.
  /// @param is_there `is_there(owner)`: false once an owner can no longer store.
  /// @return false if its owner is there and has not let go within `patience`.
  template <class IsThere>
  bool lock(std::uint32_t me, std::chrono::milliseconds patience, IsThere&& is_there) {
    return try_lock(me) || wait(me, patience, is_there);
  }
  void unlock() noexcept {
    // Who is killed before the wake leaves sleepers to their slices.
    const std::uint32_t was = word_.exchange(0, std::memory_order_release);
    if ((was & k_sleepers) != 0) wake_sleepers<Sharing::between_processes>(word_, 1);
    if ((was & k_starving) != 0) give_way();
  }

 private:
  static constexpr std::uint32_t k_sleepers = k_most_owners + 1;  ///< bit: who lets go wakes
  static constexpr std::uint32_t k_starving = 2 * k_sleepers;     ///< bit: who lets go gives way
  static constexpr int k_patient_tries = 4;

  static std::uint32_t owner_of(std::uint32_t word) { return word & k_most_owners; }

  /// One that comes back at once, as from a loop of long transitions, would always be faster than one that
  /// has to be woken. Until that one is here, or after a while.
  void give_way() noexcept {
    const Deadline deadline(std::chrono::milliseconds(2));
    while (word_.load(std::memory_order_relaxed) == 0 && !deadline.passed()) std::this_thread::yield();
  }

  bool try_lock(std::uint32_t as) {
    std::uint32_t free = 0;
    return word_.compare_exchange_strong(free, as, std::memory_order_acquire, std::memory_order_relaxed);
  }

  template <class IsThere>
  bool wait(std::uint32_t me, std::chrono::milliseconds patience, IsThere& is_there) {
    for (int i = 0; i < k_pauses && available_cores() > 1; ++i) {
      if (word_.load(std::memory_order_relaxed) == 0 && try_lock(me)) return true;
      pause();
    }
    const Deadline deadline(patience);
    // In slices: nobody tells of a death, and one who is woken and killed takes the wake with it. The mutex
    // is taken with the bit set: there may be other sleepers, and nobody else knows of them.
    const std::uint32_t mine = me | k_sleepers;
    std::chrono::nanoseconds slice = k_first_slice;
    for (int tries = 0;; ++tries) {
      std::uint32_t seen = word_.load(std::memory_order_relaxed);
      const std::uint32_t flags = k_sleepers | (tries < k_patient_tries ? 0 : k_starving);
      if (seen == 0 ? try_lock(mine) : outlives_owner(seen, flags, mine, slice, is_there)) return true;
      if (deadline.passed()) return try_lock(mine);
      slice = std::min<decltype(slice)>(2 * slice, k_slice);
    }
  }

  /// Sleeps for a slice, or until whom it has `seen` lets go. True if that one is dead and the mutex has
  /// passed on.
  template <class IsThere>
  bool outlives_owner(std::uint32_t seen, std::uint32_t flags, std::uint32_t mine,
                      std::chrono::nanoseconds slice, IsThere& is_there) {
    if ((seen & flags) != flags &&
        !word_.compare_exchange_strong(seen, seen | flags, std::memory_order_relaxed))
      return false;
    seen |= flags;
    sleep_on<Sharing::between_processes>(word_, seen, slice);
    if (word_.load(std::memory_order_relaxed) != seen || owner_of(seen) == owner_of(mine) ||
        is_there(owner_of(seen)))
      return false;
    // The dead come under no other number, so it is the same one still.
    if (!word_.compare_exchange_strong(seen, mine, std::memory_order_acquire, std::memory_order_relaxed))
      return false;
    fault_point("mutex: inherited");
    return true;
  }

  static constexpr std::chrono::milliseconds k_first_slice{1};

  std::atomic<std::uint32_t> word_{0};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace detail

LOCKSTEP_NAMESPACE_END
