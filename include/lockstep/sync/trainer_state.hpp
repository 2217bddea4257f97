// SPDX-License-Identifier: MIT
/// @file
/// What the replicas of one trainer share, and how one that fails tells the others.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/observe/observer.hpp>
#include <lockstep/optimizers/updater.hpp>
#include <lockstep/protocol/round.hpp>
#include <lockstep/sync/control.hpp>
#include <lockstep/sync/description.hpp>
#include <lockstep/sync/options.hpp>
#include <lockstep/sync/undo.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/fork_guard.hpp>
#include <lockstep/transport/transport.hpp>

#include <atomic>
#include <climits>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// @tparam R recipe of the optimizer. @tparam Net transport. @tparam O observer.
template <class R, class Net, class T, class G, class O>
class TrainerState {
 public:
  using Session = typename Net::template Session<Control>;
  /// Replicas may be processes that die: the variables lie in the session's memory, items can be undone.
  static constexpr bool k_survives_kill = Net::k_survives_kill;
  using WorkerType = Worker<T, G>;
  using Scalar = T;
  using Gradients = Contribution<G>;
  using ObserverType = O;
  static constexpr bool by_elements = Updater<R, T, G>::by_elements;

  TrainerState(const R& recipe, const Net& net, Variables<T, G>& variables, const SyncOptions& options,
               O&& observer)
      : observer_(std::move(observer)),
        options_(checked(options)),
        binding_(variables),
        rows_(variables.layout()),
        session_(net, Control(options), spec(recipe)),
        carver_(agreed().memory().data()),
        updater_(recipe, variables, rows_, carver_, k_survives_kill),
        arrays_(carver_, variables.layout(), rows_, updater_.partition().items(), options.replicas()),
        undo_(undo_areas(carver_, updater_)) {
    if (Updater<R, T, G>::aggregates && options.absent == Absent::excluded)
      throw InvalidArgument(
          "absent: Absent::excluded cannot be combined with GradientAggregation inside SyncReplicas");
    if (updater_.options().num_partitions != 1)
      throw_error<InvalidArgument>("num_partitions: the replicas share the work already, must be 1, got ",
                                   updater_.options().num_partitions);
  }

  const SyncOptions& options() const { return options_; }
  /// What error texts begin with: the trainer's name, and the file of the session where there is one.
  std::string title() const {
    if constexpr (requires {
                    { session_.path() } -> std::convertible_to<std::string_view>;
                  })
      return options_.name.empty() ? text(session_.path(), ": ")
                                   : text(options_.name, " (", session_.path(), "): ");
    else
      return name_title();
  }
  /// Who takes part in updates and is no replica.
  const char* visitor_title() const {
    return options_.driver == Driver::cooperative ? "a thread that is no replica (snapshot, restore)"
                                                  : "the chief";
  }
  /// The policy of the trainer, or that of a window inside it.
  NonFinite non_finite() const {
    return options_.non_finite == NonFinite::propagate ? updater_.options().non_finite : options_.non_finite;
  }
  Session& session() { return session_; }
  bool is_in_forked_child() const noexcept { return fork_guard_.is_in_child(); }
  /// @throws UsageError in a forked child.
  void expect_own_process() const { fork_guard_.expect_own_process("trainer"); }
  Updater<R, T, G>& updater() { return updater_; }
  const Variables<T, G>& variables() const { return *binding_; }
  Contribution<G>& contribution(int place, int slot) {
    return arrays_.contributions[2 * static_cast<std::size_t>(place) + static_cast<std::size_t>(slot)];
  }
  SharedArrays<G>& arrays() { return arrays_; }
  /// What `place` has for items that it changes; also for `k_visitor`.
  UndoArea<T>& undo(int place) { return undo_[static_cast<std::size_t>(place - k_visitor)]; }
  WaitWord& progress() { return *arrays_.progress; }
  Board& board() { return *arrays_.board; }
  std::atomic<std::int64_t>& waiting(int place) { return arrays_.waiting[place]; }
  int replicas() const { return options_.replicas(); }

  O& observer() { return observer_; }
  /// For the observer: what `place` does from now on until the timer ends.
  SpanTimer<O> span([[maybe_unused]] int place, [[maybe_unused]] Activity activity,
                    [[maybe_unused]] std::int64_t items = 0) {
    if constexpr (SeesSpans<O>) {
      const std::int64_t step = board().step.load(std::memory_order_relaxed);  // only to be shown
      return {observer_, fork_guard_, {.replica = place, .activity = activity, .step = step, .items = items}};
    } else {
      return {};
    }
  }

  /// Lets everybody look at the state again.
  void announce() {
    progress().bump();
    session_.wake(progress(), INT_MAX);
  }

  /// Marks the trainer as failed because of `place`, or of somebody who is no replica; everybody is told. If
  /// the session cannot be entered, they learn it when the lease of `place` ends.
  /// @param also `also(control)` belongs to it.
  template <class Also = void (*)(Control&)>
  void fail(
      int place, const std::string& reason, Also&& also = [](Control&) {}) noexcept {
    try {
      const std::string note =
          place == protocol::k_nobody ? text(visitor_title(), " failed: ", reason) : reason;
      session_.exclusive([&](Control& control) {
        session_.leave_note(note);
        if (place == protocol::k_nobody)
          control.round.end(protocol::Ending::failed, place);
        else
          control.round.fail(place);
        also(control);
      });
      announce();
    } catch (...) {  // what has failed is what the caller has to hear of
    }
  }
  /// Calls what runs user code (schedules, hooks): if it throws, the trainer has failed, and `also(control)`.
  template <class F, class Also = void (*)(Control&)>
  void guarded(
      int place, F&& f, Also&& also = [](Control&) {}) {
    try {
      f();
    } catch (...) {
      fail(place, text_of_exception(), also);
      throw;
    }
  }

  /// Who has ended training and why. The note says both if it was no replica.
  std::string failure_text(int culprit) {
    const std::string reason = session_.note();
    if (culprit == protocol::k_nobody) return reason.empty() ? text(visitor_title(), " failed") : reason;
    return text("replica ", culprit, " failed: ", reason.empty() ? "it has left" : reason.c_str());
  }
  void forget_failure() { session_.clear_note(); }

  // ---- variables in the memory of the session

  /// Writes the initial values, those of this process, and the slots. One participant, who alone may; again
  /// if it has died.
  void start_training() {
    if constexpr (k_survives_kill)
      std::copy_n(binding_->data(), binding_->layout().size(), updater_.values());
    fault_point("join: values written");
    updater_.initialise();
    fault_point("join: slots written");
    session_.exclusive(
        [&](Control& control) {
          control.initialised = true;
          control.initialiser = k_unclaimed;
          if constexpr (k_survives_kill) show_values();
        },
        [&](const Control& control) { board().publish(control); });
    announce();
  }
  /// From now on `variables()` are those that are trained. Inside exclusion.
  void show_values() { binding_->show(updater_.values()); }
  bool shows_values() const { return k_survives_kill && binding_->data() == updater_.values(); }
  void hide_values() { binding_->take_back(); }

 private:
  std::string name_title() const { return options_.name.empty() ? "" : options_.name + ": "; }
  static const SyncOptions& checked(const SyncOptions& options) {
    options.validate();
    return options;
  }
  SessionSpec spec(const R& recipe) {
    Carver counter;
    const Updater<R, T, G> updater(recipe, *binding_, rows_, counter, k_survives_kill);
    const SharedArrays<G> arrays(counter, binding_->layout(), rows_, updater.partition().items(),
                                 options_.replicas());
    (void)undo_areas(counter, updater);
    SessionSpec spec{.bytes = counter.used()};
    if constexpr (k_survives_kill) spec.description = describe(recipe, *binding_, options_);
    return spec;
  }
  /// One for each place and one for visitors, where replicas may die.
  std::vector<UndoArea<T>> undo_areas(Carver& carver, const Updater<R, T, G>& updater) {
    std::vector<UndoArea<T>> areas;
    if constexpr (k_survives_kill)
      for (int i = 0; i <= options_.replicas(); ++i)
        areas.emplace_back(carver, updater.layout().size(), updater.partition().largest_whole_item(),
                           updater.most_changed_arrays);
    return areas;
  }
  /// The session, if its processes agree. If replicas are still expected, this is one of them, and the others
  /// get the error as well.
  Session& agreed() {
    const std::string differs = session_.disagreement();
    if (differs.empty()) return session_;
    const std::vector<int> seats = session_.seats_here(options_.replicas());
    const int place = seats.front() < options_.replicas() ? seats.front() : protocol::k_nobody;
    const std::string who = place < 0 ? "a process that wants to join" : text("replica ", place);
    session_.exclusive([&](Control& control) {
      if (!control.round.is_anybody_expected()) return;
      session_.leave_note(who + " disagrees about " + differs);
      control.round.end(protocol::Ending::failed, std::max(place, protocol::k_nobody));
    });
    throw LayoutMismatch(text(name_title(), who, " disagrees about ", differs));  // which names the file
  }

  [[no_unique_address]] O observer_;
  ForkGuard fork_guard_;
  SyncOptions options_;
  Binding<T, G> binding_;
  RowLayout rows_;
  Session session_;
  Carver carver_;
  Updater<R, T, G> updater_;
  SharedArrays<G> arrays_;
  std::vector<UndoArea<T>> undo_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
