// SPDX-License-Identifier: MIT
/// @file
/// Arms this process: it kills itself at a certain fault point.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace lockstep::test {

/// In memory that the driver reads after the process has died.
struct FaultLog {
  std::atomic<std::int64_t> passed{0};  ///< points that were counted
  char last[64] = {};                   ///< name of the last one
};

/// Counts the points that this process passes from now on and kills it at number `at`; 0 only counts.
/// @param after counting begins with the first point whose name begins with this text.
void arm(FaultLog& log, std::int64_t at, const char* after = "");

/// Counts them as well, and stops for the process that traces this one at number `at` and at each later one.
void stop_from(FaultLog& log, std::int64_t at);

/// Calls `f(name)` at each point that the calling thread passes from now on; an empty one ends it.
void call_at_points(std::function<void(const char*)> f);

}  // namespace lockstep::test
