// SPDX-License-Identifier: MIT
/// @file
/// What the replicas of `VariableReplicas` share: accumulators, tokens, the variables and who writes them.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/rule_groups.hpp>
#include <lockstep/optimizers/updater.hpp>
#include <lockstep/per_variable/gradient.hpp>
#include <lockstep/per_variable/gradient_check.hpp>
#include <lockstep/per_variable/local_model.hpp>
#include <lockstep/per_variable/membership.hpp>
#include <lockstep/per_variable/options.hpp>
#include <lockstep/per_variable/takes.hpp>
#include <lockstep/per_variable/token_bank.hpp>
#include <lockstep/per_variable/update.hpp>
#include <lockstep/protocol/init_tokens.hpp>
#include <lockstep/transport/fork_guard.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

template <class R, class Net, class T>
class VariableEngine {
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
        model_(recipe, variables, groups_, options.global_step),
        tokens_(net),
        takes_(accumulators_),
        membership_(options.replicas()) {
    if (cooperative()) {
      init_chief(options_.start_tokens());
      takes_.begin(options_.replicas_to_aggregate);
    }
  }

  const VariableOptions& options() const { return options_; }
  const Variables<T>& variables() const { return *binding_; }
  const Layout& layout() const { return binding_->layout(); }
  const Updater<R, T, T>& updater() const { return model_.updater(); }
  bool is_in_forked_child() const noexcept { return fork_guard_.is_in_child(); }
  bool cooperative() const { return options_.driver == Driver::cooperative; }

  GradientKind kind(std::uint32_t id) const { return accumulators_[id].kind(); }
  Index num_accumulated(std::uint32_t id) { return accumulator(id).num_accumulated(); }
  Index accumulator_step(std::uint32_t id) { return accumulator(id).step(); }

  // ---- replicas

  /// Numbers of those that a loop of this process runs.
  std::vector<int> seats_here() const {
    std::vector<int> seats(static_cast<std::size_t>(options_.replicas()));
    std::iota(seats.begin(), seats.end(), 0);
    return seats;
  }
  /// Takes a place, any if it is negative; its local step becomes the global step. @return the place.
  int join(int place, const std::stop_token&) {
    if (!initialised_.load(std::memory_order_relaxed))
      throw UsageError("join: with Driver::chief call init_chief() before the first replica joins");
    const int taken = membership().join(place);
    init_worker(taken);
    return taken;
  }
  /// Batches that earlier replicas at this place handed over: not known.
  std::int64_t sequence(int) const { return 0; }
  Index local_step(int place) { return membership().local_step(place); }
  void set_local_step(int place, Index step) { membership().set_local_step(place, step); }
  /// It has left in the ordinary way.
  void depart(int place, std::optional<Waiter>& line) {
    tokens_.leave(line);
    membership_.leave(place);
    if (options_.departure == Departure::stop) close();
    if (options_.departure == Departure::fail) membership_.fail(place, "it has left");
  }
  /// An exception has ended its loop.
  void die(int place, std::optional<Waiter>&, const std::string& reason) { membership_.die(place, reason); }

  // ---- the global step and the variables

  /// Calls `f(state)` while nobody writes variables, slots or counters. An update that becomes due meanwhile
  /// is carried out then.
  template <class F>
  decltype(auto) while_still(F&& f) {
    fork_guard_.expect_own_process("trainer");
    const Hold hold(*this);
    return std::forward<F>(f)(model_.look([](const UpdaterState& state) { return state; }));
  }
  std::int64_t global_step() const { return counters().global_step; }
  void set_global_step(std::int64_t step) { model_.set_global_step(step); }
  /// Counters of the optimizer.
  protocol::Window counters() const {
    fork_guard_.expect_own_process("trainer");
    return model_.look([](const UpdaterState& state) { return state.window; });
  }
  /// Copies all variables. @return the counters that they belong to.
  protocol::Window read(std::vector<T>& to) const {
    fork_guard_.expect_own_process("trainer");
    return model_.look([&](const UpdaterState& state) {
      const auto size = static_cast<std::size_t>(layout().size());
      to.resize(size);
      std::copy_n(updater().values(), size, to.data());
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
  std::vector<Pushed> push(int place, std::span<const NumberedGradient<T>> gradients) {
    check(place, gradients);
    std::vector<Pushed> result = add(place, gradients);
    drive(place);
    return result;
  }
  /// `push`, then gets in line for a token. No tokens are given out in between: whoever has contributed to an
  /// update is in line when its tokens come, and nobody else can take one of these in its place.
  std::vector<Pushed> push(int place, std::span<const NumberedGradient<T>> gradients,
                           std::optional<Waiter>& line, std::int64_t /*batches*/ = 1) {
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
  Index step(int place, std::span<const NumberedGradient<T>> gradients, std::chrono::milliseconds timeout,
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
  std::vector<Index> tokens() const { return tokens_.contents(); }
  /// No more updates: replicas may use up the tokens that are there; chiefs end.
  void close() {
    tokens_.close();
    membership_.end_chiefs();
  }

  // ---- the chief

  /// The requests of a chief.
  Takes takes() { return Takes(accumulators_); }
  /// False if there is one.
  bool claim_chief() { return membership().claim_chief(); }
  void release_chief() { membership_.release_chief(); }

  /// Waits until all requests of a chief are served.
  /// @throws TimeoutError, Cancelled; OutOfRange after `close()`; PeerFailed.
  void collect(Takes& takes, std::chrono::milliseconds timeout, const std::stop_token& stop) {
    const EitherStop either(stop, membership().end_of_chiefs());
    try {
      takes.collect(Deadline(timeout), either.token());
    } catch (const Cancelled&) {
      membership_.expect_healthy(protocol::k_nobody);
      if (stop.stop_requested()) throw;
      throw OutOfRange("chief: training has ended");
    } catch (const TimeoutError&) {
      throw timed_out(text("chief: waited ", timeout.count(), " ms"));
    }
  }
  /// Applies what a chief has collected, once nobody keeps the variables still.
  /// @throws what a schedule throws; the trainer then has failed. TimeoutError
  VariableUpdate update(Takes& takes, std::chrono::milliseconds timeout) {
    std::optional<VariableUpdate> done;
    try {
      done = update(takes, Deadline(timeout).end(), [] {});
    } catch (...) {
      chief_failed(text_of_exception());
      throw;
    }
    if (!done) throw timed_out(text("chief: waited ", timeout.count(), " ms"));
    return *done;
  }
  /// Ends the training for all who wait.
  void chief_failed(const std::string& reason) {
    membership_.fail(protocol::k_nobody, text("the chief failed: ", reason));
  }

 private:
  Index expect_enough(Index num_tokens) const {
    return protocol::init_tokens(options_.replicas_to_aggregate, options_.replicas(), num_tokens);
  }
  static const VariableOptions& checked(const VariableOptions& options, const Layout& layout) {
    options.validate(layout);
    return options;
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

  void check(int place, std::span<const NumberedGradient<T>> gradients) {
    membership().expect_healthy(place);
    std::vector<bool> seen(layout().count());
    for (const auto& [id, gradient] : gradients) {
      const VariableInfo& info = layout()[id];
      expect_first(info, seen);
      check_gradient(info, accumulators_[id].kind(), groups_.is_trainable(id), gradient);
    }
  }
  std::vector<Pushed> add(int place, std::span<const NumberedGradient<T>> gradients) {
    const Index local_step = membership_.local_step(place);
    std::vector<Pushed> result(accumulators_.size(), Pushed::absent);
    for (const auto& [id, gradient] : gradients) {
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

  VariableAccumulator<T, Net>& accumulator(std::uint32_t id) {
    if (!accumulators_[id].exists())
      throw_error<UsageError>("accumulator: variable '", layout()[id].name,
                              "' has no gradient, so none was made");
    return accumulators_[id];
  }
  VariableMembership& membership() {
    fork_guard_.expect_own_process("trainer");
    return membership_;
  }

  /// Who and what a wait is for.
  TimeoutError timed_out(const std::string& subject, int except = -1) {
    std::vector<Missing> missing = membership_.missing(except);
    const auto count_of = [&](std::uint32_t id) {
      return accumulators_[id].exists() ? accumulators_[id].num_accumulated() : -1;
    };
    std::string why = text_of_missing(layout(), options_.replicas_to_aggregate, count_of, missing);
    if (model_.is_held()) why += "; a call of while_still does not end";
    return TimeoutError(subject + why, std::move(missing));
  }

  /// Keeps the variables still. Who lets go last carries out what has become due meanwhile.
  class Hold {
   public:
    explicit Hold(VariableEngine& engine) : engine_(engine) { engine.model_.hold(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() {
      engine_.model_.let_go();
      try {
        engine_.drive(0);
      } catch (...) {  // a schedule has thrown, and all replicas have been told
      }
    }

   private:
    VariableEngine& engine_;
  };

  /// Says that this thread drives, and leaves the lock while it does.
  class Driving {
   public:
    Driving(std::unique_lock<std::mutex>& lock, bool& driving) : lock_(lock), driving_(driving) {
      driving_ = true;
      lock_.unlock();
    }
    Driving(const Driving&) = delete;
    Driving& operator=(const Driving&) = delete;
    ~Driving() {
      lock_.lock();
      driving_ = false;
    }

   private:
    std::unique_lock<std::mutex>& lock_;
    bool& driving_;
  };

  /// Applies aggregates that have been collected: variables, then the global step, then tokens.
  /// @param before_tokens called after the variables were written. @return nothing if somebody keeps the
  /// variables still until `until`. @throws what a schedule throws; nothing is changed.
  template <class F>
  std::optional<VariableUpdate> update(Takes& takes, Clock::time_point until, F&& before_tokens) {
    const std::optional<std::int64_t> step = model_.apply(takes, until);
    if (!step) return {};
    takes.abort();
    before_tokens();
    const Index count = protocol::tokens_per_step(options_.replicas_to_aggregate, options_.replicas());
    return VariableUpdate{*step, tokens_.give(*step, count)};
  }

  /// With Driver::cooperative: carries out every update that is due, unless somebody is at it, or keeps the
  /// variables still; that one looks again. The next requests stand before the tokens are out, so each mean
  /// is over exactly R gradients.
  void drive(int place) {
    if (!cooperative()) return;
    std::unique_lock lock(drive_mutex_);
    try {
      while (!driving_ && takes_.all_served() && !model_.is_held()) {
        const Driving alone(lock, driving_);
        takes_.collect(Deadline(options_.deadline), {});
        (void)update(takes_, Clock::now(), [&] { takes_.begin(options_.replicas_to_aggregate); });
      }
    } catch (...) {
      membership_.fail(place, text_of_exception());
      throw;
    }
  }

  ForkGuard fork_guard_;
  VariableOptions options_;
  Net net_;
  Binding<T, T> binding_;
  RuleGroups<R> groups_;
  typename Takes::Accumulators accumulators_;
  LocalModel<R, T> model_;
  TokenBank<Net> tokens_;

  std::mutex drive_mutex_;  // guards driving_, and takes_ while nobody drives
  bool driving_ = false;
  Takes takes_;

  VariableMembership membership_;
  std::atomic<bool> initialised_{false};
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
