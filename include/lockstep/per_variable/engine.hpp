// SPDX-License-Identifier: MIT
/// @file
/// What the replicas of `VariableReplicas` share: accumulators, tokens, the variables and who writes them.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/rule_groups.hpp>
#include <lockstep/optimizers/updater.hpp>
#include <lockstep/per_variable/gradient.hpp>
#include <lockstep/per_variable/gradient_check.hpp>
#include <lockstep/per_variable/membership.hpp>
#include <lockstep/per_variable/options.hpp>
#include <lockstep/per_variable/rows_in_turn.hpp>
#include <lockstep/per_variable/takes.hpp>
#include <lockstep/per_variable/token_bank.hpp>
#include <lockstep/protocol/init_tokens.hpp>
#include <lockstep/transport/fork_guard.hpp>
#include <lockstep/transport/memory.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// What `init_chief` has done.
struct ChiefInit {
  Index tokens_added;        ///< tokens put into the queue
  bool step_went_backwards;  ///< some accumulator was ahead of the global step
};

/// An update as the chief sees it.
struct VariableUpdate {
  std::int64_t global_step;  ///< after the update
  Index tokens_added;        ///< tokens put into the queue
};

namespace detail {

template <class R, class Net, class T>
class VariableEngine {
  static_assert(!Net::k_survives_kill,
                "[lockstep.per_variable.one_process] the variables of a trainer with one accumulator per "
                "variable lie in the memory of one process, so its transport must be one between threads");

 public:
  using Rule = rule_of_t<R>;
  using Takes = VariableTakes<T, Net>;
  using Waiter = typename TokenBank<Net>::Waiter;

  VariableEngine(const R& recipe, const Net& net, Variables<T>& variables, const VariableOptions& options)
      : options_(checked(options, variables.layout())),
        net_(net),
        binding_(variables),
        groups_(recipe, variables.layout()),
        accumulators_(make_accumulators()),
        rows_(variables.layout()),
        memory_(bytes(recipe)),
        carver_(memory_.bytes().data()),
        updater_(recipe, variables, rows_, carver_),
        aggregate_(carver_, variables.layout(), rows_),
        tokens_(net),
        takes_(accumulators_),
        membership_(options.replicas()) {
    updater_.initialise();
    aggregate_.clear();
    state_.window.global_step = options.global_step;
    if (cooperative()) {
      init_chief(options_.start_tokens());
      takes_.begin(options_.replicas_to_aggregate);
    }
  }

  const VariableOptions& options() const { return options_; }
  const Variables<T>& variables() const { return *binding_; }
  const Layout& layout() const { return binding_->layout(); }
  const Updater<R, T, T>& updater() const { return updater_; }
  VariableMembership& membership() {
    fork_guard_.expect_own_process("trainer");
    return membership_;
  }
  bool is_in_forked_child() const noexcept { return fork_guard_.is_in_child(); }
  bool cooperative() const { return options_.driver == Driver::cooperative; }
  bool is_initialised() const { return initialised_.load(std::memory_order_relaxed); }

  VariableAccumulator<T, Net>& accumulator(std::uint32_t id) {
    if (!accumulators_[id].exists())
      throw_error<UsageError>("accumulator: variable '", layout()[id].name,
                              "' has no gradient, so none was made");
    return accumulators_[id];
  }
  typename Takes::Accumulators& accumulators() { return accumulators_; }

  // ---- the global step and the variables

  /// Calls `f(state)` while nobody writes variables, slots or counters.
  template <class F>
  decltype(auto) while_still(F&& f) const {
    fork_guard_.expect_own_process("trainer");
    const std::shared_lock lock(model_mutex_);
    return std::forward<F>(f)(state_);
  }
  std::int64_t global_step() const {
    return while_still([](const UpdaterState& state) { return state.window.global_step; });
  }
  void set_global_step(std::int64_t step) {
    const std::unique_lock lock(model_mutex_);
    state_.window.global_step = step;
  }
  /// Copies all variables. @return the counters that they belong to.
  protocol::Window read(std::vector<T>& to) const {
    return while_still([&](const UpdaterState& state) {
      const auto size = static_cast<std::size_t>(layout().size());
      to.resize(size);
      std::copy_n(updater_.values(), size, to.data());
      return state.window;
    });
  }

  // ---- start

  /// Sets the step of every accumulator and the local step of replica 0 to the global step, then adds tokens.
  ChiefInit init_chief(Index num_tokens) {
    expect_enough(num_tokens);
    const bool went_backwards = set_steps();
    return {add_init_tokens(num_tokens), went_backwards};
  }
  /// The first part of it. True if some accumulator's step went backwards.
  bool set_steps() {
    const std::int64_t step = global_step();
    bool went_backwards = false;
    for (auto& accumulator : accumulators_)
      if (accumulator.exists() && accumulator.set_global_step(step)) went_backwards = true;
    membership_.set_local_step(0, step);
    initialised_.store(true, std::memory_order_relaxed);
    return went_backwards;
  }
  /// The second part.
  Index add_init_tokens(Index num_tokens) { return tokens_.give(global_step(), expect_enough(num_tokens)); }
  /// Sets the local step of a replica to the global step.
  std::int64_t init_worker(int place) {
    const std::int64_t step = global_step();
    membership_.set_local_step(place, step);
    return step;
  }

  /// Everybody may join anew. A closed token queue is replaced by a fresh one; accumulators keep what they
  /// have.
  void start_over() {
    membership().start_over();
    if (tokens_.reopen()) add_init_tokens(options_.start_tokens());
  }

  // ---- a replica's step

  /// Gives each gradient to its accumulator, labelled with the replica's local step. All are checked first.
  /// @return what became of each variable's gradient.
  std::vector<Pushed> push(int place, std::span<const NamedGradient<T>> gradients) {
    check(place, gradients);
    std::vector<Pushed> result = add(place, gradients);
    drive(place);
    return result;
  }
  /// `push`, then gets in line for a token. No tokens are given out in between: whoever has contributed to an
  /// update is in line when its tokens come, and nobody else can take one of these in its place.
  std::vector<Pushed> push(int place, std::span<const NamedGradient<T>> gradients,
                           std::optional<Waiter>& line) {
    check(place, gradients);
    std::vector<Pushed> result;
    tokens_.contribute([&] { result = add(place, gradients); }, line);
    drive(place);
    return result;
  }

  /// Waits for a token; it becomes the replica's local step.
  Index token(int place, std::chrono::milliseconds timeout, const std::stop_token& stop) {
    return token(place, timeout, stop,
                 [&](const std::stop_token& any) { return tokens_.take(timeout, any); });
  }
  /// The same for one that is in line, or gets there now. After a timeout it stays in line.
  Index token(int place, std::chrono::milliseconds timeout, const std::stop_token& stop,
              std::optional<Waiter>& line) {
    return token(place, timeout, stop,
                 [&](const std::stop_token& any) { return tokens_.take(timeout, any, line); });
  }
  /// Gradients and token in one call, for one who keeps no place in the line.
  Index step(int place, std::span<const NamedGradient<T>> gradients, std::chrono::milliseconds timeout,
             const std::stop_token& stop) {
    std::optional<Waiter> line;
    push(place, gradients, line);
    try {
      return token(place, timeout, stop, line);
    } catch (...) {
      tokens_.leave(line);
      throw;
    }
  }
  TokenBank<Net>& tokens() { return tokens_; }
  const TokenBank<Net>& tokens() const { return tokens_; }
  /// No more updates: replicas may use up the tokens that are there; chiefs end.
  void close() {
    tokens_.close();
    membership_.end_chiefs();
  }

  // ---- the chief's step

  /// Applies aggregates that have been collected: variables, then the global step, then tokens.
  /// @param before_tokens called after the variables were written. @throws what a schedule throws; nothing is
  /// changed.
  template <class F>
  VariableUpdate update(Takes& takes, F&& before_tokens) {
    const std::int64_t step = apply(takes);
    takes.abort();
    before_tokens();
    const Index count = protocol::tokens_per_step(options_.replicas_to_aggregate, options_.replicas());
    return {step, tokens_.give(step, count)};
  }

  /// Who and what a wait is for.
  TimeoutError timed_out(const std::string& subject, int except = -1) {
    std::string why;
    for (std::uint32_t id = 0; id < accumulators_.size(); ++id)
      if (accumulators_[id].exists() && accumulators_[id].num_accumulated() < options_.replicas_to_aggregate)
        why += text(why.empty() ? "; gradients of " : ", ", "'", layout()[id].name,
                    "': ", accumulators_[id].num_accumulated(), " of ", options_.replicas_to_aggregate);
    std::vector<Missing> missing = membership_.missing(except);
    for (std::size_t i = 0; i < missing.size(); ++i)
      why += text(i == 0 ? "; " : ", ", "replica ", missing[i].replica, " ", to_string(missing[i].why));
    return TimeoutError(subject + why, std::move(missing));
  }

 private:
  Index expect_enough(Index num_tokens) const {
    return protocol::init_tokens(options_.replicas_to_aggregate, options_.replicas(), num_tokens);
  }
  static const VariableOptions& checked(const VariableOptions& options, const Layout& layout) {
    options.validate(layout);
    return options;
  }
  std::size_t bytes(const R& recipe) {
    Carver counter;
    const Updater<R, T, T> updater(recipe, *binding_, rows_, counter);
    const Contribution<T> aggregate(counter, binding_->layout(), rows_);
    return counter.used();
  }
  typename Takes::Accumulators make_accumulators() {
    typename Takes::Accumulators result;
    bool any = false;
    for (const VariableInfo& info : layout().infos()) {
      const GradientKind kind = groups_.is_trainable(info.id) ? options_.kind_of(info) : GradientKind::none;
      result.emplace_back(kind, info, options_.reduction, net_);
      any = any || kind != GradientKind::none;
    }
    if (!any) throw InvalidArgument("variables: no variable has a gradient, so there is nothing to train");
    return result;
  }

  void check(int place, std::span<const NamedGradient<T>> gradients) {
    membership().expect_healthy(place);
    for (const auto& [name, gradient] : gradients) {
      const VariableInfo& info = layout().find(name);
      check_gradient(info, accumulators_[info.id].kind(), groups_.is_trainable(info.id), gradient);
    }
  }
  std::vector<Pushed> add(int place, std::span<const NamedGradient<T>> gradients) {
    const Index local_step = membership_.local_step(place);
    std::vector<Pushed> result(accumulators_.size(), Pushed::absent);
    for (const auto& [name, gradient] : gradients) {
      const std::uint32_t id = layout().find(name).id;
      bool accepted = false;
      if (!accumulators_[id].exists()) continue;
      if (const auto* dense = std::get_if<TensorView<const T>>(&gradient))
        accepted = accumulators_[id].dense().apply_grad(*dense, local_step);
      else if (const auto* sparse = std::get_if<SparseGradient<T>>(&gradient))
        accepted = accumulators_[id].sparse().apply_grad(*sparse, local_step);
      else
        continue;
      result[id] = accepted ? Pushed::accepted : Pushed::dropped;
    }
    return result;
  }

  template <class Take>
  Index token(int place, std::chrono::milliseconds timeout, const std::stop_token& stop, Take&& take) {
    membership().expect_healthy(place);
    const auto waiting = membership_.waiting(place);
    const EitherStop either(stop, membership_.failure());
    try {
      const Index token = take(either.token());
      membership_.set_local_step(place, token);
      return token;
    } catch (const Cancelled&) {
      membership_.expect_healthy(place);
      throw;
    } catch (const TimeoutError&) {
      throw timed_out(text("replica ", place, " waited ", timeout.count(), " ms for a token"), place);
    }
  }

  std::int64_t apply(Takes& takes) {
    const std::unique_lock lock(model_mutex_);
    const std::array<const Contribution<T>*, 1> sources{&aggregate_};
    const UpdatePlan plan = updater_.plan(state_, sources, Reduction::mean, Absent::zero, false);
    updater_.prepare(state_, plan);
    const StepInfo info{.step = state_.window.updates,
                        .weight = plan.total,
                        .examples = state_.examples,
                        .schedule = state_.window.global_step};
    for (const VariableInfo& variable : layout().infos()) {
      if (const Tensor<T>* dense = takes[variable.id].dense())
        std::copy(dense->elements.begin(), dense->elements.end(), aggregate_.mark_dense(variable.id));
      if (const SparseTensor<T>* rows = takes[variable.id].sparse())
        load_rows(groups_.rule_of(variable.id), info, variable, *rows, updater_.values(), aggregate_);
    }
    updater_.list(plan, sources, 1, contributors_);
    updater_.run(plan, contributors_, 0, layout().size());
    updater_.commit(state_, plan, sources);
    aggregate_.clear();
    return state_.window.global_step;
  }

  /// With Driver::cooperative: carries out every update that is due, unless somebody is at it; that one looks
  /// again. The next requests stand before the tokens are out, so each mean is over exactly R gradients.
  void drive(int place) {
    if (!cooperative()) return;
    std::unique_lock lock(drive_mutex_);
    while (!driving_ && takes_.all_served()) {
      driving_ = true;
      lock.unlock();
      try {
        takes_.collect(Deadline(options_.deadline), {});
        update(takes_, [&] { takes_.begin(options_.replicas_to_aggregate); });
      } catch (const std::exception& error) {
        lock.lock();
        driving_ = false;
        membership_.fail(place, error.what());
        throw;
      }
      lock.lock();
      driving_ = false;
    }
  }

  ForkGuard fork_guard_;
  VariableOptions options_;
  Net net_;
  Binding<T, T> binding_;
  RuleGroups<R> groups_;
  typename Takes::Accumulators accumulators_;

  mutable std::shared_mutex model_mutex_;  // guards variables, slots, state_ and aggregate_
  RowLayout rows_;
  ZeroedMemory memory_;
  Carver carver_;
  Updater<R, T, T> updater_;
  Contribution<T> aggregate_;  // what the takes gave, in the layout of the variables
  Contributors<T, T> contributors_;
  UpdaterState state_;

  TokenBank<Net> tokens_;

  std::mutex drive_mutex_;  // guards driving_, and takes_ while nobody drives
  bool driving_ = false;
  Takes takes_;

  VariableMembership membership_;
  std::atomic<bool> initialised_{false};
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
