// SPDX-License-Identifier: MIT
/// @file
/// Runs replicas as threads and keeps a hung test from hanging the suite. Catch2's assertions belong on the
/// main thread: what replicas find out is returned, or thrown and collected here, and checked after they
/// ended.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::test {

/// Runs `body(i)` for i in [0, count) on one thread each, and waits for all of them.
/// @return what each threw, in order of i; null for those that ended normally.
template <class Body>
std::vector<std::exception_ptr> run_replicas(int count, Body body) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(count));
  {
    std::vector<std::jthread> threads;
    threads.reserve(thrown.size());
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&body, &slot = thrown[static_cast<std::size_t>(i)], i] {
        try {
          body(i);
        } catch (...) {
          slot = std::current_exception();
        }
      });
    }
  }  // joins
  return thrown;
}

/// Returns when `holds()`; a watchdog ends the test if it never does.
template <class Predicate>
void wait_until(Predicate&& holds) {
  while (!holds()) std::this_thread::sleep_for(std::chrono::microseconds{200});
}

/// The text of an exception; empty for a null pointer, so that `CHECK(message_of(p) == "")` shows what went
/// wrong.
inline std::string message_of(const std::exception_ptr& thrown) {
  if (!thrown) return "";
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "(not a std::exception)";
  }
}

/// How much longer a test may take because a tool watches it: 10 under ThreadSanitizer and valgrind, else 1.
inline int slowdown() {
#if defined(__SANITIZE_THREAD__)
  return 10;
#else
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  return 10;
#endif
#endif
  const char* preloaded = std::getenv("LD_PRELOAD");
  return preloaded != nullptr && std::strstr(preloaded, "vgpreload") != nullptr ? 10 : 1;
#endif
}

/// For a limit of time that a report names: calls `attempt()`, which returns how long something took, until
/// that is below the limit. A busy machine spoils a try, but not all of five.
template <class Attempt>
bool is_within(std::chrono::nanoseconds limit, Attempt&& attempt) {
  for (int tries = 0; tries < 5; ++tries)
    if (attempt() < limit) return true;
  return false;
}

/// Ends the process with a message when it lives longer than its limit: a test that hangs becomes one that
/// fails.
class Watchdog {
 public:
  /// Returns when its thread does nothing but wait: a test that forks while that thread still allocates gives
  /// its children a heap that is locked for ever (ASan of g++ 12).
  explicit Watchdog(std::chrono::seconds limit = std::chrono::seconds{60})
      : limit_{limit * slowdown()}, thread_{[this] { watch(); }} {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [this] { return is_watching_; });
  }

  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  ~Watchdog() {
    {
      const std::lock_guard lock{mutex_};
      is_done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void watch() {
    std::unique_lock lock{mutex_};
    is_watching_ = true;
    changed_.notify_all();
    if (changed_.wait_for(lock, limit_, [this] { return is_done_; })) return;
    std::cerr << "watchdog: the test did not end within " << limit_.count() << " s" << std::endl;
    std::abort();
  }

  std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_watching_ = false;
  bool is_done_ = false;
  std::thread thread_;  // last, so that it starts when the rest is there
};

}  // namespace lockstep::test
