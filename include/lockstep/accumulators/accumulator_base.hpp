// SPDX-License-Identifier: MIT
/// @file
/// What the dense and the sparse conditional accumulator have in common: staleness, counting, takers,
/// waiting.
#pragma once

#include <lockstep/accumulators/await.hpp>
#include <lockstep/accumulators/local_store.hpp>
#include <lockstep/accumulators/options.hpp>
#include <lockstep/accumulators/shared_store.hpp>
#include <lockstep/accumulators/tensor.hpp>
#include <lockstep/config.hpp>
#include <lockstep/enumerator.hpp>
#include <lockstep/error.hpp>
#include <lockstep/transport/fork_guard.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/owed.hpp>
#include <lockstep/transport/transport.hpp>

#include <chrono>
#include <climits>
#include <cstddef>
#include <memory>
#include <stop_token>
#include <type_traits>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// The sum in the memory of this process, or in that of the session if its processes may be killed.
template <class Local, class Shared, Transport Net>
using AccumulatorStore =
    std::conditional_t<Net::k_survives_kill, SharedStore<Shared, Net>, LocalStore<Local, Net>>;

/// @brief Applies gradients to a running sum and hands it to takers, by the rules of `protocol::Accumulator`.
/// @tparam Store `AccumulatorStore`: where sum and results lie. See `LocalStore`.
template <class Store, Transport Net>
class AccumulatorBase {
 public:
  using Gradient = typename Store::Gradient;
  using Result = typename Store::Result;
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
  /// @throws CapacityExceeded if too many requests are in line or, between processes, not collected.
  /// @par Thread safety any number of threads.
  Result take_grad(Index num_required, Timeout timeout = k_default_deadline,
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
    const bool admitted = transition([&](State& state) {
      if (!store_.begin_take(state, *seat)) return false;
      served = store_.serve(state);
      return true;
    });
    if (!admitted)
      throw_error<CapacityExceeded>("take_grad: ", requests_held(),
                                    " requests are in line or not collected, no more fit", store_.who());
    if (served) rouse();
    return Taker(*this, std::move(seat));
  }

  /// Number of gradients in the sum.
  Index num_accumulated() const {
    return session_.exclusive([](const State& state) { return state.count(); });
  }

  /// The accumulator's own step: gradients with a lower local step are dropped.
  Index step() const {
    return session_.exclusive([](const State& state) { return state.step(); });
  }

  /// Sets the step. What is already in the sum stays in it, and nobody is served.
  /// @return true if the step went backwards, which is allowed but seldom meant.
  bool set_global_step(Index step) {
    return transition([&](State& state) { return state.set_global_step(step); });
  }

 protected:
  AccumulatorBase(const Net& net, const AccumulatorOptions& options)
      : session_(net, Store::initial(options), spec(options)),
        word_(*Carver(session_.memory().data()).template array<WaitWord>(1)),
        store_(options, session_, session_.memory().data() + word_bytes()) {}
  ~AccumulatorBase() = default;

  bool apply(const Gradient& gradient, Index local_step) {
    bool served = false;
    const bool accepted = transition([&](State& state) {
      if (state.is_stale(local_step)) return false;
      store_.add(state, gradient);
      state.on_apply(local_step);
      served = store_.serve(state);
      return true;
    });
    if (served) rouse();
    return accepted;
  }

 private:
  using State = typename Store::State;
  using Seat = typename Store::Seat;
  using Phase = TakerPhase;

  static void require_positive(Index num_required) {
    if (num_required <= 0)
      throw_error<InvalidArgument>("take_grad: num_required must be positive, got ", num_required);
  }
  static std::size_t word_bytes() {
    Carver size;
    size.array<WaitWord>(1);
    return size.used();
  }
  static SessionSpec spec(const AccumulatorOptions& options) {
    require_valid_declaration(options.shape);
    expect_enumerator("reduction", options.reduction, Reduction::sum);
    SessionSpec spec = Store::spec(options);
    spec.bytes += word_bytes();
    return spec;
  }
  std::size_t requests_held() const {
    return session_.exclusive([this](const State& state) { return store_.requests_held(state); });
  }
  void rouse() {
    word_.bump();
    session_.wake(word_, INT_MAX);
  }

  bool cancel(Seat& seat) {
    return leave([&](State& state) { return store_.cancel(state, seat); });
  }
  void abandon(Seat& seat) noexcept {
    if (fork_guard_.is_in_child()) return;
    try {
      leave([&](State& state) { return store_.abandon(state, seat); });
    } catch (...) {
      give_up_later(seat);
    }
  }
  /// A process has stopped inside the session: the next call gives up the place in line, or the end of the
  /// accumulator's lease does.
  void give_up_later([[maybe_unused]] const Seat& seat) noexcept {
    if constexpr (Net::k_survives_kill) {
      try {
        owed_.add([this, left = seat](State& state) mutable {
          store_.abandon(state, left);
          store_.serve(state);
        });
      } catch (...) {  // no memory to keep it
      }
    }
  }
  /// Calls `f(state)` inside the exclusion, after what could not be given up before.
  template <class F>
  auto transition(F&& f) {
    std::size_t owed = 0;
    const auto result = session_.exclusive([&](State& state) {
      owed = owed_.do_all(state);
      return call_and_then(f, state, [&] { owed_.forget(owed); });
    });
    if (owed > 0) rouse();
    return result;
  }
  /// Who is behind one that has left the line may be due.
  template <class F>
  bool leave(F&& f) {
    const bool has_left = transition([&](State& state) {
      if (!f(state)) return false;
      store_.serve(state);
      return true;
    });
    if (has_left) rouse();
    return has_left;
  }

  Phase phase(const Seat& seat) const {
    return session_.exclusive([&](const State& state) { return store_.phase(state, seat); });
  }

  /// The phase, after giving up the places of those who died in line. Who attaches gives them up too, and
  /// serves nobody.
  Phase look(const Seat& seat) {
    bool is_stuck = false;
    const Phase now = session_.exclusive([&](const State& state) {
      is_stuck = state.due() != 0 || store_.has_dead_takers(state);
      return store_.phase(state, seat);
    });
    if (now != Phase::waiting || !is_stuck) return now;
    session_.exclusive([&](State& state) {
      store_.forget_the_dead(state);
      store_.serve(state);
    });
    rouse();
    return phase(seat);
  }

  Result finish(Seat& seat, const Deadline& deadline, const std::stop_token& stop, bool leaves_at_deadline) {
    Phase now = Phase::waiting;
    const WaitEnd end = await(session_, word_, deadline, stop, [&] {
      now = look(seat);
      return now != Phase::waiting;
    });
    // The taker may be served between the look and the cancel: then the result is here and is not thrown
    // away.
    if (end == WaitEnd::stopped && cancel(seat)) throw Cancelled("take_grad: stop was requested");
    if (end == WaitEnd::expired && (leaves_at_deadline ? cancel(seat) : phase(seat) == Phase::waiting))
      throw TimeoutError(text("take_grad: ", seat.num_required, " gradients required, ", num_accumulated(),
                              " accumulated after ", milliseconds(deadline), " ms", store_.who()),
                         {});
    if (now == Phase::waiting) now = phase(seat);
    if (now == Phase::cancelled) throw Cancelled("take_grad: the taker was cancelled");
    if (now == Phase::taken) throw UsageError("take_grad: the result of this taker has been taken");
    return store_.take(session_, seat);
  }

  ForkGuard fork_guard_;
  mutable typename Net::template Session<State> session_;
  WaitWord& word_;  // bumped when a taker is served or cancelled
  Store store_;
  Owed<State> owed_;  // places in line that are given up by the next transition
};

/// @brief A request for an aggregate that stands in line; it is served inside whatever call makes it due.
///
/// Move-only. Destroying it cancels it; a result that was served and not taken is lost. It must not outlive
/// its accumulator. One thread uses a taker, but any thread may `cancel` it.
template <class Store, Transport Net>
class AccumulatorBase<Store, Net>::Taker {
 public:
  Taker(Taker&&) noexcept = default;
  Taker& operator=(Taker&& other) noexcept {
    if (this != &other) {
      if (seat_) home_->abandon(*seat_);
      home_ = other.home_;
      seat_ = std::move(other.seat_);
    }
    return *this;
  }
  ~Taker() {
    if (seat_) home_->abandon(*seat_);
  }

  /// True if `get` will not wait.
  bool ready() const { return home_->look(seat()) != Phase::waiting; }

  /// @brief Waits for the result and takes it out.
  /// @throws TimeoutError when `timeout` has passed; the taker stays in line.
  /// @throws Cancelled if the taker was cancelled, or a stop is requested, which cancels it.
  /// @throws UsageError if the result was taken before.
  Result get(Timeout timeout = k_default_deadline, const std::stop_token& stop = {}) {
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
