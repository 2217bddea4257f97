// SPDX-License-Identifier: MIT
/// @file
/// The round engine: what a trainer and its replicas call.
#pragma once

#include <lockstep/checkpoint/snapshot.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/optimizers/step_result.hpp>
#include <lockstep/protocol/round.hpp>
#include <lockstep/sync/control.hpp>
#include <lockstep/sync/trainer_state.hpp>
#include <lockstep/sync/update_crew.hpp>
#include <lockstep/transport/fault_point.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Places, each once; no memory is taken for them.
class Places {
 public:
  void add(int place) {
    if (!has(place)) list_[count_++] = place;
  }
  bool has(int place) const { return std::find(begin(), end(), place) != end(); }
  const int* begin() const { return list_.data(); }
  const int* end() const { return list_.data() + count_; }

 private:
  std::array<int, k_max_replicas + 1> list_;  // and visitors
  std::size_t count_ = 0;
};

/// What a replica or the program asks of a trainer beyond its own step: to look, to keep still, to start
/// over.
template <class R, class Net, class T, class G, class O>
class RoundEngine : public TrainerState<R, Net, T, G, O> {
  using State = TrainerState<R, Net, T, G, O>;

 public:
  using State::announce;
  using State::arrays;
  using State::board;
  using State::options;
  using State::progress;
  using State::replicas;
  using State::session;
  using State::title;
  using State::updater;

  RoundEngine(const R& recipe, const Net& net, Variables<T, G>& variables, const SyncOptions& settings,
              O observer)
      : State(recipe, net, variables, settings, std::move(observer)) {
    // If all replicas are of this process, its values are the initial ones, whoever joins first.
    if (static_cast<int>(session().seats_here(replicas()).size()) != replicas()) return;
    Visitor me(*this);
    const bool begins = session().exclusive([&](Control& control) {
      if (control.initialised || control.initialiser != k_unclaimed || !me.enter(control)) return false;
      control.initialiser = k_visitor;
      return true;
    });
    if (begins) State::start_training();
  }
  RoundEngine(const RoundEngine&) = delete;
  RoundEngine& operator=(const RoundEngine&) = delete;
  ~RoundEngine() {
    if constexpr (State::k_survives_kill) take_values_back();
  }

  UpdateCrew<State>& crew() { return crew_; }

  /// Sleeps until somebody announces something, for a slice, or until the deadline. Now and then one of those
  /// who wait looks for the dead: nobody tells of them.
  void sleep(std::uint32_t seen, Clock::time_point until) {
    session().wait(progress(), seen, until, replicas());
    if constexpr (State::k_survives_kill)
      if (is_my_turn_to_look()) {
        bury_the_dead();
        end_if_nobody_comes();
      }
  }

  /// Settles what those have left who died: their items, tasks, holds and permits. May itself be ended by a
  /// death and be done again.
  void bury_the_dead() {
    const Places suspects = session().exclusive([&](const Control& control) {
      Places places;
      if (control.round.visitors > 0) places.add(k_visitor);
      for (int place = 0; place < control.round.total; ++place)
        if (control.round.places[static_cast<std::size_t>(place)].seat == protocol::Seat::active)
          places.add(place);
      add_those_at_work(control, places);
      return places;
    });
    for (const int place : suspects) {
      if (session().alive(place)) continue;
      const bool found = session().exclusive([&](Control& control) { return bury(control, place); },
                                             [&](const Control& control) { board().publish(control); });
      fault_point("bury: not announced");
      if (found) announce();
    }
  }

  /// Inside exclusion: the same for one place, if its owner is dead. False if there was nothing to settle.
  bool bury(Control& control, int place) {
    if constexpr (!State::k_survives_kill) return false;
    protocol::Round& round = control.round;
    // Who has left may still carry out the update that its leaving has closed.
    const bool sits =
        place != k_visitor && round.places[static_cast<std::size_t>(place)].seat == protocol::Seat::active;
    if (session().alive(place)) return false;
    if (sits) fault_point("bury: begun");
    bool settles = sits;
    if (round.phase == protocol::Phase::applying)
      arrays().tiles.release_claims(control.stage, place, [&](Index i, Index first) {
        settles = true;
        const auto [begin, end] = updater().partition().item(i);
        const Index next = State::undo(place).restore(control.stage, i, begin + first,
                                                      updater().changed_arrays(control.plan), begin, end);
        fault_point("bury: item restored");
        return next - begin;
      });
    for (std::int32_t* task : {&control.initialiser, &control.planner})
      if (*task == place) {
        *task = k_unclaimed;
        settles = true;
      }
    if (control.committer == place) {
      settles = true;
      if (control.restoring) {
        session().leave_note("a restore was killed half-way: the variables are void until another restore");
        round.end(protocol::Ending::failed, protocol::k_nobody);
        control.committer = k_unclaimed;
      } else {
        // Its hook was called, or not any more: the update itself is whole.
        control.end_round({.contributions = control.averaged, .culprit = round.poisoned_by});
      }
    }
    if (place == k_visitor) {
      settles = settles || round.visitors > 0;
      round.dismiss_visitors();
    } else if (sits) {
      round.die(place);
      if (round.ending != protocol::Ending::none) session().leave_note("its process has died");
    }
    return settles;
  }

  /// First element of a slot array in which variable `id` may be read, of the rule or of the open window.
  const T* slot(std::string_view name, std::uint32_t id) {
    if (!Updater<R, T, G>::aggregates || name != k_grad_accum) return updater().slot(name);
    return session().exclusive([&](Control&) -> const T* {
      if (updater().has_window()) {
        updater().window().zero_absent(id);
        return updater().window().data();
      }
      no_window_.resize(static_cast<std::size_t>(updater().layout().size()));
      return no_window_.data();
    });
  }
  /// Calls `f()` while no update is written and none can start. Inside a hook after an update that is so
  /// already.
  /// @throws TimeoutError if an update does not end in time.
  template <class F>
  void while_still(std::chrono::milliseconds timeout, F&& f) {
    if (crew_.is_in_hook()) return f();
    Visitor me(*this);
    when_quiet("snapshot", timeout, me, [](Control& control) {
      return !control.restoring && control.initialised && control.round.hold();
    });
    const auto let_go = [&] {
      session().exclusive([](Control& control) { control.round.release(); });
      announce();
      if (options().driver == Driver::cooperative) crew_.advance(me.worker);
    };
    try {
      f();
    } catch (...) {
      let_go();
      throw;
    }
    let_go();
  }

  /// An update of its own: it waits for the one under way and for readers. The open round is given up: its
  /// contributions were computed with variables that are gone.
  /// @throws LayoutMismatch, and nothing has changed; TimeoutError if readers or an update do not end in
  /// time.
  void restore(const Snapshot<T>& snapshot, std::chrono::milliseconds timeout) {
    if (crew_.is_in_hook())
      throw_error<UsageError>(title(), "restore: not possible inside a hook after an update");
    updater().expect_fits(snapshot);
    Visitor me(*this);
    when_quiet("restore", timeout, me, [](Control& control) {
      if (control.round.readers > 0 || control.initialiser != k_unclaimed) return false;
      if (!control.restoring) control.round.start_update();
      control.committer = protocol::k_nobody;
      control.restoring = true;
      return true;
    });
    UpdaterState state;
    updater().load(snapshot, state);
    fault_point("restore: written");
    session().exclusive(
        [&](Control& control) {
          control.updater = state;
          control.end_round({.restored = true});
          control.restoring = false;
          control.initialised = true;
        },
        [&](const Control& control) { board().publish(control); });
    announce();
  }

  /// Forgets who has joined, left or failed. A round that has closed is carried out first, an open one is
  /// given up.
  /// @throws UsageError while a replica is active; TimeoutError if an update does not end in time.
  void start_over(std::chrono::milliseconds timeout) {
    if constexpr (State::k_survives_kill) bury_the_dead();
    Visitor me(*this);
    when_quiet("start_over", timeout, me, [this](Control& control) {
      if (control.restoring)
        throw_error<UsageError>(
            title(), "run: a restore was killed half-way, so the variables are void: restore first");
      if (control.round.active() > 0)
        throw_error<UsageError>(title(), "run: replicas that are still active: ", active_text(control.round));
      if (control.wants_plan(options().driver)) return false;
      control.round.reset_membership();
      control.clear_tasks();
      return true;
    });
    State::forget_failure();
  }

  /// Who the open round or update still waits for, other than who asks.
  std::vector<Missing> missing(int asks = protocol::k_nobody) {
    std::vector<Missing> result;
    session().exclusive([&](const Control& control) {
      Places at_work;
      add_those_at_work(control, at_work);
      for (int place = 0; place < control.round.total; ++place)
        if (place != asks && (control.round.is_missing(place) || at_work.has(place)))
          result.push_back(
              {place, control.round.is_missing(place) ? why(control.round, place) : slow_or_dead(place)});
    });
    return result;
  }

  /// Somebody who is no replica, and what it needs to take part. Where replicas may die there is one at a
  /// time.
  struct Visitor {
    explicit Visitor(RoundEngine& of) : engine(&of), lease(of.session().lease(k_visitor)) {}
    /// Makes room for others.
    void leave() {
      lease = engine->session().lease(k_visitor);
      is_in = false;
    }
    /// Inside exclusion. What the last one has left, who died, is settled first.
    bool enter(Control& control) {
      if (is_in) return true;
      (void)engine->bury(control, k_visitor);
      return is_in = lease.take();
    }
    RoundEngine* engine;
    decltype(std::declval<typename State::Session&>().lease(k_visitor)) lease;
    Worker<T, G> worker{protocol::k_nobody};
    bool is_in = false;
  };

 private:
  /// "0, 2 (of 4)"
  static std::string active_text(const protocol::Round& round) {
    std::string numbers;
    for (int place = 0; place < round.total; ++place)
      if (round.places[static_cast<std::size_t>(place)].seat == protocol::Seat::active)
        numbers += text(numbers.empty() ? "" : ", ", place);
    return text(numbers, " (of ", round.total, ")");
  }
  Missing::Why why(const protocol::Round& round, int place) {
    switch (round.places[static_cast<std::size_t>(place)].seat) {
      case protocol::Seat::vacant:
        return Missing::Why::not_joined;
      case protocol::Seat::left:
        return Missing::Why::left;
      case protocol::Seat::dead:
        return Missing::Why::dead;
      case protocol::Seat::active:
        break;
    }
    return slow_or_dead(place);
  }
  Missing::Why slow_or_dead(int place) {
    return session().alive(place) ? Missing::Why::slow : Missing::Why::dead;
  }

  /// Inside exclusion: those who have taken a task of the round or items of the update.
  void add_those_at_work(const Control& control, Places& to) {
    for (const int owner : {control.initialiser, control.planner, control.committer})
      if (owner != k_unclaimed) to.add(owner);
    if (control.round.phase == protocol::Phase::applying)
      arrays().tiles.for_each_claimed(control.stage, [&](int owner) { to.add(owner); });
  }

  /// Waits until nobody writes variables and `take(control)` gets what it asks for; carries out updates
  /// meanwhile.
  template <class Take>
  void when_quiet(const char* call, std::chrono::milliseconds timeout, Visitor& me, Take&& take) {
    const Deadline deadline(timeout_or(call, timeout, options().deadline));
    for (;;) {
      const std::uint32_t seen = progress().seen();
      if (session().exclusive(
              [&](Control& control) { return me.enter(control) && control.is_quiet() && take(control); }))
        return;
      if (me.is_in && options().driver == Driver::cooperative) crew_.advance(me.worker);
      if (deadline.passed())
        throw TimeoutError(text(title(), call,
                                me.is_in ? ": the update under way does not end"
                                         : ": somebody else's snapshot or restore does not end"),
                           missing());
      sleep(seen, deadline.end());
    }
  }

  /// The variables outlive the session. They are those after an update if there is a moment without one; a
  /// forked child, which has a copy of the memory and may not wait, takes them as they are.
  void take_values_back() noexcept {
    if (!State::shows_values()) return;
    if (State::is_in_forked_child()) return State::hide_values();
    try {
      while_still(std::min<std::chrono::milliseconds>(options().deadline, std::chrono::seconds(1)),
                  [&] { State::hide_values(); });
    } catch (...) {
      State::hide_values();
    }
  }

  /// Ends the training if the open round needs a replica that has never come and, as who would start it says,
  /// does not come any more. So one that is restarted when the others have finished learns it at once.
  void end_if_nobody_comes() {
    if constexpr (requires { session().gone(0); }) {
      const auto is_awaited = [](const protocol::Round& round, int place) {
        return round.is_missing(place) &&
               round.places[static_cast<std::size_t>(place)].seat == protocol::Seat::vacant;
      };
      Places awaited, gone;
      session().exclusive([&](const Control& control) {
        for (int place = 0; place < control.round.total; ++place)
          if (is_awaited(control.round, place)) awaited.add(place);
      });
      std::string why;  // of the first
      for (const int place : awaited) {
        std::string reason = session().gone(place);
        if (reason.empty()) continue;
        gone.add(place);
        if (why.empty()) why = std::move(reason);
      }
      if (why.empty()) return;
      const bool ends = session().exclusive([&](Control& control) {
        protocol::Round& round = control.round;
        std::int64_t reach = std::int64_t{round.count} + round.spare_tokens;
        for (int place = 0; place < round.total; ++place) {
          const protocol::Place& p = round.places[static_cast<std::size_t>(place)];
          if (round.is_missing(place) && !(gone.has(place) && is_awaited(round, place)))
            reach += p.quota - p.served;
        }
        if (!round.is_collecting() || reach >= round.required) return false;
        session().leave_note(why);
        round.end(protocol::Ending::failed, *gone.begin());
        return true;
      });
      if (ends) announce();
    }
  }

  /// One waiter per slice is enough. A time in the future was left by one in another time namespace.
  bool is_my_turn_to_look() {
    const std::int64_t now =
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
    std::int64_t last = arrays().last_look->load(std::memory_order_relaxed);
    return (last > now || last < now - std::chrono::nanoseconds(k_slice).count() / 2) &&
           arrays().last_look->compare_exchange_strong(last, now, std::memory_order_relaxed);
  }

  UpdateCrew<State> crew_{*this};
  std::vector<T> no_window_;  // zeros, for k = 1
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
