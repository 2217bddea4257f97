// SPDX-License-Identifier: MIT
/// @file
/// `explain_transport`: says in a sentence which requirement of `Transport` a type misses.
#pragma once

#include <lockstep/transport/transport.hpp>

#include <concepts>

LOCKSTEP_NAMESPACE_BEGIN

/// Explains why a type is no `Transport`: one sentence per missing requirement, as a compile error. Authors
/// of a transport put one line in a test:
/// @code{.cpp}
/// template struct lockstep::explain_transport<MyNet>;
/// @endcode
/// The tags in brackets are stable text. Compiles to nothing for a type that is a transport.
template <class Net>
struct explain_transport {
  static_assert(std::copyable<Net>,
                "[lockstep.transport.copyable] a transport must be a copyable value that says how to open a "
                "session, not "
                "the session itself; see docs/concepts.md#transport");
  static_assert(
      StatesCrashSafety<Net>,
      "[lockstep.transport.crash_safety] a transport must declare 'static constexpr bool k_survives_kill': "
      "whether a replica may die at any instruction; see docs/concepts.md#transport");
  static_assert(
      HasSession<Net>,
      "[lockstep.transport.session] a transport must have a member template 'Session<State>' for a trivially "
      "copyable State; see docs/concepts.md#transport");
  // Without a session, or a way to open one, the sentences below would only repeat the cause.
  /// Whether the sentence about the session is the one that matters.
  static constexpr bool k_no_session = !HasSession<Net>;
  static_assert(
      k_no_session || OpensSession<Net>,
      "[lockstep.transport.open] 'Session<State>' must be constructible from (const Net&, const State& "
      "initial, const SessionSpec&); see docs/concepts.md#transport");
  static_assert(
      k_no_session || ComparesDescriptions<Net>,
      "[lockstep.transport.disagreement] 'session.disagreement()' must return std::string: empty if all who "
      "share the session gave the same description; see docs/concepts.md#transport");
  static_assert(k_no_session || SharesMemory<Net>,
                "[lockstep.transport.memory] 'session.memory()' must return std::span<std::byte>: zeroed, "
                "64-byte aligned "
                "and seen by all replicas; see docs/concepts.md#transport");
  static_assert(
      k_no_session || ExcludesOthers<Net>,
      "[lockstep.transport.exclusive] 'session.exclusive(f)' must call f(State&) while nobody else does and "
      "return what f returns, 'session.exclusive(f, then)' must call then(const State&) after it; see "
      "docs/concepts.md#transport");
  static_assert(
      k_no_session || WaitsOnWords<Net>,
      "[lockstep.transport.wait] 'session.wait(WaitWord&, std::uint32_t seen, Clock::time_point, int)' and "
      "'session.wake(WaitWord&, int count)' must exist and return void; see docs/concepts.md#transport");
  static_assert(k_no_session || KnowsLiveness<Net>,
                "[lockstep.transport.alive] 'session.alive(int place)' must return bool: false once the "
                "owner of the place can no longer touch the memory, and 'session.lease(int place)' an object "
                "with 'bool take()'; see docs/concepts.md#transport");
  static_assert(k_no_session || KeepsNote<Net>,
                "[lockstep.transport.note] 'session.leave_note(std::string_view)', 'session.note()' and "
                "'session.clear_note()' must exist; see docs/concepts.md#transport");
  static_assert(k_no_session || SeatsReplicas<Net>,
                "[lockstep.transport.seats] 'session.seats_here(int total)' must return std::vector<int>: "
                "the replicas that a loop in this process runs; see docs/concepts.md#transport");
};

LOCKSTEP_NAMESPACE_END
