// SPDX-License-Identifier: MIT
/// @file
/// Who uses an accumulator or a queue, and who of them is still there.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/transport.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Threads of one process are there as long as what they use.
template <Transport Net, class State>
class LocalAttendance {
 public:
  using Session = typename Net::template Session<State>;
  static constexpr std::size_t bytes() { return 0; }
  template <class Forget>
  LocalAttendance(Session&, std::byte*, Forget&&) {}
  int place() const { return 0; }
  bool is_there(int) const { return true; }
  std::string who() const { return {}; }
};

/// Each object that is attached to the session has a place, and keeps its lease as long as the object and its
/// process live.
template <Transport Net, class State>
class SharedAttendance {
  using Process = std::atomic<std::int64_t>;

 public:
  using Session = typename Net::template Session<State>;
  static std::size_t bytes() {
    Carver size;
    size.array<Process>(k_max_replicas);
    return size.used();
  }

  /// @param memory `bytes()` of the session's. @param forget `forget(state, place)` removes, inside the
  /// exclusion, what the last one at this place has left behind.
  /// @throws LayoutMismatch if the session was described otherwise; CapacityExceeded if all places are taken.
  template <class Forget>
  SharedAttendance(Session& session, std::byte* memory, Forget&& forget)
      : session_(session), processes_(Carver(memory).array<Process>(k_max_replicas)) {
    if (const std::string differs = session.disagreement(); !differs.empty()) throw LayoutMismatch(differs);
    for (place_ = 0; place_ < k_max_replicas; ++place_)
      if (!session.alive(place_) && sit_down(forget)) return;
    throw_error<CapacityExceeded>("session: ", k_max_replicas, " are attached, no more fit");
  }
  SharedAttendance(const SharedAttendance&) = delete;
  SharedAttendance& operator=(const SharedAttendance&) = delete;

  int place() const { return place_; }
  /// Asks the system. Inside the exclusion.
  bool is_there(int place) const { return place == place_ || session_.alive(place); }
  /// Names the processes, for errors.
  std::string who() const {
    std::string list = "; attached: process";
    for (int place = 0; place < k_max_replicas; ++place)
      if (is_there(place)) list += text(' ', process(place));
    return list;
  }
  /// The process that had this place last, for errors.
  std::int64_t process(int place) const { return processes_[place].load(std::memory_order_relaxed); }

 private:
  using Lease = decltype(std::declval<Session&>().lease(0));

  template <class Forget>
  bool sit_down(Forget& forget) {
    Lease& lease = lease_.emplace(session_.lease(place_));
    return session_.exclusive([&](State& state) {
      if (!lease.take()) return false;
      processes_[place_].store(::getpid(), std::memory_order_relaxed);
      forget(state, place_);
      return true;
    });
  }

  Session& session_;
  Process* processes_;
  int place_ = 0;
  std::optional<Lease> lease_;
};

template <Transport Net, class State>
using Attendance =
    std::conditional_t<Net::k_survives_kill, SharedAttendance<Net, State>, LocalAttendance<Net, State>>;

}  // namespace detail

LOCKSTEP_NAMESPACE_END
