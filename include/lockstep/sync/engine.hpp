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

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// What a replica or the program asks of a trainer beyond its own step: to look, to keep still, to start
/// over.
template <class R, class Net, class T, class G>
class RoundEngine : public TrainerState<R, Net, T, G> {
  using State = TrainerState<R, Net, T, G>;

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

  using State::State;

  UpdateCrew<State>& crew() { return crew_; }

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
    Worker<T, G> me(protocol::k_nobody);
    when_quiet("snapshot", timeout, me, [](Control& control) { return control.round.hold(); });
    const auto let_go = [&] {
      session().exclusive([](Control& control) { control.round.release(); });
      announce();
      if (options().driver == Driver::cooperative) crew_.advance(me);
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
    if (crew_.is_in_hook()) throw UsageError("restore: not possible inside a hook after an update");
    updater().expect_fits(snapshot);
    Worker<T, G> me(protocol::k_nobody);
    when_quiet("restore", timeout, me, [](Control& control) {
      if (control.round.readers > 0) return false;
      control.round.start_update();
      control.committer = protocol::k_nobody;
      return true;
    });
    UpdaterState state;
    updater().load(snapshot, state);
    session().exclusive([&](Control& control) {
      board().note(control.round.id, {.restored = true});
      control.updater = state;
      control.round.restore(state.window.global_step);
      control.clear_tasks();
      board().publish(control);
    });
    announce();
  }

  /// Forgets who has joined, left or failed. A round that has closed is carried out first, an open one is
  /// given up.
  /// @throws UsageError while a replica is active; TimeoutError if an update does not end in time.
  void start_over(std::chrono::milliseconds timeout) {
    Worker<T, G> me(protocol::k_nobody);
    when_quiet("start_over", timeout, me, [this](Control& control) {
      if (const int active = control.round.active(); active > 0)
        throw_error<UsageError>(title(), "run: ", active, " replicas are still active");
      if (control.wants_plan(options().driver)) return false;
      control.round.reset_membership();
      control.clear_tasks();
      return true;
    });
    State::forget_failure();
  }

  /// Who the open round or update still waits for.
  std::vector<Missing> missing() {
    std::vector<Missing> result;
    const auto stage = session().exclusive([&](Control& control) {
      for (int place = 0; place < control.round.total; ++place)
        if (control.round.is_missing(place)) result.push_back({place, why(control.round, place)});
      return control.round.phase == protocol::Phase::applying ? control.stage : 0;
    });
    if (stage != 0)
      arrays().tiles.for_each_claimed(stage, [&](int owner) {
        if (owner != protocol::k_nobody) result.push_back({owner, Missing::Why::slow});
      });
    return result;
  }

 private:
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
    return session().alive(place) ? Missing::Why::slow : Missing::Why::dead;
  }

  /// Waits until nobody writes variables and `take(control)` gets what it asks for; carries out updates
  /// meanwhile.
  template <class Take>
  void when_quiet(const char* call, std::chrono::milliseconds timeout, Worker<T, G>& me, Take&& take) {
    const Deadline deadline(timeout_or(call, timeout, options().deadline));
    for (;;) {
      const std::uint32_t seen = progress().seen();
      if (session().exclusive([&](Control& control) { return control.is_quiet() && take(control); })) return;
      if (options().driver == Driver::cooperative) crew_.advance(me);
      if (deadline.passed())
        throw TimeoutError(text(title(), call, ": the update under way does not end"), missing());
      session().wait(progress(), seen, deadline.end(), replicas());
    }
  }

  UpdateCrew<State> crew_{*this};
  std::vector<T> no_window_;  // zeros, for k = 1
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
