// SPDX-License-Identifier: MIT
/// @file
/// The queue of tokens that lets replicas go on after an update.
#pragma once

#include <lockstep/accumulators/attendance.hpp>
#include <lockstep/accumulators/await.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/protocol/token_queue.hpp>
#include <lockstep/transport/build.hpp>
#include <lockstep/transport/fork_guard.hpp>
#include <lockstep/transport/in_process.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/owed.hpp>
#include <lockstep/transport/transport.hpp>

#include <chrono>
#include <climits>
#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <stop_token>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

/// @brief A first-in, first-out queue of step numbers; who waits for one is served in order of arrival.
///
/// A token is a permit to leave a training call. Equal neighbours are stored once, so room for 512 different
/// steps is room for any number of tokens.
/// @tparam Net  models lockstep::Transport. The whole queue is session state: over `SharedMemory` all
/// processes that name the same session use one queue, which is whole whoever is killed. A request of a dead
/// process gets nothing; a token that it was given before it died is lost.
/// @par Thread safety every function may be called by any number of threads.
/// @par Source TensorFlow FIFOQueue as used for `sync_token_q`. Ours is bounded in different steps and in
/// waiters, and every wait has a deadline.
template <Transport Net = InProcess>
class TokenQueue {
 public:
  class Waiter;

  /// An empty, open queue; between processes, the one of this name, if there is one.
  /// @throws as the transport's session. Between processes: LayoutMismatch if the session is no token queue,
  /// CapacityExceeded if too many are attached.
  explicit TokenQueue(const Net& net = {})
      : session_(net, State{}, spec()),
        word_(*Carver(session_.memory().data()).template array<WaitWord>(1)),
        attendance_(session_, session_.memory().data() + word_bytes(), [](State& state, int place) {
          state.forget_if([place](int owner) { return owner == place; });
        }) {}
  TokenQueue(const TokenQueue&) = delete;
  TokenQueue& operator=(const TokenQueue&) = delete;

  /// @brief Enqueues `n` tokens `value` at once. Never waits.
  /// @throws InvalidArgument if n < 0. @throws Cancelled if the queue is closed, unless n = 0.
  /// @throws CapacityExceeded if too many different steps are queued, or there would be more than 2^63 - 1
  /// tokens; nothing is enqueued.
  void enqueue_many(Index value, Index n) {
    if (n < 0)
      detail::throw_error<InvalidArgument>("enqueue_many: the number of tokens must not be negative, got ",
                                           n);
    enqueue_by(n, [&](State& state) { return state.enqueue_many(value, n); });
  }

  /// Enqueues the tokens of `values` in order, all or none. Otherwise as above.
  void enqueue_many(std::span<const Index> values) {
    enqueue_by(std::ssize(values), [&](State& state) { return state.enqueue(values); });
  }

  /// @brief Waits for a token and takes it.
  /// @throws OutOfRange if the queue is closed and empty.
  /// @throws Cancelled if a stop is requested first.
  /// @throws TimeoutError when `timeout` has passed. Either way no token is consumed and no waiter stays
  /// behind.
  /// @throws InvalidArgument if `timeout` is not positive. @throws CapacityExceeded if too many wait.
  Index dequeue(Timeout timeout = k_default_deadline, const std::stop_token& stop = {}) {
    const Deadline deadline(timeout);
    if (stop.stop_requested()) throw Cancelled("dequeue: stop was requested");
    return begin_dequeue().finish(deadline, stop, true);
  }

  /// @brief Gets in line for a token without waiting. See `Waiter`.
  /// @throws CapacityExceeded if too many requests are in line or not collected.
  [[nodiscard]] Waiter begin_dequeue() {
    const auto begun = transition([this](State& state) {
      const auto at_once = state.begin_dequeue(attendance_.place());
      if (at_once.admission != protocol::Admission::full) return at_once;
      forget_the_dead(state);
      return state.begin_dequeue(attendance_.place());
    });
    if (begun.admission != protocol::Admission::admitted)
      throw CapacityExceeded("dequeue: the line of requests is full");
    return Waiter(*this, begun.ticket);
  }

  /// @brief Ends the queue: tokens in it can still be taken, waiters get OutOfRange, enqueuing is Cancelled.
  /// @throws Cancelled if it was closed before.
  void close() {
    if (!transition([](State& state) { return state.close(); }))
      throw Cancelled("close: the token queue is already closed");
    rouse();
  }

  /// Number of tokens in the queue.
  Index size() const {
    return session_.exclusive([](const State& state) { return state.size(); });
  }
  /// Whether `close` has been called.
  bool is_closed() const {
    return session_.exclusive([](const State& state) { return state.is_closed(); });
  }

 private:
  using State = protocol::TokenQueue<>;
  using Attendance = detail::Attendance<Net, State>;
  using Dequeued = protocol::Dequeued;

  static std::size_t word_bytes() {
    Carver size;
    size.array<WaitWord>(1);
    return size.used();
  }
  static SessionSpec spec() {
    return {.bytes = word_bytes() + Attendance::bytes(),
            .description = "token queue\nbuild: " + detail::build_text()};
  }
  void rouse() {
    word_.bump();
    session_.wake(word_, INT_MAX);
  }

  void forget_the_dead(State& state) const {
    state.forget_if([this](int owner) { return !attendance_.is_there(owner); });
  }

  /// Calls `f(state)` inside the exclusion, after what could not be given up before.
  template <class F>
  auto transition(F&& f) {
    return session_.exclusive([&](State& state) {
      const std::size_t owed = owed_.do_all(state);
      return detail::call_and_then(f, state, [&] { owed_.forget(owed); });
    });
  }

  /// `f(state)` enqueues `n` tokens.
  template <class F>
  void enqueue_by(Index n, F&& f) {
    bool has_served = false;
    Index found = 0;
    const auto outcome = transition([&](State& state) {
      forget_the_dead(state);  // or they would get tokens
      const std::size_t waiting = state.waiting();
      found = state.size();
      const protocol::Enqueued enqueued = f(state);
      has_served = state.waiting() < waiting;
      return enqueued;
    });
    if (has_served) rouse();
    if (outcome == protocol::Enqueued::closed) throw Cancelled("enqueue_many: the token queue is closed");
    if (outcome == protocol::Enqueued::full)
      throw CapacityExceeded("enqueue_many: too many different steps in the token queue");
    if (outcome == protocol::Enqueued::too_many)
      detail::throw_error<CapacityExceeded>("enqueue_many: the token queue has ", found, " tokens, and with ",
                                            n, " more it would have more than 2^63 - 1");
  }

  ForkGuard fork_guard_;
  mutable typename Net::template Session<State> session_;
  WaitWord& word_;  // bumped when a waiter is served, cancelled or refused
  Attendance attendance_;
  detail::Owed<State> owed_;  // places in line that are given up by the next transition
};

/// @brief A request for a token that stands in line.
///
/// Move-only. Destroying it cancels it; a token that was served and not taken is lost. It must not outlive
/// its queue. One thread uses a waiter, but any thread may `cancel` it.
template <Transport Net>
class TokenQueue<Net>::Waiter {
 public:
  /// Takes over the place in line.
  Waiter(Waiter&& other) noexcept
      : home_(std::exchange(other.home_, nullptr)), ticket_(other.ticket_), settled_(other.settled_) {}
  /// Gives up its own place in line, then takes over the other's.
  Waiter& operator=(Waiter&& other) noexcept {
    if (this != &other) {
      abandon();
      home_ = std::exchange(other.home_, nullptr);
      ticket_ = other.ticket_;
      settled_ = other.settled_;
    }
    return *this;
  }
  ~Waiter() { abandon(); }

  /// True if `get` will not wait.
  bool ready() { return poll().outcome != Dequeued::Outcome::pending; }

  /// @brief Waits for the token. May be called again and gives the same.
  /// @throws TimeoutError when `timeout` has passed; the waiter stays in line.
  /// @throws Cancelled if the waiter was cancelled, or a stop is requested, which cancels it.
  /// @throws OutOfRange if the queue is closed and empty.
  Index get(Timeout timeout = k_default_deadline, const std::stop_token& stop = {}) {
    return finish(Deadline(timeout), stop, false);
  }

  /// Leaves the line and consumes nothing. False if it was settled before.
  bool cancel() {
    const protocol::Ticket ticket = ticket_;
    const bool cancelled = home().session_.exclusive([&](State& state) { return state.cancel(ticket); });
    if (cancelled) home().rouse();
    return cancelled;
  }

 private:
  friend TokenQueue;
  Waiter(TokenQueue& home, protocol::Ticket ticket) : home_(&home), ticket_(ticket) {}

  TokenQueue& home() const {
    if (!home_) throw UsageError("dequeue: the waiter was moved from");
    return *home_;
  }

  // The machine forgets a settled request when it is polled, so the outcome is kept here.
  Dequeued poll() {
    if (settled_.outcome != Dequeued::Outcome::pending) return settled_;
    // Most looks find nothing new, and to look costs no copy of the queue.
    const bool is_pending =
        home().session_.exclusive([&](const State& state) { return state.is_pending(ticket_); });
    if (!is_pending) settled_ = home().session_.exclusive([&](State& state) { return state.poll(ticket_); });
    return settled_;
  }

  Index finish(const Deadline& deadline, const std::stop_token& stop, bool leaves_at_deadline) {
    const auto end = detail::await(home().session_, home().word_, deadline, stop, [&] { return ready(); });
    // The waiter may be served between the look and the cancel: then the token is here and is not thrown
    // away.
    if (end == detail::WaitEnd::stopped && cancel()) throw Cancelled("dequeue: stop was requested");
    if (end == detail::WaitEnd::expired && (leaves_at_deadline ? cancel() : !ready()))
      throw TimeoutError(detail::text("dequeue: no token after ", detail::milliseconds(deadline), " ms",
                                      home().attendance_.who()),
                         {});
    const Dequeued result = poll();
    if (result.outcome == Dequeued::Outcome::out_of_range)
      throw OutOfRange("dequeue: the token queue is closed and empty");
    if (result.outcome == Dequeued::Outcome::cancelled) throw Cancelled("dequeue: the waiter was cancelled");
    return result.value;
  }

  void abandon() noexcept {
    if (!home_ || settled_.outcome != Dequeued::Outcome::pending || home_->fork_guard_.is_in_child()) return;
    const auto leave = [ticket = ticket_](State& state) {
      if (!state.cancel(ticket)) state.poll(ticket);
    };
    try {
      try {
        home_->session_.exclusive(leave);
      } catch (...) {
        // A process has stopped inside the session: the next call gives up the place in line, or the end of
        // the queue's lease does.
        home_->owed_.add(leave);
      }
    } catch (...) {  // no memory to keep it
    }
  }

  TokenQueue* home_;
  protocol::Ticket ticket_;
  Dequeued settled_{Dequeued::Outcome::pending, 0};
};

LOCKSTEP_NAMESPACE_END
