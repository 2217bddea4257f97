// SPDX-License-Identifier: MIT
/// @file
/// Knows a forked child from the process that it was copied from.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <atomic>
#include <cstdint>

#if __has_include(<pthread.h>)
#include <pthread.h>
#endif

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Grows by one in each child that `fork` makes, once somebody has asked for it.
inline std::atomic<std::uint64_t> forks{0};

inline bool watch_forks() {
#if __has_include(<pthread.h>)
  if (const int error =
          ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); }))
    throw SystemError("pthread_atfork: " + reason(error));
#endif
  return true;
}

}  // namespace detail

/// Number of forks that lie between the first call and this process: a child has another one than its parent.
/// Children of `vfork`, `posix_spawn` and bare `clone` are not counted; they do not run code of this library.
/// @throws SystemError if the C library cannot watch forks.
inline std::uint64_t fork_generation() {
  static const bool watching = detail::watch_forks();
  (void)watching;
  return detail::forks.load(std::memory_order_relaxed);
}

/// Remembers in which process it was made. Threads that held a lock at the fork do not exist in the child, so
/// it must not touch what its parent shares between threads, nor give back what is still its parent's.
class ForkGuard {
 public:
  /// @throws SystemError as `fork_generation`.
  ForkGuard() : made_in_(fork_generation()) {}

  /// Costs one load.
  bool is_in_child() const noexcept { return detail::forks.load(std::memory_order_relaxed) != made_in_; }
  /// @throws UsageError in a child of the process that made it.
  void expect_own_process(const char* subject) const {
    if (is_in_child())
      throw UsageError(detail::text(
          subject, ": made before a fork, this belongs to the parent; make a new one in the child"));
  }

 private:
  std::uint64_t made_in_;
};

LOCKSTEP_NAMESPACE_END
