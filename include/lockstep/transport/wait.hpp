// SPDX-License-Identifier: MIT
/// @file
/// Waiting on a word of memory with a deadline: a short spin, some yields, then the kernel.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

LOCKSTEP_NAMESPACE_BEGIN

/// What deadlines are measured with: it never goes backwards.
using Clock = std::chrono::steady_clock;

/// How long a blocking call may last when the caller does not say.
inline constexpr std::chrono::milliseconds k_default_deadline = std::chrono::minutes(3);

/// The longest wait of a call: any duration, of which a year or more means without end.
class Timeout {
 public:
  /// Without end.
  static constexpr std::chrono::nanoseconds k_longest = std::chrono::hours(24 * 365);

  /// Durations that have no place in nanoseconds, such as `milliseconds::max()`, are cut to a year.
  template <class Rep, class Period>
  constexpr Timeout(std::chrono::duration<Rep, Period> duration) {
    const std::chrono::duration<double> seconds = duration;  // which hold any, though not to the last digit
    if (seconds >= k_longest)
      duration_ = k_longest;
    else if (seconds <= -k_longest)
      duration_ = -k_longest;
    else
      duration_ = std::chrono::duration_cast<std::chrono::nanoseconds>(duration);
  }
  /// At most a year.
  constexpr std::chrono::nanoseconds duration() const { return duration_; }

 private:
  std::chrono::nanoseconds duration_{};
};

/// A moment after which a wait gives up. Durations must be positive.
class Deadline {
 public:
  /// @param timeout longest wait from now. @throws InvalidArgument unless it is positive.
  explicit Deadline(Timeout timeout)
      : timeout_(timeout.duration()),
        end_(timeout_ < Timeout::k_longest ? Clock::now() + timeout_ : Clock::time_point::max()) {
    if (timeout_ <= std::chrono::nanoseconds::zero())
      throw InvalidArgument(
          detail::text("deadline: must be positive, got ",
                       std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count(), " ms"));
  }
  /// The moment is over.
  bool passed() const { return Clock::now() >= end_; }
  /// The moment.
  Clock::time_point end() const { return end_; }
  /// The duration that it was made from, at most a year.
  std::chrono::nanoseconds timeout() const { return timeout_; }

 private:
  std::chrono::nanoseconds timeout_;
  Clock::time_point end_;
};

/// A word that replicas wait on. Whoever changes what a waiter looks for bumps it, then wakes.
struct alignas(k_alignment) WaitWord {
  /// Changes whenever there may be something new to see.
  std::atomic<std::uint32_t> value{0};

  /// The value now, to be given to a wait.
  std::uint32_t seen() const { return value.load(std::memory_order_acquire); }
  /// Pairs with `seen`: what was written before the bump is visible to who sees the new value.
  void bump() { value.fetch_add(1, std::memory_order_seq_cst); }

  /// Number of threads asleep in the kernel: a waker makes no system call while it is zero.
  std::atomic<std::uint32_t> sleepers{0};
};

/// Who else may wait on a word: threads of this process only, or other processes too.
enum class Sharing { in_process, between_processes };

namespace detail {

LOCKSTEP_ALWAYS_INLINE void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

#if defined(__linux__)
template <Sharing sharing>
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::nanoseconds at_most) {
  constexpr int operation = sharing == Sharing::in_process ? FUTEX_WAIT_PRIVATE : FUTEX_WAIT;
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(at_most.count() / 1'000'000'000);
  limit.tv_nsec = static_cast<long>(at_most.count() % 1'000'000'000);
  ::syscall(SYS_futex, &word, operation, seen, &limit, nullptr, 0);
}

template <Sharing sharing>
void wake_sleepers(std::atomic<std::uint32_t>& word, int count) {
  constexpr int operation = sharing == Sharing::in_process ? FUTEX_WAKE_PRIVATE : FUTEX_WAKE;
  ::syscall(SYS_futex, &word, operation, count, nullptr, nullptr, 0);
}
#else
template <Sharing>
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::nanoseconds at_most) {
  if (word.load() == seen)
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(at_most, std::chrono::microseconds(50)));
}
template <Sharing>
void wake_sleepers(std::atomic<std::uint32_t>&, int) {}
#endif

/// No sleep is longer than this, so that a lost wake or a death is noticed.
inline constexpr std::chrono::milliseconds k_slice{25};
inline constexpr int k_pauses = 64;
inline constexpr int k_yields = 32;

}  // namespace detail

/// Cores that this process may use, asked once.
inline int available_cores() {
  static const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return cores;
}

/// Returns when `word` no longer has the value `seen`, after one slice of sleep, or at the deadline.
/// May return early: the caller looks at its condition again and calls once more.
/// @param spins whether a core is free for a short spin; false when those who wait for each other outnumber
/// the cores.
template <Sharing sharing>
void wait_for_change(WaitWord& word, std::uint32_t seen, Clock::time_point deadline, bool spins) {
  if (spins) {
    for (int i = 0; i < detail::k_pauses; ++i) {
      if (word.seen() != seen) return;
      detail::pause();
    }
  }
  for (int i = 0; i < detail::k_yields; ++i) {
    if (word.seen() != seen) return;
    std::this_thread::yield();
  }
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
  if (left <= std::chrono::nanoseconds::zero()) return;
  // Sleeper count before the last look, bump before the waker's look at the count: one of them sees the
  // other.
  word.sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (word.value.load(std::memory_order_seq_cst) == seen)
    detail::sleep_on<sharing>(word.value, seen, std::min<std::chrono::nanoseconds>(left, detail::k_slice));
  word.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

/// Wakes up to `count` sleepers of `word`; costs one load when nobody sleeps.
template <Sharing sharing>
void wake(WaitWord& word, int count = INT_MAX) {
  if (word.sleepers.load(std::memory_order_seq_cst) > 0) detail::wake_sleepers<sharing>(word.value, count);
}

LOCKSTEP_NAMESPACE_END
