// SPDX-License-Identifier: MIT
/// @file
/// The transport between threads of one process.
#pragma once

#include <lockstep/transport/fork_guard.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/transport.hpp>

#include <mutex>

LOCKSTEP_NAMESPACE_BEGIN

/// Replicas are threads of one process; the trainer object owns what they share.
struct InProcess {
  /// A thread that dies takes its process with it.
  static constexpr bool k_survives_kill = false;

  /// What the replicas of one trainer share.
  template <class State>
  class Session {
   public:
    /// @throws SystemError if there is no memory.
    Session(const InProcess&, const State& initial, std::size_t bytes) : state_(initial), memory_(bytes) {}

    /// Zeroed, on a 64-byte boundary.
    std::span<std::byte> memory() { return memory_.bytes(); }

    /// @throws UsageError in a forked child: whoever held the exclusion does not exist there.
    template <class F>
    decltype(auto) exclusive(F&& transition) {
      fork_guard_.expect_own_process("replicas in one process");
      const std::lock_guard lock(mutex_);
      return std::forward<F>(transition)(state_);
    }

    /// @param participants replicas that wait for each other here: no spinning if they outnumber the cores.
    void wait(WaitWord& word, std::uint32_t seen, Clock::time_point deadline, int participants) {
      wait_for_change<Sharing::in_process>(word, seen, deadline, participants <= available_cores());
    }
    /// Ends up to `count` waits on this word.
    void wake(WaitWord& word, int count) { lockstep::wake<Sharing::in_process>(word, count); }

    /// Threads do not die on their own: a replica whose loop throws says so itself.
    bool alive(int) const { return true; }

   private:
    ForkGuard fork_guard_;
    alignas(k_alignment) std::mutex mutex_;
    State state_;
    ZeroedMemory memory_;
  };
};

static_assert(Transport<InProcess>);

LOCKSTEP_NAMESPACE_END
