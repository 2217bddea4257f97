// SPDX-License-Identifier: MIT
/// @file
/// The transport between processes of one machine.
#pragma once

#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/fork_guard.hpp>
#include <lockstep/transport/launcher.hpp>
#include <lockstep/transport/segment.hpp>
#include <lockstep/transport/store_in_order.hpp>
#include <lockstep/transport/transport.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__linux__)

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Copies the protocol state; a state that knows which part of it matters overloads this.
template <class State>
void copy_state(State& to, const State& from) {
  to = from;
}

/// What is wrong with a state that was found; a state that knows what it can be overloads this.
/// @param initial what this process would have begun with; null if the session was made by another program.
template <class State>
const char* state_fault(const State& /*found*/, const State* /*initial*/) {
  return "";
}

/// A lease on a place: a lock that the system takes away when its owner can no longer store, and not before.
class FileLease {
 public:
  FileLease(const SharedFile& file, std::int64_t byte) : file_(file.reopened()), byte_(byte) {}
  bool take() const { return file_.try_lock(byte_); }

 private:
  SharedFile file_;
  std::int64_t byte_;
};

/// The first line in which two descriptions differ, as both have it.
inline std::string difference(std::string_view mine, std::string_view theirs) {
  const auto next_line = [](std::string_view& text) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return line;
  };
  while (!mine.empty() || !theirs.empty()) {
    const std::string_view ours = next_line(mine), others = next_line(theirs);
    if (ours != others)
      return text("who joins has '", ours.empty() ? "nothing more" : ours, "', the session has '",
                  others.empty() ? "nothing more" : others, "'");
  }
  return {};
}

}  // namespace detail

/// Replicas are processes of one machine, each with one or more threads that train; any of them may be killed
/// at any instruction. The program is started as often as there are replicas; whoever comes first makes the
/// session, the last one out removes it. Linux.
/// @par Environment `LOCKSTEP_SESSION` and `LOCKSTEP_REPLICA`, as `lockstep-run` sets them, where `name` or
/// `replica` are not given. `LOCKSTEP_ENDED` names a file in which it tells who does not come any more.
struct SharedMemory {
  /// Replicas may die at any instruction.
  static constexpr bool k_survives_kill = true;

  std::string name = {};  ///< of the session: the same in all its processes
  int replica = -1;       ///< number of the (first) replica of this process; -1: any that is free
  int replicas_here = 1;  ///< threads that `run` starts in this process
  std::string directory = "/dev/shm";  ///< a tmpfs, or a file system with huge pages
  std::chrono::milliseconds patience =
      k_default_deadline;  ///< longest wait to attach, and for a stopped owner

  /// An attached session; `State` is what all its processes agree on.
  template <class State>
  class Session {
    static_assert(std::is_trivially_copyable_v<State>);

   public:
    /// Attaches the session of this name, or makes it. @throws InvalidArgument for a name that is no file
    /// name; SystemError with the path if the segment cannot be made or is not usable; TimeoutError.
    Session(const SharedMemory& net, const State& initial, const SessionSpec& spec)
        : Session(Settled{}, settled(net), initial, spec) {}

    /// The file of the session.
    const std::string& path() const { return segment_.path(); }
    /// The path, and the first line in which the descriptions differ; empty if they do not.
    std::string disagreement() const { return disagreement_; }
    /// Zeroed when the session was made, on a page boundary; at another address in each process.
    std::span<std::byte> memory() {
      return {segment_.at(segment_.plan().memory), static_cast<std::size_t>(segment_.header().shape.memory)};
    }

    /// The transition works on a copy, which one store then makes the state: whole or not at all.
    /// A transition of a const state costs no copy.
    /// @throws TimeoutError if the owner of the mutex does not let go of it; UsageError in a forked child.
    template <class F>
    decltype(auto) exclusive(F&& transition) {
      return exclusive(std::forward<F>(transition), [](const State&) {});
    }
    /// The same, and once the state is committed `then(const State&)`, still inside: who dies in between has
    /// committed.
    template <class F, class Then>
    decltype(auto) exclusive(F&& transition, Then&& then) {
      const Inside inside(*this);
      std::atomic<std::uint64_t>& commits = segment_.header().commits;
      const std::uint64_t count = commits.load(std::memory_order_relaxed);
      State& now = *states_[count & 1];
      if constexpr (std::is_invocable_v<F, const State&>) {
        return std::forward<F>(transition)(std::as_const(now));
      } else {
        State& next = *states_[(count + 1) & 1];
        detail::fault_point("exclusive: entered");
        copy_state_of(next, now);
        detail::fault_point("exclusive: copied");
        return detail::call_and_then(std::forward<F>(transition), next, [&] {
          detail::fault_point("exclusive: changed");
          detail::store_in_order(commits, count + 1);
          detail::fault_point("exclusive: flipped");
          then(std::as_const(next));
          detail::fault_point("exclusive: told");
        });
      }
    }

    /// @param participants replicas that wait for each other here: no spinning if they outnumber the cores.
    void wait(WaitWord& word, std::uint32_t seen, Clock::time_point deadline, int participants) {
      wait_for_change<Sharing::between_processes>(word, seen, deadline, participants <= available_cores());
    }
    /// Ends up to `count` waits, in any process.
    void wake(WaitWord& word, int count) { lockstep::wake<Sharing::between_processes>(word, count); }

    /// A lock on one byte of the file. @throws SystemError if the file cannot be opened once more; UsageError
    /// in a forked child, which has no open file.
    detail::FileLease lease(int place) const {
      fork_guard_.expect_own_process(k_subject);
      return {segment_.file(), byte_of(place)};
    }
    /// Asks the system, never a process number.
    bool alive(int place) const { return segment_.file().is_locked_elsewhere(byte_of(place)); }
    /// Why nobody sits down at this place any more, as who has started this process says; empty if somebody
    /// may.
    std::string gone(int place) const { return asks_launcher_ ? detail::why_gone(place) : ""; }

    /// Says why training has failed; the first text counts. Up to 500 characters.
    void leave_note(std::string_view text) {
      detail::SegmentHeader& header = segment_.header();
      if (header.noted.load(std::memory_order_acquire) != 0) return;
      const std::size_t length = std::min(text.size(), header.note.size());
      std::copy_n(text.begin(), length, header.note.begin());
      header.noted.store(static_cast<std::uint32_t>(length), std::memory_order_release);
    }
    /// The text that was left, or nothing.
    std::string note() const {
      const detail::SegmentHeader& header = segment_.header();
      const std::size_t length = header.noted.load(std::memory_order_acquire);
      return std::string(header.note.data(), std::min(length, header.note.size()));
    }
    /// A new run begins.
    void clear_note() { segment_.header().noted.store(0, std::memory_order_release); }

    /// `replica` and those after it, or as many as `replicas_here` of those that are free.
    std::vector<int> seats_here(int) const {
      std::vector<int> seats(static_cast<std::size_t>(replicas_here_), -1);
      if (replica_ >= 0)
        for (int i = 0; i < replicas_here_; ++i) seats[static_cast<std::size_t>(i)] = replica_ + i;
      return seats;
    }

   private:
    struct Settled {};
    Session(Settled, const SharedMemory& net, const State& initial, const SessionSpec& spec)
        : replica_(net.replica),
          replicas_here_(net.replicas_here),
          asks_launcher_(replicas_here_ == 1 &&
                         detail::from_environment("LOCKSTEP_REPLICA") == std::to_string(replica_)),
          patience_(net.patience),
          description_(spec.description + "\nstate: " + std::to_string(sizeof(State)) +
                       " bytes, memory: " + std::to_string(spec.bytes) + " bytes"),
          segment_({net.directory, net.name, net.patience}, {sizeof(State), description_.size(), spec.bytes},
                   [&](const detail::Segment& fresh) {
                     std::memcpy(fresh.at(fresh.plan().description), description_.data(),
                                 description_.size());
                     for (std::uint64_t copy = 0; copy < 2; ++copy)
                       std::memcpy(fresh.at(fresh.plan().states + copy * fresh.plan().stride), &initial,
                                   sizeof(State));
                   }) {
      const detail::SegmentPlan plan = segment_.plan();
      for (std::uint64_t copy = 0; copy < 2; ++copy)
        states_[copy] = reinterpret_cast<State*>(segment_.at(plan.states + copy * plan.stride));
      // States of another size cannot be looked at; other differences are told to all.
      disagreement_ = detail::difference(description_, segment_.description());
      const bool agrees = disagreement_.empty();
      if (!agrees) disagreement_.insert(0, segment_.path() + ": ");
      const detail::SegmentShape& shape = segment_.header().shape;
      if (!agrees && shape.state != sizeof(State)) throw LayoutMismatch(disagreement_);
      if (agrees && (shape.state != sizeof(State) || shape.memory != spec.bytes))
        throw SystemError(segment_.path() +
                          ": cannot attach: its header is damaged: sizes that nobody asked for");
      const char* const fault =
          exclusive([&](const State& found) { return fault_of_state(found, agrees ? &initial : nullptr); });
      if (*fault == '\0') return;
      if (!agrees) throw LayoutMismatch(disagreement_);
      throw SystemError(detail::text(segment_.path(), ": cannot attach: its state is damaged: ", fault));
    }

    /// Holds the mutex. A destructor that runs inside it (by `exit` in a signal handler) is refused.
    class Inside {
     public:
      explicit Inside(Session& session) : session_(session) {
        session.fork_guard_.expect_own_process(k_subject);
        if (is_inside()) throw UsageError(detail::text(k_subject, ": called from inside one of its calls"));
        detail::SegmentHeader& header = session.segment_.header();
        if (!session.segment_.lock(session.patience_))
          throw TimeoutError(detail::text(session.segment_.path(), ": process ",
                                          header.holder.load(std::memory_order_relaxed),
                                          " is alive, but has stopped inside the session's mutex"),
                             {});
        is_inside() = true;
        header.holder.store(session.process_, std::memory_order_relaxed);
      }
      Inside(const Inside&) = delete;
      Inside& operator=(const Inside&) = delete;
      ~Inside() {
        is_inside() = false;
        session_.segment_.unlock();
      }

     private:
      static bool& is_inside() {
        static thread_local bool inside = false;
        return inside;
      }
      Session& session_;
    };

    static void copy_state_of(State& to, const State& from) {
      using detail::copy_state;
      copy_state(to, from);
    }
    static const char* fault_of_state(const State& found, const State* initial) {
      using detail::state_fault;
      return state_fault(found, initial);
    }
    static std::int64_t byte_of(int place) {
      return place == k_visitor ? detail::Segment::k_visitor : detail::Segment::k_first_place + place;
    }
    static SharedMemory settled(SharedMemory net) {
      if (net.name.empty()) net.name = detail::from_environment("LOCKSTEP_SESSION");
      if (!detail::Segment::is_name(net.name))
        throw InvalidArgument(
            detail::text("SharedMemory: the name must be that of a file, without '/', got '", net.name, "'"));
      if (net.replica < 0) {
        const std::string number = detail::from_environment("LOCKSTEP_REPLICA");
        if (!number.empty()) {
          char* end = nullptr;
          const long value = std::strtol(number.c_str(), &end, 10);
          if (*end != '\0' || value < 0 || value >= k_max_replicas)
            throw InvalidArgument(
                detail::text("LOCKSTEP_REPLICA: must be a replica number, got '", number, "'"));
          net.replica = static_cast<int>(value);
        }
      }
      if (net.replicas_here < 1)
        throw InvalidArgument(detail::text("replicas_here: must be at least 1, got ", net.replicas_here));
      if (net.patience.count() <= 0)
        throw InvalidArgument(detail::text("patience: must be positive, got ", net.patience.count(), " ms"));
      return net;
    }

    static constexpr const char* k_subject = "a session in shared memory";

    ForkGuard fork_guard_;
    int replica_, replicas_here_;
    bool asks_launcher_;  // its numbers are those of the replicas here
    std::chrono::milliseconds patience_;
    std::string description_;
    std::string disagreement_;  // with that of the session, which stays as it is
    detail::Segment segment_;
    State* states_[2];
    std::int64_t process_ = ::getpid();
  };
};

static_assert(Transport<SharedMemory>);

LOCKSTEP_NAMESPACE_END

#endif  // Linux
