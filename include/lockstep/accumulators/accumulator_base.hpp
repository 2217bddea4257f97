// SPDX-License-Identifier: MIT
/// @file
/// What the dense and the sparse conditional accumulator have in common: staleness, counting, takers,
/// waiting.
#pragma once

#include <lockstep/accumulators/await.hpp>
#include <lockstep/accumulators/tensor.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/protocol/accumulator.hpp>
#include <lockstep/reduction.hpp>
#include <lockstep/transport/fork_guard.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/transport.hpp>

#include <chrono>
#include <climits>
#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// What an accumulator is made from.
struct AccumulatorOptions {
  std::optional<Shape> shape = std::nullopt;  ///< declared shape of the gradients; absent = of any rank
  Reduction reduction = Reduction::mean;      ///< what `take_grad` gives
};

namespace detail {

/// @brief Applies gradients to a running sum and hands it to takers, by the rules of `protocol::Accumulator`.
///
/// `Sum` is the storage: `check(gradient, is_first)` throws if the gradient does not fit; `add(gradient,
/// is_first)` replaces (first) or adds, whole or not at all; `hand_out(count)` gives away the result and may
/// not throw. All of them are called in the session's critical section, so a sum needs no lock of its own.
template <class Sum, Transport Net>
class AccumulatorBase {
  static_assert(
      !Net::k_survives_kill,
      "[lockstep.accumulator.one_process] the sums and results of an accumulator lie in the memory of "
      "one process, so its transport must be one between threads");

 public:
  using Gradient = typename Sum::Gradient;
  using Result = typename Sum::Result;
  class Taker;

  AccumulatorBase(const AccumulatorBase&) = delete;
  AccumulatorBase& operator=(const AccumulatorBase&) = delete;

  /// @brief Waits for the aggregate of at least `num_required` gradients, takes it, and advances the step by
  /// one.
  ///
  /// Requests are served strictly in order of arrival. The mean is over all gradients that are in the sum.
  /// @throws InvalidArgument if `num_required` or `timeout` is not positive; at once, and nothing is queued.
  /// @throws Cancelled if a stop is requested first.
  /// @throws TimeoutError when `timeout` has passed. Either way the accumulator is as if this call had not
  /// been made.
  /// @throws CapacityExceeded if too many requests are in line.
  /// @par Thread safety any number of threads.
  Result take_grad(Index num_required, std::chrono::nanoseconds timeout = k_default_deadline,
                   const std::stop_token& stop = {}) {
    require_positive(num_required);
    const Deadline deadline(timeout);
    if (stop.stop_requested()) throw Cancelled("take_grad: stop was requested");
    Taker taker = begin_take(num_required);
    return finish(*taker.seat_, deadline, stop, true);
  }

  /// @brief Gets in line for an aggregate without waiting. See `Taker`.
  /// @throws InvalidArgument, CapacityExceeded as `take_grad`.
  [[nodiscard]] Taker begin_take(Index num_required) {
    require_positive(num_required);
    auto seat = std::make_unique<Seat>();
    seat->num_required = num_required;
    bool served = false;
    const bool admitted = session_.exclusive([&](State& state) {
      seats_.push_back(seat.get());
      const auto begun = state.begin_take(num_required);
      if (begun.admission != protocol::Admission::admitted) {
        seats_.pop_back();
        return false;
      }
      seat->ticket = begun.ticket;
      served = serve(state);
      return true;
    });
    if (!admitted)
      throw_error<CapacityExceeded>("take_grad: ", takers_in_line(), " requests are in line, no more fit");
    if (served) rouse();
    return Taker(*this, std::move(seat));
  }

  /// Number of gradients in the sum.
  Index num_accumulated() const {
    return session_.exclusive([](State& state) { return state.count(); });
  }

  /// The accumulator's own step: gradients with a lower local step are dropped.
  Index step() const {
    return session_.exclusive([](State& state) { return state.step(); });
  }

  /// Sets the step. What is already in the sum stays in it, and nobody is served.
  /// @return true if the step went backwards, which is allowed but seldom meant.
  bool set_global_step(Index step) {
    return session_.exclusive([&](State& state) { return state.set_global_step(step); });
  }

 protected:
  AccumulatorBase(const Net& net, const AccumulatorOptions& options)
      : sum_((require_valid_declaration(options.shape), options)),
        session_(net, State{}, SessionSpec{.bytes = word_bytes()}),
        word_(*Carver(session_.memory().data()).template array<WaitWord>(1)) {}
  ~AccumulatorBase() = default;

  bool apply(const Gradient& gradient, Index local_step) {
    bool served = false;
    const bool accepted = session_.exclusive([&](State& state) {
      if (state.is_stale(local_step)) return false;
      const bool is_first = state.count() == 0;
      sum_.check(gradient, is_first);
      sum_.add(gradient, is_first);
      state.on_apply(local_step);
      served = serve(state);
      return true;
    });
    if (served) rouse();
    return accepted;
  }

 private:
  using State = protocol::Accumulator<>;
  enum class Phase { waiting, served, cancelled, taken };

  /// Where a taker's result is put. Owned by the taker, listed in `seats_` while it waits, guarded by the
  /// session.
  struct Seat {
    protocol::Ticket ticket = 0;
    Index num_required = 0;
    Phase phase = Phase::waiting;
    std::optional<Result> result;
  };

  static void require_positive(Index num_required) {
    if (num_required <= 0)
      throw_error<InvalidArgument>("take_grad: num_required must be positive, got ", num_required);
  }
  static std::size_t word_bytes() {
    Carver size;
    size.array<WaitWord>(1);
    return size.used();
  }
  std::size_t takers_in_line() const {
    return session_.exclusive([](State& state) { return state.waiting(); });
  }
  void rouse() {
    word_.bump();
    session_.wake(word_, INT_MAX);
  }

  /// Hands the sum to the head of the line if it is due; true if so.
  bool serve(State& state) noexcept {
    const auto served = state.serve();
    if (!served) return false;
    for (auto at = seats_.begin(); at != seats_.end(); ++at) {
      if ((*at)->ticket != served->ticket) continue;
      (*at)->result.emplace(sum_.hand_out(served->count));
      (*at)->phase = Phase::served;
      seats_.erase(at);
      break;
    }
    return true;
  }

  bool cancel(Seat& seat) {
    const bool cancelled = session_.exclusive([&](State& state) {
      if (seat.phase != Phase::waiting || !state.cancel(seat.ticket)) return false;
      seat.phase = Phase::cancelled;
      std::erase(seats_, &seat);
      serve(state);
      return true;
    });
    if (cancelled) rouse();
    return cancelled;
  }

  Phase phase(const Seat& seat) const {
    return session_.exclusive([&](State&) { return seat.phase; });
  }

  Result finish(Seat& seat, const Deadline& deadline, const std::stop_token& stop, bool leaves_at_deadline) {
    const WaitEnd end = await(session_, word_, deadline, stop, [&] { return phase(seat) != Phase::waiting; });
    // The taker may be served between the look and the cancel: then the result is here and is not thrown
    // away.
    if (end == WaitEnd::stopped && cancel(seat)) throw Cancelled("take_grad: stop was requested");
    if (end == WaitEnd::expired && (leaves_at_deadline ? cancel(seat) : phase(seat) == Phase::waiting))
      throw TimeoutError(text("take_grad: ", seat.num_required, " gradients required, ", num_accumulated(),
                              " accumulated after ", milliseconds(deadline), " ms"),
                         {});
    return session_.exclusive([&](State&) {
      if (seat.phase == Phase::cancelled) throw Cancelled("take_grad: the taker was cancelled");
      if (seat.phase == Phase::taken) throw UsageError("take_grad: the result of this taker has been taken");
      seat.phase = Phase::taken;
      Result result = std::move(*seat.result);
      seat.result.reset();
      return result;
    });
  }

  ForkGuard fork_guard_;
  Sum sum_;
  std::vector<Seat*> seats_;
  mutable typename Net::template Session<State> session_;
  WaitWord& word_;  // bumped when a taker is served or cancelled
};

/// @brief A request for an aggregate that stands in line; it is served inside whatever call makes it due.
///
/// Move-only. Destroying it cancels it; a result that was served and not taken is lost. It must not outlive
/// its accumulator. One thread uses a taker, but any thread may `cancel` it.
template <class Sum, Transport Net>
class AccumulatorBase<Sum, Net>::Taker {
 public:
  Taker(Taker&&) noexcept = default;
  Taker& operator=(Taker&& other) noexcept {
    if (this != &other) {
      if (seat_) home_->cancel(*seat_);
      home_ = other.home_;
      seat_ = std::move(other.seat_);
    }
    return *this;
  }
  ~Taker() {
    if (seat_ && !home_->fork_guard_.is_in_child()) home_->cancel(*seat_);
  }

  /// True if `get` will not wait.
  bool ready() const { return home_->phase(seat()) != Phase::waiting; }

  /// @brief Waits for the result and takes it out.
  /// @throws TimeoutError when `timeout` has passed; the taker stays in line.
  /// @throws Cancelled if the taker was cancelled, or a stop is requested, which cancels it.
  /// @throws UsageError if the result was taken before.
  Result get(std::chrono::nanoseconds timeout = k_default_deadline, const std::stop_token& stop = {}) {
    return home_->finish(seat(), Deadline(timeout), stop, false);
  }

  /// Leaves the line, after which the next taker may be served at once. False if it was served or cancelled
  /// before.
  bool cancel() { return home_->cancel(seat()); }

 private:
  friend AccumulatorBase;
  Taker(AccumulatorBase& home, std::unique_ptr<Seat> seat) : home_(&home), seat_(std::move(seat)) {}
  Seat& seat() const {
    if (!seat_) throw UsageError("take_grad: the taker was moved from");
    return *seat_;
  }

  AccumulatorBase* home_;
  std::unique_ptr<Seat> seat_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
