// SPDX-License-Identifier: MIT
/// @file
/// What the scenarios with processes share: one trainer per process, what it found, how long it may wait.
#pragma once

#include "reports/scenario.hpp"
#include "support/catch.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include <lockstep/lockstep.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::test {

/// What one replica found; in memory that its test reads.
struct Found {
  std::atomic<int> rounds{0};  ///< rounds it has completed
  double value = 0;            ///< first element of the variable at the end
  std::int64_t global_step = -1;
  std::int64_t step_at_join = -1;
  std::int64_t longest_ms = 0;  ///< of all its steps, that of one that failed included
  double cpu_share = 0;         ///< of the step that failed
  Clock::time_point ended_at;   ///< when its loop has ended, one way or the other
  std::uint32_t incarnation = 0;
  int blamed = -2;   ///< replica that a PeerFailed names
  int missing = -2;  ///< first one that a TimeoutError names
  Status last = Status::accepted;
  char error[400] = {};

  std::string text() const { return error; }
  /// What it says, and whom it names.
  void keep(const Error& thrown) {
    if (const auto* failed = dynamic_cast<const PeerFailed*>(&thrown)) blamed = failed->replica();
    if (const auto* late = dynamic_cast<const TimeoutError*>(&thrown); late && !late->missing().empty())
      missing = late->missing().front().replica;
    std::strncpy(error, thrown.what(), sizeof(error) - 1);
  }
};

/// Says how long a step took, when it ends.
class StepTimer {
 public:
  explicit StepTimer(Found& found) : found_(found) {}
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;
  ~StepTimer() { found_.longest_ms = std::max(found_.longest_ms, elapsed().count()); }
  std::chrono::milliseconds elapsed() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin_);
  }

 private:
  Found& found_;
  const Clock::time_point begin_ = Clock::now();
};

template <std::size_t count>
struct FoundByAll {
  Found replica[count];
  std::atomic<int> gate{0};
};

struct Plan {
  SyncOptions options;
  std::string folder;
  std::string name = "test";
  double rate = 1;
  double initial = 0;
  Index size = 1;
};

inline auto threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

inline SharedMemory net_of(const Plan& plan, int place) {
  return {.name = plan.name, .replica = place, .directory = plan.folder, .patience = 30s};
}

/// Trains in the calling process: `loop(replica, handle, found)`. @return 0, or 1 after an error of the
/// library, which is in `found`.
template <class F>
int train(const Plan& plan, int place, Found& found, F&& loop) {
  try {
    Variables<double> variables;
    const auto w = variables.add("w", Eigen::VectorXd::Constant(plan.size, plan.initial));
    SyncReplicas trainer{Sgd{plan.rate}, variables, plan.options, net_of(plan, place)};
    const auto note = [&] {
      found.global_step = trainer.global_step();
      found.value = variables.value(w)[0];
      found.incarnation = trainer.stats(place).incarnation;
    };
    const auto end = [&] { found.ended_at = Clock::now(); };
    try {
      trainer.run([&](auto& replica) {
        found.step_at_join = replica.global_step();
        loop(replica, w, found);
      });
      end();
    } catch (...) {
      end();
      note();
      throw;
    }
    note();
    return 0;
  } catch (const Error& error) {
    found.keep(error);
  }
  return 1;
}

/// A loop of steps with one gradient until `rounds` updates.
inline auto steps(double gradient, std::int64_t rounds) {
  return [=](auto& replica, const auto& w, Found& found) {
    while (replica.global_step() < rounds) {
      replica.gradient(w).setConstant(gradient);
      {
        const StepTimer timer(found);
        found.last = replica.apply_gradients().status;
      }
      ++found.rounds;
    }
  };
}

}  // namespace lockstep::test
