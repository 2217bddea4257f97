// SPDX-License-Identifier: MIT
/// @file
/// What a transport of the memory kind must give: shared memory, mutual exclusion over a state, waiting,
/// liveness.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/transport/wait.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {
/// Stand-in for the protocol state when a transport is checked on its own.
struct ProbeState {
  std::int64_t value = 0;
};
template <class Net>
using probe_session_t = typename Net::template Session<ProbeState>;
}  // namespace detail

/// `Net::Session<State>` exists for a trivially copyable state.
template <class Net>
concept HasSession = requires {
  typename Net::template Session<detail::ProbeState>;
};

/// A session is made from the transport value, an initial state and a number of bytes of zeroed memory.
template <class Net>
concept OpensSession = std::constructible_from < detail::probe_session_t<Net>,
const Net&, const detail::ProbeState&, std::size_t > ;

/// `session.memory()` is the zeroed, 64-byte aligned memory that all replicas of the session see.
template <class Net>
concept SharesMemory = requires(detail::probe_session_t<Net>& session) {
  { session.memory() } -> std::same_as<std::span<std::byte>>;
};

/// `session.exclusive(f)` calls `f(State&)` while nobody else does, and takes effect whole or not at all.
template <class Net>
concept ExcludesOthers = requires(detail::probe_session_t<Net>& session) {
  {
    session.exclusive([](detail::ProbeState& state) { return state.value; })
    } -> std::same_as<std::int64_t>;
};

/// `session.wait(word, seen, until, participants)` returns when the word changed, after a slice, or at the
/// deadline; `wake` ends waits.
template <class Net>
concept WaitsOnWords = requires(detail::probe_session_t<Net>& session, WaitWord& word) {
  { session.wait(word, std::uint32_t{}, Clock::time_point{}, int{}) } -> std::same_as<void>;
  { session.wake(word, int{}) } -> std::same_as<void>;
};

/// `session.alive(replica)`: false once the replica can no longer touch the memory.
template <class Net>
concept KnowsLiveness = requires(detail::probe_session_t<Net>& session) {
  { session.alive(int{}) } -> std::same_as<bool>;
};

/// `Net::k_survives_kill`: a replica may die at any instruction, so tiles are undoable.
template <class Net>
concept StatesCrashSafety = std::same_as < std::remove_cv_t<decltype(Net::k_survives_kill)>,
bool > ;

/// A policy that lets replicas share memory, exclude each other and wait. See docs/concepts.md#transport.
template <class Net>
concept Transport = std::copyable<Net> && HasSession<Net> && OpensSession<Net> && SharesMemory<Net> &&
    ExcludesOthers<Net> && WaitsOnWords<Net> && KnowsLiveness<Net> && StatesCrashSafety<Net>;

LOCKSTEP_NAMESPACE_END
