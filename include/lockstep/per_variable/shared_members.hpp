// SPDX-License-Identifier: MIT
/// @file
/// Who takes part in a `VariableReplicas` trainer between processes, what it may look at, and its line for
/// tokens.
#pragma once

#include <lockstep/accumulators/await.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/per_variable/membership.hpp>
#include <lockstep/per_variable/shared_state.hpp>
#include <lockstep/per_variable/update.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Seats, counters, start and end, as the engine's callers see them.
template <class R, class Net, class T>
class SharedVariableMembers : public SharedVariableState<R, Net, T> {
  using State = SharedVariableState<R, Net, T>;

 public:
  /// A place in the line for tokens.
  struct Waiter {
    protocol::Ticket ticket;
  };

  using State::cooperative;
  using State::layout;
  using State::options;
  using State::State;

  // ---- replicas

  std::vector<int> seats_here() const { return session_.seats_here(options().replicas()); }
  /// Takes a place, any if it is negative; its local step becomes the global step. Waits for a chief that has
  /// not started yet. @return the place. @throws Cancelled, TimeoutError
  int join(int place, const std::stop_token& stop) {
    if (const std::vector<int> seats = seats_here(); place < 0 && seats.size() == 1) place = seats.front();
    wait_for_chief(stop);
    const int taken = State::transition([&](VariableControl& control) {
      State::settle_the_dead(control);
      const int free = place < 0 ? control.free_place() : checked(place);
      if (free < 0) throw_error<UsageError>("join: all ", control.replicas, " replicas have joined already");
      VariablePlace& mine = control.at(free);
      if (mine.seat == protocol::Seat::active)
        throw_error<UsageError>("join: replica ", free, " has joined already");
      mine.seat = protocol::Seat::active;
      mine.owner = State::attendance_.place();
      mine.local_step = control.updater.window.global_step;
      return free;
    });
    fault_point("join: seated");
    return taken;
  }
  std::int64_t sequence(int place) {
    return State::look([&](const VariableControl& control) { return control.at(checked(place)).sequence; });
  }
  Index local_step(int place) {
    return State::look([&](const VariableControl& control) { return control.at(checked(place)).local_step; });
  }
  void set_local_step(int place, Index step) {
    State::transition([&](VariableControl& control) { control.at(checked(place)).local_step = step; });
  }
  /// It has left in the ordinary way.
  void depart(int place, std::optional<Waiter>& line) noexcept {
    leave_as(protocol::Seat::left, place, line, [this, place](VariableControl& control) {
      if (options().departure == Departure::stop) control.tokens.close();
      if (options().departure == Departure::fail) State::fail(control, place, "it has left");
    });
  }
  /// An exception has ended its loop. @param reason a literal.
  void die(int place, std::optional<Waiter>& line, const char* reason) noexcept {
    leave_as(protocol::Seat::dead, place, line,
             [this, place, reason](VariableControl& control) { State::fail(control, place, reason); });
  }

  // ---- the global step, accumulators and variables

  protocol::Window counters() {
    return State::look([](const VariableControl& control) { return control.updater.window; });
  }
  std::int64_t global_step() { return counters().global_step; }
  void set_global_step(std::int64_t step) {
    State::transition([&](VariableControl& control) { control.updater.window.global_step = step; });
  }
  /// Copies all variables. @return the counters that they belong to.
  protocol::Window read(std::vector<T>& to) {
    return State::look([&](const VariableControl& control) {
      const auto size = static_cast<std::size_t>(layout().size());
      to.resize(size);
      std::copy_n(State::updater().values(), size, to.data());
      return control.updater.window;
    });
  }
  /// Calls `f(state)` while nobody writes variables, slots or counters.
  template <class F>
  decltype(auto) while_still(F&& f) {
    const Hold hold(*this);
    return std::forward<F>(f)(State::look([](const VariableControl& control) { return control.updater; }));
  }
  Index num_accumulated(std::uint32_t id) {
    return State::look([&](const VariableControl& control) { return existing(control, id).machine.count(); });
  }
  Index accumulator_step(std::uint32_t id) {
    return State::look([&](const VariableControl& control) { return existing(control, id).machine.step(); });
  }
  std::vector<Index> tokens() {
    return State::look([](const VariableControl& control) {
      std::vector<Index> result;
      control.tokens.for_each_token([&](Index token) { result.push_back(token); });
      return result;
    });
  }

  // ---- start and end

  ChiefInit init_chief(Index num_tokens) {
    const Index count = expect_enough(num_tokens);
    return State::transition([&](VariableControl& control, bool& has_news) {
      has_news = true;
      const bool went_backwards = State::set_steps(control);
      return ChiefInit{State::give(control, control.updater.window.global_step, count), went_backwards};
    });
  }
  bool set_steps() {
    return State::transition([&](VariableControl& control, bool& has_news) {
      has_news = true;
      return State::set_steps(control);
    });
  }
  Index add_init_tokens(Index num_tokens) {
    const Index count = expect_enough(num_tokens);
    return State::transition([&](VariableControl& control, bool& has_news) {
      has_news = true;
      return State::give(control, control.updater.window.global_step, count);
    });
  }
  std::int64_t init_worker(int place) {
    return State::transition([&](VariableControl& control) {
      return control.at(checked(place)).local_step = control.updater.window.global_step;
    });
  }
  /// Everybody may join anew. A closed queue of tokens is replaced by a fresh one.
  void start_over() {
    State::transition([&](VariableControl& control) {
      State::settle_the_dead(control);
      const auto active =
          std::count_if(control.places.begin(), control.places.end(),
                        [](const VariablePlace& place) { return place.seat == protocol::Seat::active; });
      if (active > 0) throw_error<UsageError>("run: ", active, " replicas are still active");
      for (VariablePlace& place : control.places) {
        place.seat = protocol::Seat::vacant;
        place.sequence = 0;
      }
      control.failed = false;
      control.culprit = protocol::k_nobody;
      session_.clear_note();
      if (!control.tokens.is_closed()) return;
      control.tokens.reopen();
      State::give(control, control.updater.window.global_step, options().start_tokens());
    });
  }
  void close() {
    State::transition([](VariableControl& control, bool& has_news) { has_news = control.tokens.close(); });
  }

 protected:
  using State::session_;

  Index expect_enough(Index num_tokens) const {
    return protocol::init_tokens(options().replicas_to_aggregate, options().replicas(), num_tokens);
  }
  int checked(int place) const {
    if (place < 0 || place >= options().replicas())
      throw_error<InvalidArgument>("replica numbers are 0 to ", options().replicas() - 1, ", got ", place);
    return place;
  }
  void expect_healthy(const VariableControl& control, int place) const {
    if (control.failed) throw failure_for(place, control.culprit, session_.note());
  }

  /// `transition(f)` for a clean-up, which has news; if the session cannot be entered, the next transition of
  /// this process does it. @param f is kept by value then.
  template <class F>
  void now_or_later(const F& f) noexcept {
    try {
      try {
        State::transition([&](VariableControl& control, bool& has_news) {
          f(control);
          has_news = true;
        });
      } catch (...) {
        State::owed_.add(f);
      }
    } catch (...) {  // no memory to keep it: it is done when the lease ends
    }
  }

  // ---- waits

  /// `look(f)`, after settling what the dead have left.
  template <class F>
  auto look_and_settle(F&& f) {
    if (State::look([&](const VariableControl& control) { return State::is_anybody_dead(control); }))
      State::transition([&](VariableControl& control, bool& has_news) {
        State::settle_the_dead(control);
        has_news = true;
      });
    return State::look(std::forward<F>(f));
  }

  /// Who and what a wait is for.
  TimeoutError timed_out(const std::string& subject, int except = -1) {
    std::vector<Missing> missing;
    std::string why;
    State::look([&](const VariableControl& control) {
      missing = missing_in(control, except);
      why = text_of_missing(
          layout(), options().replicas_to_aggregate,
          [&](std::uint32_t id) {
            const bool waits =
                State::kind(id) != GradientKind::none && !State::record(control, id).is_served();
            return waits ? State::record(control, id).machine.count() : -1;
          },
          missing);
      if (!cooperative() && control.chief < 0) why += "; there is no chief";
      if (control.is_held()) why += "; a call of while_still does not end";
      return true;
    });
    return TimeoutError(subject + why + State::attendance_.who(), std::move(missing));
  }
  std::vector<Missing> missing_in(const VariableControl& control, int except) {
    std::vector<Missing> result;
    for (int place = 0; place < control.replicas; ++place) {
      const int waiter = State::arrays_.waiting[place].load(std::memory_order_relaxed) - 1;
      const bool waits = waiter >= 0 && waiter < k_max_replicas && State::attendance_.is_there(waiter);
      if (place == except || waits) continue;
      const VariablePlace& at = control.at(place);
      result.push_back({place, at.seat == protocol::Seat::vacant ? Missing::Why::not_joined
                               : at.seat == protocol::Seat::left ? Missing::Why::left
                               : at.seat == protocol::Seat::active && State::attendance_.is_there(at.owner)
                                   ? Missing::Why::slow
                                   : Missing::Why::dead});
    }
    return result;
  }

  // ---- the line for tokens

  void get_in_line(VariableControl& control, std::optional<Waiter>& line) {
    auto begun = control.tokens.begin_dequeue(State::attendance_.place());
    if (begun.admission == protocol::Admission::full) {
      control.tokens.forget_if([this](int process) { return !State::attendance_.is_there(process); });
      begun = control.tokens.begin_dequeue(State::attendance_.place());
    }
    if (begun.admission != protocol::Admission::admitted)
      throw CapacityExceeded("token: the line of requests is full");
    line.emplace(Waiter{begun.ticket});
  }
  /// A token that was there already goes back to the queue.
  void leave(VariableControl& control, const std::optional<Waiter>& line) {
    if (!line || control.tokens.cancel(line->ticket)) return;
    const protocol::Dequeued found = control.tokens.poll(line->ticket);
    if (found.outcome != protocol::Dequeued::Outcome::token) return;
    try {
      State::give(control, found.value, 1);
    } catch (const CapacityExceeded&) {  // then it is lost
    }
  }
  void leave(std::optional<Waiter>& line) noexcept {
    if (!line) return;
    now_or_later([this, left = line](VariableControl& control) { leave(control, left); });
    line.reset();
  }

 private:
  /// Keeps variables, slots and counters as they are.
  class Hold {
   public:
    explicit Hold(SharedVariableMembers& engine) : engine_(engine) {
      engine.transition([&](VariableControl& control) { ++engine.holds_here(control); });
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() {
      engine_.now_or_later([&engine = engine_](VariableControl& control) { --engine.holds_here(control); });
    }

   private:
    SharedVariableMembers& engine_;
  };
  std::int32_t& holds_here(VariableControl& control) const {
    return control.holds[static_cast<std::size_t>(State::attendance_.place())];
  }

  const SumRecord& existing(const VariableControl& control, std::uint32_t id) {
    if (State::kind(id) == GradientKind::none)
      throw_error<UsageError>("accumulator: variable '", layout()[id].name,
                              "' has no gradient, so none was made");
    return State::record(control, id);
  }

  /// A chief may be a process that starts later.
  void wait_for_chief(const std::stop_token& stop) {
    const WaitEnd end = await(session_, State::word(), Deadline(options().deadline), stop, [&] {
      return State::look([](const VariableControl& control) { return control.has_steps; });
    });
    if (end == WaitEnd::stopped) throw Cancelled("join: stop was requested");
    if (end == WaitEnd::expired)
      throw TimeoutError(
          text("join: waited ", options().deadline.count(), " ms for a chief that calls init_chief()"), {});
  }
  template <class F>
  void leave_as(protocol::Seat seat, int place, std::optional<Waiter>& line, const F& then) noexcept {
    now_or_later([this, seat, place, left = line, then](VariableControl& control) {
      leave(control, left);
      control.at(place).seat = seat;
      control.at(place).owner = k_no_process;
      then(control);
    });
    line.reset();
  }
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
