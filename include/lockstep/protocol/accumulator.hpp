// SPDX-License-Identifier: MIT
/// @file
/// The rules of a conditional accumulator, as a pure state machine: what is counted, what is dropped, who is
/// served.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/protocol/fifo.hpp>

#include <cstddef>
#include <limits>
#include <optional>
#include <type_traits>

LOCKSTEP_NAMESPACE_BEGIN

namespace protocol {

/// What became of a gradient.
enum class Push { accepted, dropped };

/// @brief Count, step and line of takers of one accumulator.
///
/// The machine knows no gradients: who holds the running sum changes it as the transitions say. No transition
/// blocks, allocates, throws or reads a clock, and the value is trivially copyable, so it may live under any
/// mutex.
///
/// | event | effect |
/// |---|---|
/// | `on_apply(s)` with s < step | dropped; nothing changes |
/// | `on_apply(s)` with s >= step | accepted; count + 1; the step stays, however far ahead s is |
/// | `begin_take(n)` with n >= 1 | joins the end of the line |
/// | `cancel(t)` while t is in line | t leaves the line |
/// | `serve()` while the head wants at most `count` | the head leaves; step + 1; count = 0 |
/// | `set_global_step(s)` | step = s, also backwards; count and line stay |
///
/// The owner calls `serve()` after every `on_apply`, `begin_take` and `cancel`. After that the head of the
/// line is never due, so a dropped or refused gradient and a new step cannot make it due.
///
/// @tparam Takers  how many may stand in line at once.
/// @par Source TensorFlow ConditionalAccumulatorBase. It keeps a cancelled taker in line as a tombstone and
/// skips it; here it leaves at once, which is the same to everybody else.
template <std::size_t Takers = 256>
class Accumulator {
 public:
  /// What became of a request.
  struct Begun {
    /// Served, in line or refused.
    Admission admission;
    Ticket ticket;  ///< 0 unless admitted
  };
  /// The taker that receives the sum, and how many gradients are in the sum.
  struct Served {
    /// Of the request.
    Ticket ticket;
    /// Gradients that it gets.
    Index count;
    /// Member by member.
    friend constexpr bool operator==(const Served&, const Served&) = default;
  };

  /// Gradients accumulated since the last take.
  constexpr Index count() const { return count_; }
  /// Gradients of a lower local step are dropped.
  constexpr Index step() const { return step_; }
  /// Requests in line.
  constexpr std::size_t waiting() const { return line_.size(); }

  /// Whether a gradient with this local step comes too late. Equal is in time.
  constexpr bool is_stale(Index local_step) const { return local_step < step_; }

  /// A gradient with this label arrives.
  constexpr Push on_apply(Index local_step) {
    if (is_stale(local_step)) return Push::dropped;
    ++count_;
    return Push::accepted;
  }

  /// Asks for the sum of at least `num_required` gradients: `bad_request` if that is below one, `full` if the
  /// line is.
  constexpr Begun begin_take(Index num_required) {
    if (num_required <= 0) return {Admission::bad_request, 0};
    if (line_.is_full()) return {Admission::full, 0};
    line_.push({next_ticket_, num_required});
    return {Admission::admitted, next_ticket_++};
  }

  /// True if the taker was in line and has left it; false if it was served or cancelled before.
  constexpr bool cancel(Ticket ticket) {
    for (std::size_t i = 0; i < line_.size(); ++i) {
      if (line_[i].ticket != ticket) continue;
      line_.erase(i);
      return true;
    }
    return false;
  }

  /// Whom `serve()` would serve now; 0 if nobody is due.
  constexpr Ticket due() const {
    return line_.is_empty() || count_ < line_.front().num_required ? 0 : line_.front().ticket;
  }

  /// Serves the head of the line if it is due. At most one taker is due at any time, for serving resets the
  /// count.
  constexpr std::optional<Served> serve() {
    if (due() == 0) return std::nullopt;
    const Served served{line_.front().ticket, count_};
    line_.pop();
    if (step_ < std::numeric_limits<Index>::max()) ++step_;
    count_ = 0;
    return served;
  }

  /// True if the step went backwards.
  constexpr bool set_global_step(Index step) {
    const bool backwards = step < step_;
    step_ = step;
    return backwards;
  }

  /// Whether this ticket has been given out.
  constexpr bool has_issued(Ticket ticket) const { return ticket != 0 && ticket < next_ticket_; }
  /// The ticket of one who is in line, 0 = the head. @pre position < waiting()
  constexpr Ticket in_line(std::size_t position) const { return line_[position].ticket; }
  /// False for bytes that no events can have made.
  constexpr bool is_intact() const {
    constexpr Index k_most = std::numeric_limits<Index>::max() / 2;
    if (!line_.is_intact() || count_ < 0 || count_ > k_most || !is_ticket(next_ticket_)) return false;
    Ticket last = 0;
    for (std::size_t i = 0; i < line_.size(); ++i) {
      const Taker& taker = line_[i];
      if (taker.ticket <= last || !has_issued(taker.ticket) || taker.num_required <= 0) return false;
      last = taker.ticket;
    }
    return true;
  }

  /// Member by member.
  friend constexpr bool operator==(const Accumulator&, const Accumulator&) = default;

 private:
  struct Taker {
    Ticket ticket;
    Index num_required;
    friend constexpr bool operator==(const Taker&, const Taker&) = default;
  };

  Fifo<Taker, Takers> line_;
  Index count_ = 0;
  Index step_ = 0;
  Ticket next_ticket_ = 1;
};

static_assert(std::is_trivially_copyable_v<Accumulator<>>);

}  // namespace protocol

LOCKSTEP_NAMESPACE_END
