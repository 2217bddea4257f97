// SPDX-License-Identifier: MIT
/// @file
/// A mutex between processes whose owner may die.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/wait.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>

#if defined(__linux__)

#include <pthread.h>
#include <time.h>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Guards short sections only. What it guards must be whole at every instruction: after the death of an owner
/// the next one simply goes on.
class RobustMutex {
 public:
  /// @throws SystemError. Once, by whoever makes the memory that it lies in.
  void initialise() {
    pthread_mutexattr_t attributes;
    if (::pthread_mutexattr_init(&attributes) != 0 ||
        ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) != 0 ||
        ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) != 0 ||
        ::pthread_mutex_init(&mutex_, &attributes) != 0)
      throw SystemError("pthread_mutex: no robust mutexes between processes on this system");
    ::pthread_mutexattr_destroy(&attributes);
  }

  /// False if it cannot be one that `initialise` has made: the C library ends programs that lock others.
  bool is_intact() const {
#if defined(__GLIBC__)
    RobustMutex fresh;
    fresh.initialise();
    return mutex_.__data.__kind == fresh.mutex_.__data.__kind;
#else
    return true;
#endif
  }

  /// False if its owner has not let go within `patience`.
  bool lock(std::chrono::milliseconds patience) {
    int error = ::pthread_mutex_trylock(&mutex_);
    // In slices: one who is woken and killed before it has the mutex takes the wake with it, and whoever has
    // the mutex by then does not know of those who still sleep.
    while ((error == EBUSY || error == ETIMEDOUT) && patience.count() > 0) {
      const auto slice = std::min(patience, k_slice);
      error = lock_within(slice);
      patience -= slice;
    }
    if (error == EOWNERDEAD) {
      fault_point("mutex: inherited");
      error = ::pthread_mutex_consistent(&mutex_);
    }
    if (error == ETIMEDOUT) return false;
    if (error != 0) throw SystemError(text("robust mutex: error ", error));
    return true;
  }
  void unlock() noexcept { ::pthread_mutex_unlock(&mutex_); }

 private:
  int lock_within(std::chrono::milliseconds slice) {
    timespec until{};
    ::clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += static_cast<time_t>(slice.count() / 1000);
    until.tv_nsec += static_cast<long>(slice.count() % 1000) * 1'000'000;
    until.tv_sec += until.tv_nsec / 1'000'000'000;
    until.tv_nsec %= 1'000'000'000;
    return ::pthread_mutex_timedlock(&mutex_, &until);
  }

  pthread_mutex_t mutex_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END

#endif  // Linux
