// SPDX-License-Identifier: MIT
/// @file
/// Threads that share the passes of one optimizer, each with a fixed part of every variable.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/layout.hpp>
#include <lockstep/protocol/sharding.hpp>
#include <lockstep/transport/core_claims.hpp>
#include <lockstep/transport/fork_guard.hpp>
#include <lockstep/transport/start_thread.hpp>
#include <lockstep/transport/wait.hpp>

#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// n - 1 threads that sleep between passes; the caller does the first part. Which elements a part has follows
/// from the shapes by the sharding rule (`protocol::sharded_axis`); variables that the rule leaves whole
/// belong to the first part.
class PartitionTeam {
 public:
  /// @throws InvalidArgument if a variable is too short to be split; SystemError if the system gives no
  /// thread.
  PartitionTeam(const Layout& layout, int partitions) : ranges_(static_cast<std::size_t>(partitions)) {
    for (const VariableInfo& info : layout.infos()) split(info, partitions);
    cores_.claim();
    for (int part = 1; part < partitions; ++part)
      threads_.push_back(start_thread(
          "num_partitions", part, partitions - 1,
          [this, part](const std::stop_token& stop) { serve(static_cast<std::size_t>(part), stop); }));
  }
  PartitionTeam(const PartitionTeam&) = delete;
  PartitionTeam& operator=(const PartitionTeam&) = delete;
  ~PartitionTeam() {
    for (std::jthread& thread : threads_) thread.request_stop();
    start_.bump();
    wake<Sharing::in_process>(start_);
  }

  /// Calls `f(begin, end)` for every range of every part and returns when all are done. `f` does not throw.
  /// @throws UsageError in a forked child, which has none of the threads; nothing has been called then.
  template <class F>
  void run(F&& f) {
    fork_guard_.expect_own_process("num_partitions");
    job_ = std::ref(f);
    left_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
    start_.bump();
    wake<Sharing::in_process>(start_);
    work(0);
    while (left_.load(std::memory_order_acquire) > 0) {
      const std::uint32_t seen = done_.seen();
      if (left_.load(std::memory_order_acquire) > 0)
        wait_for_change<Sharing::in_process>(done_, seen, Clock::time_point::max(), true);
    }
  }

  /// Ranges of one part, in elements of the layout.
  const std::vector<std::pair<Index, Index>>& ranges(std::size_t part) const { return ranges_[part]; }

 private:
  void split(const VariableInfo& info, int partitions) {
    const auto axis = protocol::sharded_axis(info.shape, partitions);
    if (!axis) {
      ranges_[0].emplace_back(info.offset, info.offset + info.size);
      return;
    }
    const auto at = static_cast<std::size_t>(*axis);
    const Index extent = info.shape[at];
    Index outer = 1;
    for (std::size_t i = 0; i < at; ++i) outer *= info.shape[i];
    const Index inner = info.size / (outer * extent);
    for (int part = 0; part < partitions; ++part)
      for (Index block = 0; block < outer; ++block) {
        const Index start = info.offset + block * extent * inner;
        ranges_[static_cast<std::size_t>(part)].emplace_back(
            start + extent * part / partitions * inner, start + extent * (part + 1) / partitions * inner);
      }
  }

  void serve(std::size_t part, const std::stop_token& stop) {
    cores_.claim();
    std::uint32_t seen = 0;  // the word before the first job
    for (;;) {
      // There is no bump where a later thread could not be started.
      while (start_.seen() == seen && !stop.stop_requested())
        wait_for_change<Sharing::in_process>(start_, seen, Clock::time_point::max(), true);
      if (stop.stop_requested()) return;
      seen = start_.seen();
      work(part);
      if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        done_.bump();
        wake<Sharing::in_process>(done_);
      }
    }
  }
  void work(std::size_t part) const {
    for (const auto& [begin, end] : ranges_[part]) job_(begin, end);
  }

  ForkGuard fork_guard_;
  std::vector<std::vector<std::pair<Index, Index>>> ranges_;
  std::function<void(Index, Index)> job_;
  WaitWord start_, done_;
  std::atomic<int> left_{0};
  CoreClaims cores_;
  std::vector<std::jthread> threads_;  // last: they use everything above
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
