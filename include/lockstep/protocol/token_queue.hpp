// SPDX-License-Identifier: MIT
/// @file
/// The rules of the token queue, as a pure state machine: tokens in order, waiters in order, closing.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/protocol/fifo.hpp>
#include <lockstep/protocol/intact.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

LOCKSTEP_NAMESPACE_BEGIN

namespace protocol {

/// What became of tokens that were to be enqueued: all of them are in, or none.
enum class Enqueued {
  accepted,  ///< all are in
  closed,    ///< the queue takes nothing any more
  full,      ///< there is no room for so many different steps
  too_many,  ///< with them there would be more tokens than an Index counts
};

/// What became of a request for a token.
struct Dequeued {
  /// What became of a request for a token.
  enum class Outcome : std::uint8_t {
    pending,       ///< still in line
    token,         ///< `value` is the token
    out_of_range,  ///< the queue is closed and empty
    cancelled,     ///< the request left the line, or was never in it
  };
  /// What became of it.
  Outcome outcome = Outcome::cancelled;
  /// The token, if there is one.
  Index value = 0;
  /// Member by member.
  friend constexpr bool operator==(const Dequeued&, const Dequeued&) = default;
};

/// @brief Tokens (step numbers) in order of arrival, and the line of those who wait for one.
///
/// Equal neighbours are stored once with a count, since an update enqueues many copies of one step. A waiter
/// that is served keeps its place in the table until it collects by `poll`, so the machine needs no memory
/// beside itself. No transition blocks, allocates, throws or reads a clock, and the value is trivially
/// copyable.
///
/// | event | effect |
/// |---|---|
/// | `enqueue*` of nothing | accepted, also when closed |
/// | `enqueue*` | tokens go to the waiters in their order, the rest to the end of the queue; refused when
/// closed | | `begin_dequeue` | gets the first token; out of range if closed and empty; else joins the line |
/// | `cancel(t)` while t waits | t leaves and consumes nothing; false if it was settled before |
/// | `poll(t)` | outcome of t; a settled request leaves the table |
/// | `close` | waiters get out of range; queued tokens stay; false if closed before |
/// | `reopen` | as new, but tickets go on |
/// | `forget_if(p)` | requests whose owner p names leave the table, settled or not; their tokens are lost |
///
/// Between two events either no token is queued or nobody waits.
///
/// @tparam Runs     how many runs of equal tokens may be queued.
/// @tparam Waiters  how many requests may be waiting or uncollected.
/// @par Source TensorFlow FIFOQueue as used for `sync_token_q`; that one has no bound.
template <std::size_t Runs = 512, std::size_t Waiters = 512>
class TokenQueue {
 public:
  /// What became of a new request.
  struct Begun {
    /// Served, in line or refused.
    Admission admission;
    Ticket ticket;  ///< 0 unless admitted
  };

  /// Number of tokens in the queue.
  constexpr Index size() const { return size_; }
  /// Nothing comes in any more.
  constexpr bool is_closed() const { return closed_; }
  /// Calls `f(value)` for each token in the queue, the next one first.
  template <class F>
  constexpr void for_each_token(F&& f) const {
    for (std::size_t run = 0; run < runs_.size(); ++run)
      for (Index i = 0; i < runs_[run].count; ++i) f(runs_[run].value);
  }
  /// Number of requests in line.
  constexpr std::size_t waiting() const { return waiting_; }

  /// Enqueues `n` tokens `value`. @pre n >= 0
  constexpr Enqueued enqueue_many(Index value, Index n) {
    if (n == 0) return Enqueued::accepted;
    if (closed_) return Enqueued::closed;
    const Index handed = std::min(n, static_cast<Index>(waiting_));
    if (!can_count(n - handed)) return Enqueued::too_many;
    if (n > handed && !extends_last_run(value) && runs_.is_full()) return Enqueued::full;
    for (Index i = 0; i < handed; ++i) hand_to_first_waiter(value);
    if (n > handed) append(value, n - handed);
    return Enqueued::accepted;
  }

  /// Enqueues the tokens of `values` in order, all or none.
  constexpr Enqueued enqueue(std::span<const Index> values) {
    if (values.empty()) return Enqueued::accepted;
    if (closed_) return Enqueued::closed;
    const std::size_t handed = std::min(values.size(), waiting_);
    std::size_t new_runs = 0;
    for (std::size_t i = handed; i < values.size(); ++i) {
      const bool extends = i == handed ? extends_last_run(values[i]) : values[i] == values[i - 1];
      if (!extends) ++new_runs;
    }
    if (!can_count(static_cast<Index>(values.size() - handed))) return Enqueued::too_many;
    if (new_runs > Runs - runs_.size()) return Enqueued::full;
    for (std::size_t i = 0; i < handed; ++i) hand_to_first_waiter(values[i]);
    for (std::size_t i = handed; i < values.size(); ++i) append(values[i], 1);
    return Enqueued::accepted;
  }

  /// Asks for a token: served at once, or in line. @param owner who asks, for `forget_if`.
  constexpr Begun begin_dequeue(int owner = 0) {
    if (requests_.is_full()) return {Admission::full, 0};
    const Ticket ticket = next_ticket_++;
    // With a token or closed nobody waits, so the settled requests stay in front of the waiting ones.
    if (size_ > 0) {
      requests_.push({ticket, {Dequeued::Outcome::token, pop_token()}, owner});
    } else if (closed_) {
      requests_.push({ticket, {Dequeued::Outcome::out_of_range, 0}, owner});
    } else {
      requests_.push({ticket, {Dequeued::Outcome::pending, 0}, owner});
      ++waiting_;
    }
    return {Admission::admitted, ticket};
  }

  /// Gives up a place in line. False if there is no such request in line.
  constexpr bool cancel(Ticket ticket) {
    const std::size_t at = find(ticket);
    if (!is_pending_at(at)) return false;
    requests_.erase(at);
    --waiting_;
    return true;
  }

  /// Whether the request is in line: `poll` would change nothing.
  constexpr bool is_pending(Ticket ticket) const { return is_pending_at(find(ticket)); }

  /// What has become of a request that was in line.
  constexpr Dequeued poll(Ticket ticket) {
    const std::size_t at = find(ticket);
    if (at == requests_.size()) return {};
    const Dequeued result = requests_[at].result;
    if (result.outcome != Dequeued::Outcome::pending) requests_.erase(at);
    return result;
  }

  /// Removes the requests of owners that no longer exist: `is_gone(owner)`.
  template <class IsGone>
  constexpr void forget_if(IsGone&& is_gone) {
    for (std::size_t at = requests_.size(); at-- > 0;) {
      if (!is_gone(requests_[at].owner)) continue;
      if (requests_[at].result.outcome == Dequeued::Outcome::pending) --waiting_;
      requests_.erase(at);
    }
  }

  /// Nothing comes in any more; those in line get what is left, then the end.
  constexpr bool close() {
    if (closed_) return false;
    closed_ = true;
    for (std::size_t i = requests_.size() - waiting_; i < requests_.size(); ++i)
      requests_[i].result = {Dequeued::Outcome::out_of_range, 0};
    waiting_ = 0;
    return true;
  }

  /// Opens an empty queue in place of this one. Tickets are not handed out again, so that of an old request
  /// names no new one.
  constexpr void reopen() {
    const Ticket next = next_ticket_;
    *this = {};
    next_ticket_ = next;
  }

  /// False for bytes that no events can have made. @param owners those who ask are 0 to `owners` - 1.
  bool is_intact(int owners) const {
    return is_bool(closed_) && runs_.is_intact() && requests_.is_intact() && waiting_ <= requests_.size() &&
           (waiting_ == 0 || (size_ == 0 && !closed_)) && is_ticket(next_ticket_) && has_intact_runs() &&
           has_intact_requests(owners);
  }

  /// Member by member.
  friend constexpr bool operator==(const TokenQueue&, const TokenQueue&) = default;

 private:
  struct Run {
    Index value;
    Index count;
    friend constexpr bool operator==(const Run&, const Run&) = default;
  };
  struct Request {
    Ticket ticket;
    Dequeued result;
    int owner;
    friend constexpr bool operator==(const Request&, const Request&) = default;
  };

  /// Every run has tokens, and together they are `size_`.
  constexpr bool has_intact_runs() const {
    Index left = size_;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (runs_[i].count < 1 || runs_[i].count > left) return false;
      left -= runs_[i].count;
    }
    return left == 0;
  }
  /// Tickets ascend, the last `waiting_` requests are pending, those before are settled.
  constexpr bool has_intact_requests(int owners) const {
    Ticket last = 0;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const Request& request = requests_[i];
      const bool is_pending = i >= requests_.size() - waiting_;
      if (request.ticket <= last || request.ticket >= next_ticket_ || request.owner < 0 ||
          request.owner >= owners || request.result.outcome > Dequeued::Outcome::out_of_range ||
          is_pending != (request.result.outcome == Dequeued::Outcome::pending))
        return false;
      last = request.ticket;
    }
    return true;
  }

  /// The tokens can still be counted with `n` more.
  constexpr bool can_count(Index n) const { return n <= std::numeric_limits<Index>::max() - size_; }
  constexpr bool extends_last_run(Index value) const {
    return !runs_.is_empty() && runs_.back().value == value;
  }

  constexpr void append(Index value, Index n) {
    if (extends_last_run(value))
      runs_.back().count += n;
    else
      runs_.push({value, n});
    size_ += n;
  }

  constexpr Index pop_token() {
    const Index value = runs_.front().value;
    if (--runs_.front().count == 0) runs_.pop();
    --size_;
    return value;
  }

  constexpr void hand_to_first_waiter(Index value) {
    requests_[requests_.size() - waiting_].result = {Dequeued::Outcome::token, value};
    --waiting_;
  }

  constexpr bool is_pending_at(std::size_t at) const {
    return at < requests_.size() && requests_[at].result.outcome == Dequeued::Outcome::pending;
  }
  constexpr std::size_t find(Ticket ticket) const {
    std::size_t at = 0;
    while (at < requests_.size() && requests_[at].ticket != ticket) ++at;
    return at;
  }

  Fifo<Run, Runs> runs_;
  Fifo<Request, Waiters>
      requests_;  // the settled ones in front, then `waiting_` pending ones in order of arrival
  std::size_t waiting_ = 0;
  Index size_ = 0;
  Ticket next_ticket_ = 1;
  bool closed_ = false;
};

static_assert(std::is_trivially_copyable_v<TokenQueue<>>);

/// For transports that find a queue: what is wrong with it, empty if nothing is.
inline const char* state_fault(const TokenQueue<>& found, const TokenQueue<>* /*initial*/) {
  return found.is_intact(k_max_replicas) ? "" : "its queue is damaged";
}

}  // namespace protocol

LOCKSTEP_NAMESPACE_END
