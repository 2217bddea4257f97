// SPDX-License-Identifier: MIT
// explain_transport says what a near miss lacks, one section per requirement.
#include <lockstep/transport/explain.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace lockstep;

// expect-error(SECTION_copyable): \[lockstep\.transport\.copyable\].*#transport
// expect-error(SECTION_crash_safety): \[lockstep\.transport\.crash_safety\].*#transport
// expect-error(SECTION_crash_safety_type): \[lockstep\.transport\.crash_safety\].*#transport
// expect-error(SECTION_session): \[lockstep\.transport\.session\].*#transport
// expect-error(SECTION_open): \[lockstep\.transport\.open\].*#transport
// expect-error(SECTION_memory): \[lockstep\.transport\.memory\].*#transport
// expect-error(SECTION_memory_type): \[lockstep\.transport\.memory\].*#transport
// expect-error(SECTION_exclusive): \[lockstep\.transport\.exclusive\].*#transport
// expect-error(SECTION_exclusive_result): \[lockstep\.transport\.exclusive\].*#transport
// expect-error(SECTION_wait): \[lockstep\.transport\.wait\].*#transport
// expect-error(SECTION_wake): \[lockstep\.transport\.wait\].*#transport
// expect-error(SECTION_alive): \[lockstep\.transport\.alive\].*#transport
// expect-error(SECTION_lease): \[lockstep\.transport\.alive\].*#transport
// expect-error(SECTION_disagreement): \[lockstep\.transport\.disagreement\].*#transport
// expect-error(SECTION_note): \[lockstep\.transport\.note\].*#transport
// expect-error(SECTION_seats): \[lockstep\.transport\.seats\].*#transport

struct Net {
#if defined(SECTION_copyable)
  std::unique_ptr<int> owned;
#endif

#if defined(SECTION_crash_safety)
#elif defined(SECTION_crash_safety_type)
  static constexpr int k_survives_kill = 0;
#else
  static constexpr bool k_survives_kill = false;
#endif

#if defined(SECTION_session)
  template <class State>
  struct Connection {
#else
  template <class State>
  struct Session {
#endif

#if defined(SECTION_session)
#elif defined(SECTION_open)
    explicit Session(const State& initial) : state(initial) {}
#else
  Session(const Net&, const State& initial, const SessionSpec&) : state(initial) {}
#endif

#if defined(SECTION_memory)
#elif defined(SECTION_memory_type)
    std::byte* memory() { return nullptr; }
#else
  std::span<std::byte> memory() { return {}; }
#endif

#if defined(SECTION_exclusive)
#elif defined(SECTION_exclusive_result)
    void exclusive(auto&& transition) { transition(state); }
#else
  auto exclusive(auto&& transition) { return transition(state); }
  auto exclusive(auto&& transition, auto&& then) {
    const auto result = transition(state);
    then(state);
    return result;
  }
#endif

#if defined(SECTION_wait)
    void wait(WaitWord&, std::uint32_t) {}
#else
    void wait(WaitWord&, std::uint32_t, Clock::time_point, int) {}
#endif

#if defined(SECTION_wake)
#else
    void wake(WaitWord&, int) {}
#endif

#if defined(SECTION_alive)
#else
    bool alive(int) const { return true; }
#endif

#if !defined(SECTION_lease)
    struct Lease {
      bool take() { return true; }
    };
    Lease lease(int) { return {}; }
#endif

#if !defined(SECTION_disagreement)
    std::string disagreement() const { return {}; }
#endif

#if !defined(SECTION_note)
    void leave_note(std::string_view) {}
#endif
    std::string note() const { return {}; }
    void clear_note() {}

#if !defined(SECTION_seats)
    std::vector<int> seats_here(int) const { return {}; }
#endif

    State state;
  };
};

template struct lockstep::explain_transport<Net>;
