// SPDX-License-Identifier: MIT
/// @file
/// What the processes of a `VariableReplicas` trainer share, and how an update survives whoever carries it
/// out.
#pragma once

#include <lockstep/accumulators/attendance.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/rule_groups.hpp>
#include <lockstep/optimizers/updater.hpp>
#include <lockstep/per_variable/gradient.hpp>
#include <lockstep/per_variable/options.hpp>
#include <lockstep/per_variable/shared_control.hpp>
#include <lockstep/per_variable/shared_sums.hpp>
#include <lockstep/per_variable/shared_update.hpp>
#include <lockstep/protocol/init_tokens.hpp>
#include <lockstep/sync/description.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/fork_guard.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/owed.hpp>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// @brief The session of a trainer: control, accumulators, variables and slots.
///
/// All that is shared is changed inside the session's exclusion, by `transition`. An update changes variables
/// in place, which no flip can undo. So it is opened by one transition, which commits what it is made of, and
/// carried out by the next one, whosesoever that is: unit by unit, each with a copy of what it was and a
/// count of those that are done. Whoever is killed inside leaves the rest to the next one who comes.
template <class R, class Net, class T>
class SharedVariableState {
 public:
  using Session = typename Net::template Session<VariableControl>;

  SharedVariableState(const R& recipe, const Net& net, Variables<T>& variables,
                      const VariableOptions& options)
      : options_(checked(options, variables.layout())),
        binding_(variables),
        groups_(recipe, variables.layout()),
        kinds_(kinds()),
        rows_(variables.layout()),
        session_(net, VariableControl(options_), spec(recipe)),
        carver_(session_.memory().data()),
        arrays_(carver_, variables.layout(), kinds_, options_),
        update_(carver_, recipe, variables, rows_, groups_),
        attendance_(session_, arrays_.attendance,
                    [this](VariableControl& control, int process) { settle(control, process); }) {
    transition([&](VariableControl& control) {
      if (!control.initialised) initialise(control);
    });
    binding_->show(update_.updater().values());
  }
  SharedVariableState(const SharedVariableState&) = delete;
  SharedVariableState& operator=(const SharedVariableState&) = delete;
  ~SharedVariableState() {
    try {
      // The variables outlive the session. A forked child has a copy of its memory, and may not wait.
      if (is_in_forked_child())
        binding_->take_back();
      else
        look([this](const VariableControl&) { return binding_->take_back(), true; });
    } catch (...) {
      binding_->take_back();  // a process has stopped inside the session
    }
  }

  const VariableOptions& options() const { return options_; }
  const Variables<T>& variables() const { return *binding_; }
  const Layout& layout() const { return binding_->layout(); }
  const Updater<R, T, T>& updater() const { return update_.updater(); }
  bool is_in_forked_child() const noexcept { return fork_guard_.is_in_child(); }
  bool cooperative() const { return options_.driver == Driver::cooperative; }
  GradientKind kind(std::uint32_t id) const { return kinds_[id]; }

 protected:
  // ---- transitions

  /// Calls `f(control)` inside the exclusion, after whatever somebody has left half done; then tells those
  /// who wait if that, or `f`, has news for them.
  template <class F>
  decltype(auto) transition(F&& f) {
    bool has_news = false;
    const auto inside = [&](VariableControl& control) -> decltype(auto) {
      sums().begin(++control.serial);
      if (control.updating) {
        finish_update(control);
        has_news = true;
      }
      replace_dead_chief(control);
      if (control.planner == attendance_.place() && !is_planning_) control.planner = k_no_process;
      const std::size_t owed = owed_.do_all(control);
      has_news = has_news || owed > 0;
      return call_and_then(
          [&](VariableControl& whole) -> decltype(auto) {
            if constexpr (std::is_invocable_v<F, VariableControl&, bool&>)
              return f(whole, has_news);
            else
              return f(whole);
          },
          control, [&] { owed_.forget(owed); });
    };
    if constexpr (std::is_void_v<decltype(inside(std::declval<VariableControl&>()))>) {
      session_.exclusive(inside);
      if (has_news) announce();
    } else {
      auto result = session_.exclusive(inside);
      if (has_news) announce();
      return result;
    }
  }
  /// Calls `f(control)`, which changes nothing, while no update is open. It may be called twice.
  template <class F>
  auto look(F&& f) {
    for (;;) {
      std::invoke_result_t<F&, const VariableControl&> result{};
      const bool is_whole = session_.exclusive([&](const VariableControl& control) {
        if (!control.updating) result = f(control);
        return !control.updating;
      });
      if (is_whole) return result;
      transition([](VariableControl&) {});
    }
  }
  void announce() {
    word().bump();
    session_.wake(word(), INT_MAX);
  }

  SharedSums<T>& sums() { return arrays_.sums; }
  WaitWord& word() { return *arrays_.word; }
  const SumRecord& record(const VariableControl& control, std::uint32_t id) {
    return sums().read(control.serial, id);
  }

  // ---- inside the exclusion

  /// Gets in line at every accumulator where no request stands.
  void ask(VariableControl& control) {
    sums().for_each([&](std::uint32_t id) {
      if (record(control, id).is_asked()) return;
      sums().write(control.serial, id).machine.begin_take(options_.replicas_to_aggregate);
      serve(control, id);
    });
  }
  /// Withdraws all requests; what was taken is lost.
  void withdraw(VariableControl& control) {
    sums().for_each([&](std::uint32_t id) {
      if (!record(control, id).is_asked()) return;
      SumRecord& mine = sums().write(control.serial, id);
      if (mine.machine.waiting() > 0) mine.machine.cancel(mine.machine.in_line(0));
      mine.taken = -1;
    });
    control.served = 0;
  }
  void serve(VariableControl& control, std::uint32_t id) {
    if (sums().serve(control.serial, id)) ++control.served;
  }
  bool is_due(const VariableControl& control) const {
    return control.served ==
           std::ssize(kinds_) - std::count(kinds_.begin(), kinds_.end(), GradientKind::none);
  }
  void fail(VariableControl& control, int place, const std::string& reason) {
    if (control.failed) return;
    session_.leave_note(reason);
    control.failed = true;
    control.culprit = place;
  }
  /// Tokens for those who wait and are there, the rest for the queue. @return how many: none if it is closed.
  Index give(VariableControl& control, Index step, Index count) {
    control.tokens.forget_if([this](int process) { return !attendance_.is_there(process); });
    switch (control.tokens.enqueue_many(step, count)) {
      case protocol::Enqueued::accepted:
        return count;
      case protocol::Enqueued::closed:
        return 0;
      case protocol::Enqueued::too_many:
        throw_error<CapacityExceeded>("tokens: the token queue has ", control.tokens.size(),
                                      " tokens, and with ", count, " more it would have more than 2^63 - 1");
      case protocol::Enqueued::full:
        break;
    }
    throw CapacityExceeded("tokens: too many different steps in the token queue");
  }

  /// Settles what a process has left behind that has died.
  void settle(VariableControl& control, int process) {
    for (int place = 0; place < control.replicas; ++place) {
      VariablePlace& left = control.at(place);
      if (left.seat != protocol::Seat::active || left.owner != process) continue;
      left.seat = protocol::Seat::dead;
      left.owner = k_no_process;
      if (options_.departure == Departure::stop) control.tokens.close();
      if (options_.departure == Departure::fail) fail(control, place, "its process has died");
    }
    control.tokens.forget_if([process](int owner) { return owner == process; });
    if (control.chief == process) control.chief = k_dead_chief;
    if (control.planner == process) control.planner = k_no_process;
    control.holds[static_cast<std::size_t>(process)] = 0;
  }
  bool is_anybody_dead(const VariableControl& control) const {
    bool is_dead = control.chief == k_dead_chief;
    control.for_each_process([&](int process) { is_dead = is_dead || !attendance_.is_there(process); });
    return is_dead;
  }
  /// The same for all who have died. Then `announce()`.
  void settle_the_dead(VariableControl& control) {
    std::vector<int> dead;
    control.for_each_process([&](int process) {
      if (!attendance_.is_there(process)) dead.push_back(process);
    });
    for (const int process : dead) settle(control, process);
    replace_dead_chief(control);
  }

  // ---- updates

  /// Carries out the update that is due. False if there is none, somebody else computes what it needs, or
  /// keeps the variables still. @throws what a schedule throws.
  bool update_if_due() {
    UpdaterState state;
    UpdatePlan plan;
    const bool is_mine = transition([&](VariableControl& control) {
      if (!is_due(control) || control.failed || control.planner != k_no_process) return false;
      state = control.updater;
      plan = update_.plan(state);
      control.planner = attendance_.place();
      is_planning_ = true;
      return true;
    });
    if (!is_mine) return false;
    fault_point("plan: taken");
    bool is_open = false;
    try {
      is_open = open_update(state, plan);
    } catch (...) {
      is_planning_ = false;
      try {
        transition([](VariableControl&) {});  // gives the task back
      } catch (...) {
        // A process has stopped inside the session: the next transition of this process gives it back.
      }
      throw;
    }
    if (is_open) transition([](VariableControl&) {});  // carries it out
    return is_open;
  }

  /// Steps and tokens of a chief that starts. @return whether some accumulator's step went backwards.
  bool set_steps(VariableControl& control) {
    const std::int64_t step = control.updater.window.global_step;
    bool went_backwards = false;
    sums().for_each([&](std::uint32_t id) {
      if (sums().write(control.serial, id).machine.set_global_step(step)) went_backwards = true;
    });
    control.at(0).local_step = step;
    control.has_steps = true;
    return went_backwards;
  }

 private:
  using Attendance = SharedAttendance<Net, VariableControl>;

  struct Arrays {
    Arrays(Carver& carver, const Layout& layout, const std::vector<GradientKind>& kinds,
           const VariableOptions& options)
        : attendance(carver.array<std::byte>(Attendance::bytes())),
          word(carver.array<WaitWord>(1)),
          waiting(carver.array<std::atomic<std::int32_t>>(k_max_replicas)),
          sums(carver, layout, kinds, options) {}
    std::byte* attendance;
    WaitWord* word;                      // bumped when there is something new for those who wait
    std::atomic<std::int32_t>* waiting;  // by replica: the process whose call waits for a token, plus one
    SharedSums<T> sums;
  };

  static const VariableOptions& checked(const VariableOptions& options, const Layout& layout) {
    options.validate(layout);
    return options;
  }
  std::vector<GradientKind> kinds() const {
    std::vector<GradientKind> result;
    for (const VariableInfo& info : layout().infos())
      result.push_back(groups_.is_trainable(info.id) ? options_.kind_of(info) : GradientKind::none);
    if (std::count(result.begin(), result.end(), GradientKind::none) == std::ssize(result))
      throw InvalidArgument("variables: no variable has a gradient, so there is nothing to train");
    return result;
  }
  SessionSpec spec(const R& recipe) {
    Carver counter;
    const Arrays arrays(counter, layout(), kinds_, options_);
    const SharedUpdate<R, T> update(counter, recipe, *binding_, rows_, groups_);
    return {.bytes = counter.used(),
            .description = "one accumulator per variable\n" + describe_model(recipe, *binding_) +
                           describe_accumulators(kinds_, options_)};
  }

  /// The values are those of the first process.
  void initialise(VariableControl& control) {
    std::copy_n(binding_->data(), layout().size(), update_.updater().values());
    fault_point("start: values written");
    update_.updater().initialise();
    sums().initialise();
    fault_point("start: accumulators written");
    if (cooperative()) {
      set_steps(control);
      give(control, control.updater.window.global_step, options_.start_tokens());
      ask(control);
    }
    control.initialised = true;
  }

  void replace_dead_chief(VariableControl& control) {
    if (control.chief != k_dead_chief) return;
    withdraw(control);
    control.chief = k_no_process;
  }

  /// The one who has taken the plan computes what the update needs and commits what it is made of.
  bool open_update(const UpdaterState& state, const UpdatePlan& plan) {
    update_.prepare(state, plan);  // schedules are user code, so they run outside the exclusion
    fault_point("plan: made");
    const bool is_open = transition([&](VariableControl& control) {
      control.planner = k_no_process;
      is_planning_ = false;
      if (!is_due(control) || state.window.global_step != control.updater.window.global_step ||
          control.is_held())
        return false;
      control.plan = plan;
      control.first_unit = update_.units();
      control.updating = true;
      return true;
    });
    fault_point("update: opened");
    return is_open;
  }
  void finish_update(VariableControl& control) {
    update_.carry_out(control.updater, control.plan, control.first_unit, sums(), control.serial);
    withdraw(control);
    if (cooperative()) ask(control);
    control.updating = false;
    try {
      give(control, control.updater.window.global_step,
           protocol::tokens_per_step(options_.replicas_to_aggregate, options_.replicas()));
    } catch (const CapacityExceeded& error) {
      fail(control, protocol::k_nobody, text("an update failed: ", error.what()));
    }
    fault_point("update: done");
  }

  ForkGuard fork_guard_;
  VariableOptions options_;
  Binding<T, T> binding_;

 protected:
  RuleGroups<R> groups_;

 private:
  std::vector<GradientKind> kinds_;
  RowLayout rows_;

 protected:
  Session session_;

 private:
  Carver carver_;

 protected:
  Arrays arrays_;

 private:
  SharedUpdate<R, T> update_;
  // Some thread of this object plans. Set and cleared with `planner`; without that it is cleared only by the
  // thread that plans, while `planner` still keeps all others away.
  std::atomic<bool> is_planning_{false};

 protected:
  Owed<VariableControl> owed_;  // clean-ups that the next transition does
  Attendance attendance_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
