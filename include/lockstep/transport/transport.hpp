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
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// What a trainer asks of a session.
struct SessionSpec {
  std::size_t bytes = 0;  ///< of zeroed memory
  /// What all who share the session must agree on, as lines of `subject: value`.
  std::string description = {};
};

/// Who takes part without being a replica: a snapshot, a restore, a chief.
inline constexpr int k_visitor = -1;

namespace detail {
/// Stand-in for the protocol state when a transport is checked on its own.
struct ProbeState {
  std::int64_t value = 0;
};
/// Types with names, because a lambda in a concept has another number in each file that is compiled.
struct ProbeRead {
  std::int64_t operator()(ProbeState& state) const { return state.value; }
};
struct ProbeThen {
  void operator()(const ProbeState&) const {}
};

/// Calls `transition(state)`, then `after()`, and returns what the transition gave.
template <class F, class State, class After>
decltype(auto) call_and_then(F&& transition, State& state, After&& after) {
  if constexpr (std::is_void_v<std::invoke_result_t<F, State&>>) {
    std::forward<F>(transition)(state);
    after();
  } else {
    auto result = std::forward<F>(transition)(state);
    after();
    return result;
  }
}
template <class Net>
using probe_session_t = typename Net::template Session<ProbeState>;
}  // namespace detail

/// `Net::Session<State>` exists for a trivially copyable state.
template <class Net>
concept HasSession = requires {
  typename Net::template Session<detail::ProbeState>;
};

/// A session is made from the transport value, an initial state, and what is asked of it.
template <class Net>
concept OpensSession = std::constructible_from < detail::probe_session_t<Net>,
const Net&, const detail::ProbeState&, const SessionSpec& > ;

/// `session.disagreement()` is empty if everybody gave the same description, else it says what differs.
template <class Net>
concept ComparesDescriptions = requires(const detail::probe_session_t<Net>& session) {
  { session.disagreement() } -> std::same_as<std::string>;
};

/// `session.memory()` is the zeroed, 64-byte aligned memory that all replicas of the session see.
template <class Net>
concept SharesMemory = requires(detail::probe_session_t<Net>& session) {
  { session.memory() } -> std::same_as<std::span<std::byte>>;
};

/// `session.exclusive(f)` calls `f(State&)` while nobody else does, and takes effect whole or not at all.
/// `session.exclusive(f, then)` calls `then(const State&)` after that, still inside.
template <class Net>
concept ExcludesOthers = requires(detail::probe_session_t<Net>& session) {
  { session.exclusive(detail::ProbeRead{}) } -> std::same_as<std::int64_t>;
  { session.exclusive(detail::ProbeRead{}, detail::ProbeThen{}) } -> std::same_as<std::int64_t>;
};

/// `session.wait(word, seen, until, participants)` returns when the word changed, after a slice, or at the
/// deadline; `wake` ends waits.
template <class Net>
concept WaitsOnWords = requires(detail::probe_session_t<Net>& session, WaitWord& word) {
  { session.wait(word, std::uint32_t{}, Clock::time_point{}, int{}) } -> std::same_as<void>;
  { session.wake(word, int{}) } -> std::same_as<void>;
};

/// `session.lease(place)` is a movable object of which one at a time per place can `take()`, inside the
/// exclusion; its owner keeps it while it touches the memory. `session.alive(place)`: false once the owner no
/// longer can. Places are replica numbers and `k_visitor`. `session.gone(place)` may exist, too: a text that
/// says why nobody comes to a place any more, else empty; a training that needs somebody there then ends.
template <class Net>
concept KnowsLiveness = requires(detail::probe_session_t<Net>& session) {
  { session.alive(int{}) } -> std::same_as<bool>;
  { session.lease(int{}).take() } -> std::same_as<bool>;
};

/// `session.leave_note(text)` inside the exclusion, the first one counts; `session.note()` at any time.
template <class Net>
concept KeepsNote = requires(detail::probe_session_t<Net>& session) {
  { session.leave_note(std::string_view{}) } -> std::same_as<void>;
  { session.note() } -> std::same_as<std::string>;
  { session.clear_note() } -> std::same_as<void>;
};

/// `session.seats_here(total)`: numbers of the replicas that a loop in this process runs; a negative number
/// stands for any that is free.
template <class Net>
concept SeatsReplicas = requires(const detail::probe_session_t<Net>& session) {
  { session.seats_here(int{}) } -> std::same_as<std::vector<int>>;
};

/// `Net::k_survives_kill`: replicas may be processes and die at any instruction, so variables lie in the
/// session's memory and items of an update are undoable.
template <class Net>
concept StatesCrashSafety = std::same_as < std::remove_cv_t<decltype(Net::k_survives_kill)>,
bool > ;

/// A policy that lets replicas share memory, exclude each other and wait. See docs/concepts.md#transport.
template <class Net>
concept Transport = std::copyable<Net> && HasSession<Net> && OpensSession<Net> && ComparesDescriptions<Net> &&
    SharesMemory<Net> && ExcludesOthers<Net> && WaitsOnWords<Net> && KnowsLiveness<Net> && KeepsNote<Net> &&
    SeatsReplicas<Net> && StatesCrashSafety<Net>;

LOCKSTEP_NAMESPACE_END
