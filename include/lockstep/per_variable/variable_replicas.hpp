// SPDX-License-Identifier: MIT
/// @file
/// VariableReplicas: synchronous replicas that aggregate each variable on its own, as TensorFlow does.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/aggregation.hpp>
#include <lockstep/optimizers/step_result.hpp>
#include <lockstep/per_variable/chief.hpp>
#include <lockstep/per_variable/engine_choice.hpp>
#include <lockstep/per_variable/gradient.hpp>
#include <lockstep/per_variable/options.hpp>
#include <lockstep/per_variable/replica.hpp>
#include <lockstep/sync/replica_threads.hpp>
#include <lockstep/transport/in_process.hpp>
#include <lockstep/transport/transport.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Makes many replicas train as one, at the granularity of a variable: every variable has an accumulator of
/// its own, which refuses stale gradients, averages R of them and does not care which replicas they come
/// from. Tokens let replicas go on after an update. `SyncReplicas` does the same at the granularity of a
/// step: one set of replicas per update, without accumulators, and faster. Use this class where results must
/// be those of TensorFlow, or where replicas give gradients for different variables.
///
/// One update, by whoever drives: take the mean of R gradients of every variable; apply the wrapped rule to
/// each; global step + 1; max(R, N) tokens with the new step. A variable without gradient
/// (`GradientKind::none`, or frozen by `PerVariable`) is left alone. The mean of rows is over those gradients
/// that have the row.
/// @tparam R a rule, or `PerVariable` of one. An aggregation goes around the trainer:
/// `GradientAggregation{...}`.
/// @tparam Net models lockstep::Transport. Over `SharedMemory` all processes that name the same session train
/// as one, and any of them may be killed: docs/shared-memory.md.
/// @par Thread safety All members may be called from any thread; a replica or chief belongs to one thread.
/// @par Determinism With Driver::cooperative each mean is over exactly R gradients. They are added in order
/// of arrival, so rounding depends on it.
/// @par Source TensorFlow SyncReplicasOptimizer; differences: docs/coming-from-tensorflow.md.
/// @code{.cpp}
/// lockstep::VariableReplicas trainer{lockstep::Adam{}, variables,
///                                    lockstep::VariableOptions{.replicas_to_aggregate = 4, .sparse =
///                                    {"embedding"}}};
/// trainer.run([&](auto& replica) {
///   for (int step = 0; step < 100; ++step) {
///     replica.set_gradient(weights, gradient_of(replica.value(weights)));
///     replica.set_rows(embedding, ids, row_gradients);
///     replica.apply_gradients();
///   }
/// });
/// @endcode
template <class R, Transport Net = InProcess, class T = float>
requires(Recipe<R, T> && !detail::RecipeTraits<R>::aggregates) class VariableReplicas {
 public:
  /// What loops see.
  using Replica = VariableReplica<R, Net, T>;
  /// What carries out updates with `Driver::chief`.
  using Chief = VariableChief<R, Net, T>;

  /// @throws InvalidArgument for an option without meaning; UsageError if the variables are bound already.
  /// Between processes also LayoutMismatch if the session was made by a program that differs,
  /// CapacityExceeded if too many are attached, and as the transport's session.
  VariableReplicas(R recipe, Variables<T>& variables, const VariableOptions& options, const Net& net = {})
      : engine_(std::make_unique<Engine>(recipe, net, variables, options)) {}

  // ---- replicas

  /// Takes the lowest free replica number. Its local step becomes the global step.
  /// @throws UsageError if all N have joined, or a chief is to drive and `init_chief` was never called;
  /// between processes TimeoutError if it is not called before the deadline, Cancelled.
  Replica join(std::stop_token stop = {}) { return seat(-1, std::move(stop)); }
  /// Takes a certain replica number: at the start, or in place of one that has left. Accumulators do not know
  /// who contributes, so a replacement just goes on. @throws InvalidArgument if there is no such number;
  /// UsageError.
  Replica join(int place, std::stop_token stop = {}) {
    if (place < 0 || place >= replicas())
      detail::throw_error<InvalidArgument>("join: replica numbers are 0 to ", replicas() - 1, ", got ",
                                           place);
    return seat(place, std::move(stop));
  }

  /// Runs `loop(replica)` on one thread per replica and returns when all have ended. No thread outlives the
  /// call. They begin on different cores as far as there are enough, bound to none. With Driver::chief
  /// another thread of the program drives.
  /// @throws the first exception that left a loop, or SystemError if the system gives no thread; the other
  /// replicas have been told by `PeerFailed`.
  template <class F>
  void run(F&& loop, std::stop_token stop = {}) {
    const std::vector<int> seats = engine_->seats_here();
    if (static_cast<int>(seats.size()) == replicas()) start_over();  // all of them are here
    detail::run_replica_threads("", static_cast<int>(seats.size()),
                                [&](int i, const std::exception_ptr& no_thread) {
                                  Replica replica = seat(seats[static_cast<std::size_t>(i)], stop);
                                  if (no_thread) std::rethrow_exception(no_thread);
                                  loop(replica);
                                });
  }

  /// Forgets who has joined, left or failed, and that training has ended. Variables, slots and the global
  /// step stay, and so do accumulators and tokens, as in TensorFlow when workers restart.
  /// @throws UsageError while a replica is active.
  void start_over() { engine_->start_over(); }

  /// Ends training: replicas use up the tokens that are there and then get `Status::stopped`; chiefs end.
  void close() { engine_->close(); }

  // ---- the chief

  /// With Driver::chief: the object that carries out updates. @throws UsageError if there is one, or
  /// Driver::cooperative.
  Chief chief() { return Chief(*engine_); }
  /// Start of a chief, also of a restarted one: every accumulator's step and the local step of replica 0
  /// become the global step, and tokens with it are added. Aggregates of an earlier chief are lost, counts
  /// stay.
  /// @param num_tokens as in TensorFlow: -1 means R; 0 is lock-step from the first update, if N >= R.
  /// @throws InvalidArgument if num_tokens < R - N.
  ChiefInit init_chief(Index num_tokens) { return engine_->init_chief(num_tokens); }
  /// The same with `VariableOptions::init_tokens`.
  ChiefInit init_chief() { return init_chief(engine_->options().start_tokens()); }
  /// The two parts of `init_chief`: the steps (true if some accumulator was ahead), and the tokens (how
  /// many).
  bool set_accumulator_steps() { return engine_->set_steps(); }
  /// The second part of `init_chief`.
  Index add_init_tokens(Index num_tokens) { return engine_->add_init_tokens(num_tokens); }
  /// Start of a replica: its local step becomes the global step. `join` does it. @return that step.
  std::int64_t init_worker(int place) { return engine_->init_worker(place); }

  // ---- the parts of a step, for programs with a loop of their own

  /// Gives gradients to the accumulators, labelled with the local step of replica `place`. All are checked
  /// before the first one is added. With Driver::cooperative it carries out an update that becomes due.
  /// @return by variable number, what became of its gradient.
  /// @throws UnknownVariable, ShapeMismatch, InvalidArgument for a row out of range or a variable that is
  /// named twice, UsageError for another kind of gradient than declared: nothing has happened then.
  /// PeerFailed.
  std::vector<Pushed> push(int place, std::span<const NamedGradient<T>> gradients) {
    return engine_->push(place, detail::by_number(engine_->layout(), gradients));
  }
  /// Waits for a token, which becomes the local step of replica `place`.
  /// @throws TimeoutError, Cancelled: no token is used up; OutOfRange after `close()`; PeerFailed.
  Index token(int place, std::chrono::milliseconds timeout = {}, const std::stop_token& stop = {}) {
    return engine_->token(place, detail::timeout_or("token", timeout, engine_->options().deadline), stop);
  }

  /// `push` and `token`. Between the two nobody gives out tokens, so whoever has contributed to an update
  /// gets one of its tokens, however fast the others are. @throws as both; after a TimeoutError the gradients
  /// stand, so call `token`.
  Index step(int place, std::span<const NamedGradient<T>> gradients, std::chrono::milliseconds timeout = {},
             const std::stop_token& stop = {}) {
    return engine_->step(place, detail::by_number(engine_->layout(), gradients),
                         detail::timeout_or("step", timeout, engine_->options().deadline), stop);
  }

  // ---- what can be looked at

  /// N.
  int replicas() const { return engine_->options().replicas(); }
  /// As given.
  const VariableOptions& options() const { return engine_->options(); }
  /// Updates applied, from `VariableOptions::global_step`.
  std::int64_t global_step() const { return engine_->global_step(); }
  /// Updates applied by this trainer.
  std::int64_t updates() const { return engine_->counters().updates; }
  /// Changes the counter alone, as a restore of it does; then call `init_chief`.
  /// @throws InvalidArgument for a negative step.
  void set_global_step(std::int64_t step) {
    detail::expect_step("set_global_step", step);
    engine_->set_global_step(step);
  }
  /// The label of the next gradients of replica `place`.
  std::int64_t local_step(int place) const { return engine_->local_step(place); }
  /// Changes that label. @throws InvalidArgument for a negative step, or if there is no such replica.
  void set_local_step(int place, std::int64_t step) {
    detail::expect_step("set_local_step", step);
    engine_->set_local_step(place, step);
  }
  /// Tokens in the queue, the next one first.
  std::vector<Index> tokens() const { return engine_->tokens(); }
  /// Whether the variable of this number has an accumulator, and of which kind.
  GradientKind kind(std::uint32_t id) const { return engine_->kind(id); }
  /// Gradients in the accumulator of a variable. @throws UsageError if it has none.
  Index num_accumulated(std::uint32_t id) const { return engine_->num_accumulated(id); }
  /// Step of the accumulator of a variable: gradients with a lower local step are dropped.
  Index accumulator_step(std::uint32_t id) const { return engine_->accumulator_step(id); }

  // ---- the wrapped optimizer

  /// The set that it trains.
  const Variables<T>& variables() const { return engine_->variables(); }
  /// Slots of the rule.
  std::vector<std::string> slot_names() const { return engine_->updater().slot_names(); }
  /// Not while replicas are at work, unless inside `while_still`.
  template <class M>
  typename TensorTraits<M, T>::ConstView slot(std::string_view name, const Handle<M, T>& handle) const {
    variables().check(handle);
    return TensorTraits<M, T>::view(static_cast<const T*>(engine_->updater().slot(name)) + handle.offset,
                                    handle.shape);
  }
  /// Calls `f()` while no update is written, so that it may read variables and slots. An update that becomes
  /// due meanwhile waits for its end, as long as the deadline of its call says.
  template <class F>
  decltype(auto) while_still(F&& f) const {
    return engine_->while_still([&](const UpdaterState&) -> decltype(auto) { return std::forward<F>(f)(); });
  }

 private:
  using Engine = detail::variable_engine_t<R, Net, T>;

  Replica seat(int place, std::stop_token stop) { return Replica(*engine_, place, std::move(stop)); }

  std::unique_ptr<Engine> engine_;
};

/// Deduces the scalar.
template <class R, class T>
VariableReplicas(R, Variables<T>&, VariableOptions) -> VariableReplicas<R, InProcess, T>;
/// Deduces the transport and the scalar.
template <class R, class T, Transport Net>
VariableReplicas(R, Variables<T>&, VariableOptions, Net) -> VariableReplicas<R, Net, T>;

LOCKSTEP_NAMESPACE_END
