// SPDX-License-Identifier: MIT
/// @file
/// Sum and results of an accumulator in the memory of one process.
#pragma once

#include <lockstep/accumulators/options.hpp>
#include <lockstep/config.hpp>
#include <lockstep/protocol/accumulator.hpp>
#include <lockstep/transport/transport.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// @brief Where an `AccumulatorBase` between threads keeps its sum, and its results until they are collected.
///
/// `Sum` does the arithmetic: `check(gradient, is_first)` throws if the gradient does not fit; `add(gradient,
/// is_first)` replaces (first) or adds, whole or not at all; `hand_out(count)` gives away the result and may
/// not throw. All functions that take the state are called in the session's critical section, so a sum needs
/// no lock of its own.
template <class Sum, Transport Net>
class LocalStore {
 public:
  using Gradient = typename Sum::Gradient;
  using Result = typename Sum::Result;
  using State = protocol::Accumulator<>;
  using Session = typename Net::template Session<State>;
  /// Where a taker's result is put. Listed in `seats_` while the taker waits.
  struct Seat : TakerSeat {
    std::optional<Result> result;
  };

  static SessionSpec spec(const AccumulatorOptions&) { return {}; }
  static State initial(const AccumulatorOptions&) { return {}; }
  LocalStore(const AccumulatorOptions& options, Session&, std::byte*) : sum_(options) {}

  void add(State& state, const Gradient& gradient) {
    const bool is_first = state.count() == 0;
    sum_.check(gradient, is_first);
    sum_.add(gradient, is_first);
  }

  /// False if the line is full.
  bool begin_take(State& state, Seat& seat) {
    seats_.push_back(&seat);
    const auto begun = state.begin_take(seat.num_required);
    if (begun.admission != protocol::Admission::admitted) {
      seats_.pop_back();
      return false;
    }
    seat.ticket = begun.ticket;
    return true;
  }

  /// Hands the sum to the head of the line if it is due; true if so.
  bool serve(State& state) noexcept {
    const auto served = state.serve();
    if (!served) return false;
    for (auto at = seats_.begin(); at != seats_.end(); ++at) {
      if ((*at)->ticket != served->ticket) continue;
      (*at)->result.emplace(sum_.hand_out(served->count));
      (*at)->phase = TakerPhase::served;
      seats_.erase(at);
      break;
    }
    return true;
  }

  /// False if the taker is not in line.
  bool cancel(State& state, Seat& seat) {
    if (seat.phase != TakerPhase::waiting || !state.cancel(seat.ticket)) return false;
    seat.phase = TakerPhase::cancelled;
    std::erase(seats_, &seat);
    return true;
  }
  /// The taker will not ask again. False if it was not in line.
  bool abandon(State& state, Seat& seat) { return cancel(state, seat); }

  TakerPhase phase(const State&, const Seat& seat) const { return seat.phase; }

  /// The result of a taker that was served.
  Result take(Session& session, Seat& seat) {
    return session.exclusive([&](State&) {
      seat.phase = TakerPhase::taken;
      Result result = std::move(*seat.result);
      seat.result.reset();
      return result;
    });
  }

  /// A result lies in the seat, so only those in line take room.
  std::size_t requests_held(const State& state) const { return state.waiting(); }
  // Threads do not die on their own.
  bool has_dead_takers(const State&) const { return false; }
  void forget_the_dead(State&) {}
  std::string who() const { return {}; }

 private:
  Sum sum_;
  std::vector<Seat*> seats_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
