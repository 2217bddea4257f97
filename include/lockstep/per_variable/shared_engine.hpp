// SPDX-License-Identifier: MIT
/// @file
/// What a `VariableReplicas` trainer between processes and its replicas call.
#pragma once

#include <lockstep/accumulators/await.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/per_variable/shared_members.hpp>
#include <lockstep/per_variable/update.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// The requests that a chief makes to all accumulators. They stand in the session, in the name of the chief.
template <class Engine>
class SharedRequests {
 public:
  explicit SharedRequests(Engine& engine) : engine_(engine) {}
  void begin(Index) { engine_.ask(); }
  bool is_begun() const { return engine_.is_asked(); }
  bool is_served(std::uint32_t id) const { return engine_.is_served(id); }
  void abort() { engine_.withdraw(); }

 private:
  Engine& engine_;
};

/// @brief The engine of `VariableReplicas` where replicas may be processes that die at any instruction.
///
/// A push is one transition: the gradients of all variables count, and the replica is in line for a token, or
/// nothing has happened.
template <class R, class Net, class T>
class SharedVariableEngine : public SharedVariableMembers<R, Net, T> {
  using Members = SharedVariableMembers<R, Net, T>;
  using State = SharedVariableState<R, Net, T>;

 public:
  using Takes = SharedRequests<SharedVariableEngine>;
  using Waiter = typename Members::Waiter;

  using Members::Members;
  using State::cooperative;
  using State::layout;
  using State::options;

  // ---- a replica's step

  std::vector<Pushed> push(int place, std::span<const NumberedGradient<T>> gradients) {
    return push_and(place, gradients, 0, [](VariableControl&) {});
  }
  /// The same, and gets in line for a token.
  std::vector<Pushed> push(int place, std::span<const NumberedGradient<T>> gradients,
                           std::optional<Waiter>& line, std::int64_t batches = 1) {
    return push_and(place, gradients, batches, [&](VariableControl& control) { get_in_line(control, line); });
  }
  /// Waits for a token; it becomes the replica's local step. After an error nobody is in line.
  Index token(int place, std::chrono::milliseconds timeout, const std::stop_token& stop) {
    std::optional<Waiter> line;
    try {
      return token(place, timeout, stop, line);
    } catch (...) {
      leave(line);
      throw;
    }
  }
  /// The same for one that is in line, or gets there now. After a timeout it stays in line.
  Index token(int place, std::chrono::milliseconds timeout, const std::stop_token& stop,
              std::optional<Waiter>& line) {
    const Deadline deadline(timeout);
    State::transition([&](VariableControl& control) {
      expect_healthy(control, checked(place));
      if (!line) get_in_line(control, line);
    });
    fault_point("token: in line");
    WaitEnd end = WaitEnd::settled;
    {
      const Waiting waiting(*this, place);
      end = await(session_, State::word(), deadline, stop, [&] { return has_token(place, line->ticket); });
    }
    if (end == WaitEnd::expired)
      throw timed_out(text("replica ", place, " waited ", timeout.count(), " ms for a token"), place);
    const protocol::Dequeued result = State::transition([&](VariableControl& control) {
      // It may have been served between the look and this: then the token is here and is not thrown away.
      if (end == WaitEnd::stopped) control.tokens.cancel(line->ticket);
      const protocol::Dequeued found = control.tokens.poll(line->ticket);
      if (found.outcome == protocol::Dequeued::Outcome::token) control.at(place).local_step = found.value;
      return found;
    });
    line.reset();
    fault_point("token: taken");
    if (result.outcome == protocol::Dequeued::Outcome::out_of_range)
      throw OutOfRange("token: training has ended, and no tokens are left");
    if (result.outcome == protocol::Dequeued::Outcome::cancelled)
      throw Cancelled("token: stop was requested");
    return result.value;
  }
  /// Gradients and token in one call, for one who keeps no place in the line.
  Index step(int place, std::span<const NumberedGradient<T>> gradients, std::chrono::milliseconds timeout,
             const std::stop_token& stop) {
    std::optional<Waiter> line;
    try {
      push(place, gradients, line);
      return token(place, timeout, stop, line);
    } catch (...) {
      leave(line);
      throw;
    }
  }

  // ---- the chief

  Takes takes() { return Takes(*this); }
  /// False if there is one. What a dead one has taken is lost.
  bool claim_chief() {
    return State::transition([&](VariableControl& control) {
      State::settle_the_dead(control);
      if (control.chief != k_no_process) return false;
      control.chief = State::attendance_.place();
      return true;
    });
  }
  void release_chief() noexcept {
    Members::now_or_later([this](VariableControl& control) {
      State::withdraw(control);
      control.chief = k_no_process;
    });
  }
  void ask() {
    State::transition([&](VariableControl& control) { State::ask(control); });
    fault_point("chief: asked");
  }
  void withdraw() {
    State::transition([&](VariableControl& control) { State::withdraw(control); });
  }
  bool is_served(std::uint32_t id) {
    return State::look([&](const VariableControl& control) {
      return State::kind(id) != GradientKind::none && State::record(control, id).is_served();
    });
  }
  bool is_asked() {
    return State::look([&](const VariableControl& control) {
      bool is_any = false;
      State::sums().for_each(
          [&](std::uint32_t id) { is_any = is_any || State::record(control, id).is_asked(); });
      return is_any;
    });
  }
  /// Waits until all requests of the chief are served.
  /// @throws TimeoutError, Cancelled; OutOfRange after `close()`; PeerFailed.
  void collect(Takes&, std::chrono::milliseconds timeout, const std::stop_token& stop) {
    enum class Now { waits, served, closed };
    Now now = Now::waits;
    const WaitEnd end = await(session_, State::word(), Deadline(timeout), stop, [&] {
      now = look_and_settle([&](const VariableControl& control) {
        if (State::is_due(control)) return Now::served;
        expect_healthy(control, protocol::k_nobody);
        return control.tokens.is_closed() ? Now::closed : Now::waits;
      });
      return now != Now::waits;
    });
    if (end == WaitEnd::stopped) throw Cancelled("chief: stop was requested");
    if (end == WaitEnd::expired) throw timed_out(text("chief: waited ", timeout.count(), " ms"));
    if (now == Now::closed) throw OutOfRange("chief: training has ended");
  }
  /// Applies what the chief has collected, once nobody keeps the variables still.
  /// @throws what a schedule throws; the trainer then has failed. TimeoutError
  VariableUpdate update(Takes&, std::chrono::milliseconds timeout) {
    const std::int64_t updates = Members::counters().updates;
    const Deadline deadline(timeout);
    while (Members::counters().updates == updates) {
      const std::uint32_t seen = State::word().seen();
      if (guarded_update(protocol::k_nobody)) break;
      look_and_settle(
          [&](const VariableControl& control) { return expect_healthy(control, protocol::k_nobody), true; });
      if (deadline.passed()) throw timed_out(text("chief: waited ", timeout.count(), " ms"));
      session_.wait(State::word(), seen, deadline.end(), options().replicas());
    }
    return State::look([&](const VariableControl& control) {
      const Index count = protocol::tokens_per_step(options().replicas_to_aggregate, options().replicas());
      return VariableUpdate{control.updater.window.global_step, control.tokens.is_closed() ? 0 : count};
    });
  }
  /// Ends the training for all who wait.
  void chief_failed(const std::string& reason) { has_failed(protocol::k_nobody, reason); }

 private:
  using Members::checked;
  using Members::expect_healthy;
  using Members::get_in_line;
  using Members::leave;
  using Members::look_and_settle;
  using Members::timed_out;
  using State::session_;

  /// Marks a replica as waiting for a token while it lives.
  class Waiting {
   public:
    Waiting(SharedVariableEngine& engine, int place) : mark_(engine.arrays_.waiting[place]) {
      mark_.store(engine.attendance_.place() + 1, std::memory_order_relaxed);
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() { mark_.store(0, std::memory_order_relaxed); }

   private:
    std::atomic<std::int32_t>& mark_;
  };

  // ---- waits

  /// Whether there is news of a token. Carries out the update that is due, if nobody is at it.
  bool has_token(int place, protocol::Ticket ticket) {
    struct Now {
      bool is_settled, is_due;
    };
    const Now now = look_and_settle([&](const VariableControl& control) {
      expect_healthy(control, place);
      return Now{!control.tokens.is_pending(ticket), State::is_due(control)};
    });
    if (!now.is_settled && now.is_due) drive(place);
    return now.is_settled;
  }
  /// With Driver::cooperative: carries out every update that is due, unless somebody is at it.
  void drive(int place) {
    if (!cooperative()) return;
    while (State::look([&](const VariableControl& control) { return State::is_due(control); }))
      if (!guarded_update(place)) return;
  }
  /// The same for one whose gradients count already, so that it must not seem to have failed. False if the
  /// session could not be entered for too long: whoever waits for a token drives on.
  bool has_driven(int place) {
    try {
      drive(place);
      return true;
    } catch (const TimeoutError&) {
      return false;
    }
  }
  bool guarded_update(int place) {
    try {
      return State::update_if_due();
    } catch (const TimeoutError&) {
      throw;
    } catch (...) {
      has_failed(place, text_of_exception());
      throw;
    }
  }
  void has_failed(int place, const std::string& reason) {
    const std::string told = place < 0 ? text("the chief failed: ", reason) : reason;
    Members::now_or_later(
        [this, place, told](VariableControl& control) { State::fail(control, place, told); });
  }

  // ---- gradients and the line

  template <class F>
  std::vector<Pushed> push_and(int place, std::span<const NumberedGradient<T>> gradients,
                               std::int64_t batches, F&& then) {
    checked(place);
    std::vector<bool> seen(layout().count());
    for (const auto& [id, gradient] : gradients) {
      const VariableInfo& info = layout()[id];
      expect_first(info, seen);  // there is one spare buffer for each
      check_gradient(info, State::kind(id), State::groups_.is_trainable(id), gradient);
      if (State::kind(id) != GradientKind::none) State::sums().check(id, gradient);
    }
    std::vector<Pushed> result(layout().count(), Pushed::absent);
    bool is_due = false;
    State::transition([&](VariableControl& control) {
      expect_healthy(control, place);
      for (const auto& [id, gradient] : gradients) result[id] = add(control, place, id, gradient);
      control.at(place).sequence += batches;
      then(control);
      is_due = State::is_due(control);
    });
    fault_point("push: done");
    if (is_due && !(cooperative() && has_driven(place)))
      State::announce();  // to the chief, or to those who wait: they drive as well
    return result;
  }
  Pushed add(VariableControl& control, int place, std::uint32_t id, const VariableGradient<T>& gradient) {
    if (State::kind(id) == GradientKind::none || gradient.index() == 0) return Pushed::absent;
    if (!State::sums().add(control.serial, id, gradient, control.at(place).local_step))
      return Pushed::dropped;
    State::serve(control, id);
    return Pushed::accepted;
  }
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
