// SPDX-License-Identifier: MIT
/// @file
/// The transport between threads of one process.
#pragma once

#include <lockstep/transport/fork_guard.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/transport.hpp>

#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
    Session(const InProcess&, const State& initial, const SessionSpec& spec)
        : state_(initial), memory_(spec.bytes) {}

    /// One trainer object has made the session.
    std::string disagreement() const { return {}; }

    /// Zeroed, on a 64-byte boundary.
    std::span<std::byte> memory() { return memory_.bytes(); }

    /// @throws UsageError in a forked child: whoever held the exclusion does not exist there.
    template <class F>
    decltype(auto) exclusive(F&& transition) {
      fork_guard_.expect_own_process("replicas in one process");
      const std::lock_guard lock(mutex_);
      return std::forward<F>(transition)(state_);
    }
    /// The same, and then `then(const State&)`, still inside.
    template <class F, class Then>
    decltype(auto) exclusive(F&& transition, Then&& then) {
      fork_guard_.expect_own_process("replicas in one process");
      const std::lock_guard lock(mutex_);
      return detail::call_and_then(std::forward<F>(transition), state_, [&] { then(std::as_const(state_)); });
    }

    /// @param participants replicas that wait for each other here: no spinning if they outnumber the cores.
    void wait(WaitWord& word, std::uint32_t seen, Clock::time_point deadline, int participants) {
      wait_for_change<Sharing::in_process>(word, seen, deadline, participants <= available_cores());
    }
    /// Ends up to `count` waits on this word.
    void wake(WaitWord& word, int count) { lockstep::wake<Sharing::in_process>(word, count); }

    /// Threads do not die on their own: a replica whose loop throws says so itself.
    bool alive(int) const { return true; }
    /// Of a place; the round keeps two threads from sitting at one.
    struct Lease {
      /// True: it is free.
      bool take() const { return true; }
    };
    /// The lease of a replica number or of `k_visitor`.
    Lease lease(int) const { return {}; }

    /// Says why training has failed; the first text counts.
    void leave_note(std::string_view text) {
      const std::lock_guard lock(note_mutex_);
      if (note_.empty()) note_ = text;
    }
    /// The text that was left, or nothing.
    std::string note() const {
      const std::lock_guard lock(note_mutex_);
      return note_;
    }
    /// A new run begins.
    void clear_note() {
      const std::lock_guard lock(note_mutex_);
      note_.clear();
    }

    /// All of them, each on a thread.
    std::vector<int> seats_here(int total) const {
      std::vector<int> seats(static_cast<std::size_t>(total));
      std::iota(seats.begin(), seats.end(), 0);
      return seats;
    }

   private:
    ForkGuard fork_guard_;
    alignas(k_alignment) std::mutex mutex_;
    State state_;
    ZeroedMemory memory_;
    mutable std::mutex note_mutex_;
    std::string note_;
  };
};

static_assert(Transport<InProcess>);

LOCKSTEP_NAMESPACE_END
