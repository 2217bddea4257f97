// SPDX-License-Identifier: MIT
/// @file
/// What is said at the end of a run, and its exit status.
#pragma once

#include "ending.hpp"
#include "shutdown.hpp"

#include <span>
#include <string>
#include <vector>

namespace launcher {

/// What became of one replica.
struct ReplicaRecord {
  std::vector<Ending> endings;      ///< of each run, in order; none: was never started
  Clock::time_point first_start{};  ///< of its first run
  Clock::time_point last_end{};     ///< of its last run

  bool has_failed() const { return !endings.empty() && !endings.back().is_success(); }
};

inline constexpr int k_timeout_status = 124;  ///< --timeout ended the run, as with timeout(1)
inline constexpr int k_own_failure = 125;     ///< lockstep-run itself failed, or was called wrongly

/// 0 if the last run of each replica ended with 0; otherwise how the one ended that failed first for good, as
/// a shell reports it. `k_timeout_status` if the time limit was reached.
int exit_status(std::span<const ReplicaRecord> replicas, bool has_timed_out);

/// "SIGKILL x 2, status 0": how the runs of a replica ended; equal neighbours are counted.
std::string describe(std::span<const Ending> endings);

/// A table: for each replica its number, runs, seconds from the first start to the last end, and how its runs
/// ended. One string for each line.
std::vector<std::string> summary_lines(std::span<const ReplicaRecord> replicas);

}  // namespace launcher
