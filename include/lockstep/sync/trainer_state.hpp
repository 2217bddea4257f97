// SPDX-License-Identifier: MIT
/// @file
/// What the replicas of one trainer share, and how one that fails tells the others.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/updater.hpp>
#include <lockstep/protocol/round.hpp>
#include <lockstep/sync/control.hpp>
#include <lockstep/sync/options.hpp>
#include <lockstep/transport/fork_guard.hpp>
#include <lockstep/transport/transport.hpp>

#include <atomic>
#include <climits>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// @tparam R recipe of the optimizer. @tparam Net transport.
template <class R, class Net, class T, class G>
class TrainerState {
 public:
  using Session = typename Net::template Session<Control>;
  using WorkerType = Worker<T, G>;
  using Scalar = T;
  using Gradients = Contribution<G>;
  static constexpr bool by_elements = Updater<R, T, G>::by_elements;
  static constexpr bool k_survives_kill = Net::k_survives_kill;

  TrainerState(const R& recipe, const Net& net, Variables<T, G>& variables, const SyncOptions& options)
      : options_(checked(options)),
        binding_(variables),
        rows_(variables.layout()),
        session_(net, Control(options), bytes(recipe)),
        carver_(session_.memory().data()),
        updater_(recipe, variables, rows_, carver_),
        arrays_(carver_, variables.layout(), rows_, updater_.items(), options.replicas()) {
    if (Updater<R, T, G>::aggregates && options.absent == Absent::excluded)
      throw InvalidArgument(
          "absent: Absent::excluded cannot be combined with GradientAggregation inside SyncReplicas");
    if (updater_.options().num_partitions != 1)
      throw InvalidArgument(text("num_partitions: the replicas share the work already, must be 1, got ",
                                 updater_.options().num_partitions));
    updater_.initialise();
    session_.exclusive([&](Control& control) { board().publish(control); });
  }

  const SyncOptions& options() const { return options_; }
  /// What error texts begin with.
  std::string title() const { return options_.name.empty() ? "" : options_.name + ": "; }
  /// The policy of the trainer, or that of a window inside it.
  NonFinite non_finite() const {
    return options_.non_finite == NonFinite::propagate ? updater_.options().non_finite : options_.non_finite;
  }
  Session& session() { return session_; }
  bool is_in_forked_child() const noexcept { return fork_guard_.is_in_child(); }
  Updater<R, T, G>& updater() { return updater_; }
  const Variables<T, G>& variables() const { return *binding_; }
  Contribution<G>& contribution(int place, int slot) {
    return arrays_.contributions[static_cast<std::size_t>(2 * place + slot)];
  }
  SharedArrays<G>& arrays() { return arrays_; }
  WaitWord& progress() { return *arrays_.progress; }
  Board& board() { return *arrays_.board; }
  std::atomic<std::int64_t>& waiting(int place) { return arrays_.waiting[place]; }
  int replicas() const { return options_.replicas(); }

  /// Lets everybody look at the state again.
  void announce() {
    progress().bump();
    session_.wake(progress(), INT_MAX);
  }

  /// Marks the trainer as failed because of `place`, or of somebody who is no replica; everybody is told.
  void fail(int place, const std::string& reason) {
    {
      const std::lock_guard lock(reason_mutex_);
      if (reason_.empty()) reason_ = reason;
    }
    session_.exclusive([&](Control& control) {
      if (place == protocol::k_nobody)
        control.round.end(protocol::Ending::failed, place);
      else
        control.round.fail(place);
    });
    announce();
  }
  /// Calls what may run user code (schedules, hooks): if it throws, the trainer has failed.
  template <class F>
  void guarded(int place, F&& f) {
    try {
      f();
    } catch (const std::exception& error) {
      fail(place, error.what());
      throw;
    } catch (...) {
      fail(place, "an exception that is no std::exception");
      throw;
    }
  }

  std::string failure_reason() {
    const std::lock_guard lock(reason_mutex_);
    return reason_;
  }
  void forget_failure() {
    const std::lock_guard lock(reason_mutex_);
    reason_.clear();
  }

 private:
  static const SyncOptions& checked(const SyncOptions& options) {
    options.validate();
    return options;
  }
  std::size_t bytes(const R& recipe) {
    Carver counter;
    const Updater<R, T, G> updater(recipe, *binding_, rows_, counter);
    const SharedArrays<G> arrays(counter, binding_->layout(), rows_, updater.items(), options_.replicas());
    return counter.used();
  }

  ForkGuard fork_guard_;
  SyncOptions options_;
  Binding<T, G> binding_;
  RowLayout rows_;
  Session session_;
  Carver carver_;
  Updater<R, T, G> updater_;
  SharedArrays<G> arrays_;
  std::mutex reason_mutex_;
  std::string reason_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
