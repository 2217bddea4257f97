// SPDX-License-Identifier: MIT
/// @file
/// Threads that start together and are timed until the last one has ended, on cores of their own, as those
/// of `run()` are.
#pragma once

#include "interleave.hpp"
#include <lockstep/transport/core_claims.hpp>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <sched.h>
#include <thread>
#include <vector>

namespace lockstep::bench {

/// Begin and end of what each thread does.
class Stopwatches {
 public:
  explicit Stopwatches(int threads)
      : begin_(static_cast<std::size_t>(threads)), end_(static_cast<std::size_t>(threads)) {}
  void start(int thread) { begin_[static_cast<std::size_t>(thread)] = now(); }
  void stop(int thread) { end_[static_cast<std::size_t>(thread)] = now(); }
  /// From the first start to the last stop.
  double seconds() const {
    return *std::max_element(end_.begin(), end_.end()) - *std::min_element(begin_.begin(), begin_.end());
  }

 private:
  std::vector<double> begin_, end_;
};

/// Seconds that `body(thread)` takes on all of `threads` threads at once; the last one is the caller.
template <class Body>
double seconds_in_parallel(int threads, Body&& body) {
  Stopwatches watches(threads);
  std::barrier together(threads);
  detail::CoreClaims cores;
  const auto timed = [&](int thread) {
    cores.claim();
    together.arrive_and_wait();
    watches.start(thread);
    body(thread);
    watches.stop(thread);
  };
  {
    std::vector<std::jthread> others;
    for (int thread = 0; thread + 1 < threads; ++thread) others.emplace_back(timed, thread);
    timed(threads - 1);
  }
  return watches.seconds();
}

/// Moves one of several processes, counted from 0, to a core of its own if there are enough; binds it
/// nowhere.
inline void move_to_own_core(int process) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int left = process % CPU_COUNT(&allowed);
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed) && left-- == 0) return detail::move_to_core(core, allowed);
}

}  // namespace lockstep::bench
