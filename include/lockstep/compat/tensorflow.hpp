// SPDX-License-Identifier: MIT
/// @file
/// SyncReplicasOptimizer with the names and the order of calls of TensorFlow, over VariableReplicas.
#pragma once

#include <lockstep/compat/tensorflow_gradient_aggregation.hpp>
#include <lockstep/compat/tensorflow_gradients.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/moving_average.hpp>
#include <lockstep/optimizers/per_variable.hpp>
#include <lockstep/optimizers/rule.hpp>
#include <lockstep/per_variable/gradient_check.hpp>
#include <lockstep/per_variable/variable_replicas.hpp>
#include <lockstep/protocol/init_tokens.hpp>
#include <lockstep/transport/start_thread.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace tensorflow {

/// The moving average of `variable_averages`.
struct ExponentialMovingAverage {
  double decay = 0.999;      ///< share of the average that is kept per update
  bool num_updates = false;  ///< the decay follows the number of updates
};

/// The counter of updates. Its value afterwards is `SyncReplicasOptimizer::global_step()`.
struct GlobalStep {
  std::int64_t value = 0;  ///< where counting starts
};

/// What a hook finds when a session starts: the variables that nobody has given a value yet.
struct Session {
  std::vector<std::string> uninitialized_variables = {};  ///< by name
};

/// One array among the variables of an optimizer.
template <class T>
struct OptimizerVariable {
  std::string name;      ///< "m", "beta1_power"
  std::string variable;  ///< which variable it belongs to; empty if to none
  Tensor<T> value;       ///< its elements and shape
};

/// Adds synchronous replicas to `opt`. Where TensorFlow builds a graph and runs it in sessions, here
/// `apply_gradients` builds the accumulators from the kinds of the gradients, and the `TrainOp` that it
/// returns runs one step of a worker. Replicas are threads of this process; worker 0 is the chief.
/// @tparam R models lockstep::UpdateRule: Adam, Momentum, ...
/// @par Thread safety Building: one thread. TrainOps of different workers: one thread each.
/// @par Source TensorFlow 1 and tf.compat.v1 SyncReplicasOptimizer. docs/coming-from-tensorflow.md has every
/// difference.
/// @code{.cpp}
/// namespace tf = lockstep::tensorflow;
/// tf::SyncReplicasOptimizer opt(lockstep::Adam{}, variables, 2, 2);
/// auto train_op = opt.apply_gradients(grads_and_vars, tf::GlobalStep{});
/// auto hook = opt.make_session_run_hook(true, 0);
/// hook.begin();
/// hook.after_create_session({});                  // starts the chief's thread
/// train_op.run(0, grads_and_vars);                // worker 0; worker 1 on another thread
/// @endcode
template <DeclaresSlots R, class T = float>
class SyncReplicasOptimizer {
  using Rule = PerVariable<MovingAverage<R>>;
  using Trainer = VariableReplicas<Rule, InProcess, T>;
  using Chief = typename Trainer::Chief;

 public:
  /// One step of a worker: push the gradients, take a token.
  class TrainOp {
   public:
    /// @return the worker's new local step. @throws as `VariableReplicas::step`, and InvalidArgument for a
    /// gradient of no known type.
    std::int64_t run(int worker, const GradsAndVars& grads_and_vars, std::chrono::milliseconds timeout = {},
                     const std::stop_token& stop = {}) {
      std::vector<NamedGradient<T>> gradients;
      for (const GradAndVar& pair : grads_and_vars)
        gradients.push_back({pair.variable, detail::gradient_of<T>(pair)});
      return trainer_->step(worker, gradients, timeout, stop);
    }

   private:
    friend SyncReplicasOptimizer;
    explicit TrainOp(Trainer& trainer) : trainer_(&trainer) {}
    Trainer* trainer_;
  };

  /// The chief's loop.
  class QueueRunner {
   public:
    /// Updates until a stop is requested. @throws what a schedule throws.
    void run(const std::stop_token& stop) { trainer_->chief().run(stop); }
    /// Runs on a thread of its own, which ends when the returned object is destroyed. Whatever ends the
    /// chief, also what a schedule throws, workers get PeerFailed with its text.
    /// @throws UsageError if there is a chief already; SystemError if the system gives no thread.
    [[nodiscard]] std::jthread create_threads() {
      // Made here, so that its caller learns why there is none.
      std::unique_ptr<Chief> chief(new Chief(trainer_->chief()));
      return lockstep::detail::start_thread(
          "create_threads", 1, 1, [chief = std::move(chief)](const std::stop_token& stop) mutable {
            try {
              chief->run(stop);
            } catch (...) {  // every worker has been told
            }
            chief.reset();  // before somebody who joins this thread asks for another one
          });
    }

   private:
    friend SyncReplicasOptimizer;
    explicit QueueRunner(Trainer& trainer) : trainer_(&trainer) {}
    Trainer* trainer_;
  };

  /// Adds tokens with the global step at the time it runs.
  class InitTokensOp {
   public:
    /// @return how many.
    Index run() { return trainer_->add_init_tokens(num_tokens_); }

   private:
    friend SyncReplicasOptimizer;
    InitTokensOp(Trainer& trainer, Index num_tokens) : trainer_(&trainer), num_tokens_(num_tokens) {}
    Trainer* trainer_;
    Index num_tokens_;
  };

  /// Starts a worker, and on the chief the update loop.
  class SessionRunHook {
   public:
    /// @throws UsageError before apply_gradients; InvalidArgument if the chief would add too few tokens.
    void begin() {
      opt_->expect_built("begin");
      if (is_chief_) (void)opt_->get_init_tokens_op(num_tokens_);
    }
    /// Again for every session that is created anew.
    /// @throws NotInitialized if the session has variables without a value; UsageError before
    /// apply_gradients.
    void after_create_session(const Session& session) {
      Trainer& trainer = opt_->expect_built("after_create_session");
      if (!session.uninitialized_variables.empty())
        detail::throw_error<NotInitialized>("init ops: ", session.uninitialized_variables.size(),
                                            " variables are not initialized, the first is '",
                                            session.uninitialized_variables.front(), "'");
      if (!is_chief_) {
        (void)trainer.init_worker(worker_);
        return;
      }
      runner_ = std::jthread();  // the thread of an earlier session
      (void)trainer.init_chief(num_tokens_);
      runner_ = opt_->get_chief_queue_runner().create_threads();
    }
    /// Ends the chief's thread.
    void end() { runner_ = std::jthread(); }

   private:
    friend SyncReplicasOptimizer;
    SessionRunHook(SyncReplicasOptimizer& opt, bool is_chief, Index num_tokens, int worker)
        : opt_(&opt), is_chief_(is_chief), num_tokens_(num_tokens), worker_(worker) {}
    SyncReplicasOptimizer* opt_;
    bool is_chief_;
    Index num_tokens_;
    int worker_;
    std::jthread runner_;
  };

  /// @param variables            those that the gradients are for; TensorFlow finds them in its graph.
  /// @param total_num_replicas   absent: as many as `replicas_to_aggregate`.
  /// @param variables_to_average names; empty: all.
  /// @param use_locking, name    as in TensorFlow, without effect.
  SyncReplicasOptimizer(R opt, Variables<T>& variables, int replicas_to_aggregate,
                        std::optional<int> total_num_replicas = std::nullopt,
                        std::optional<ExponentialMovingAverage> variable_averages = std::nullopt,
                        std::vector<std::string> variables_to_average = {},
                        [[maybe_unused]] bool use_locking = false,
                        [[maybe_unused]] std::string_view name = "sync_replicas")
      : opt_(std::move(opt)),
        variables_(variables),
        replicas_to_aggregate_(replicas_to_aggregate),
        total_num_replicas_(total_num_replicas),
        variable_averages_(variable_averages),
        variables_to_average_(std::move(variables_to_average)) {}

  SyncReplicasOptimizer(const SyncReplicasOptimizer&) = delete;
  SyncReplicasOptimizer& operator=(const SyncReplicasOptimizer&) = delete;

  // ---- building

  /// Calls `compute()`, which returns the list of gradients. Clip them in there: that is before the
  /// aggregation.
  template <class F>
  static GradsAndVars compute_gradients(F&& compute) {
    return std::invoke(std::forward<F>(compute));
  }

  /// Makes one accumulator per gradient, of its kind. The values do not matter yet; give them to
  /// `TrainOp::run`.
  /// @throws InvalidArgument for an empty list, no global step, a gradient of no known type, a variable that
  /// is named twice, no gradient but None, or an argument of the constructor without meaning;
  /// UnknownVariable; UsageError if it was called before.
  TrainOp apply_gradients(const GradsAndVars& grads_and_vars,
                          std::optional<GlobalStep> global_step = std::nullopt) {
    if (grads_and_vars.empty())
      throw InvalidArgument("apply_gradients: must supply at least one (gradient, variable)");
    if (!global_step) throw InvalidArgument("apply_gradients: a global step is required to check staleness");
    if (trainer_) throw UsageError("apply_gradients: was called before; run the TrainOp that it returned");
    std::vector<GradientKind> kinds(variables_.layout().count(), GradientKind::none);
    std::vector<bool> seen(kinds.size());
    for (const GradAndVar& pair : grads_and_vars) {
      const VariableInfo& info = variables_.layout().find(pair.variable);
      lockstep::detail::expect_first(info, seen);
      const std::size_t kind = detail::gradient_of<T>(pair).index();
      kinds[info.id] = kind == 0   ? GradientKind::none
                       : kind == 1 ? GradientKind::dense
                                   : GradientKind::sparse;
    }
    VariableOptions options{.replicas_to_aggregate = replicas_to_aggregate_,
                            .kind = [kinds](const VariableInfo& info) { return kinds[info.id]; },
                            .global_step = global_step->value,
                            .driver = Driver::chief};
    if (total_num_replicas_) options.total_num_replicas = *total_num_replicas_;
    trainer_ = std::make_unique<Trainer>(averaging_rule(), variables_, options);
    return TrainOp(*trainer_);
  }

  /// @throws UsageError before apply_gradients.
  QueueRunner get_chief_queue_runner() { return QueueRunner(expect_built("get_chief_queue_runner")); }
  /// @param num_tokens -1 means `replicas_to_aggregate`. @throws UsageError before apply_gradients;
  /// InvalidArgument if there are too few for the first update.
  InitTokensOp get_init_tokens_op(Index num_tokens = protocol::k_default_init_tokens) {
    Trainer& trainer = expect_built("get_init_tokens_op");
    (void)protocol::init_tokens(replicas_to_aggregate_, total_num_replicas_, num_tokens);
    return InitTokensOp(trainer, num_tokens);
  }
  /// @param worker which replica this is, if it is not the chief.
  SessionRunHook make_session_run_hook(bool is_chief, Index num_tokens = protocol::k_default_init_tokens,
                                       int worker = 0) {
    return SessionRunHook(*this, is_chief, num_tokens, is_chief ? 0 : worker);
  }

  // ---- without the hook: local_step_init_op and chief_init_op

  /// The local step of a worker becomes the global step.
  void local_step_init_op(int worker) { (void)expect_built("local_step_init_op").init_worker(worker); }
  /// Local step of the chief and steps of all accumulators := global step; adds no tokens.
  void chief_init_op() { (void)expect_built("chief_init_op").set_accumulator_steps(); }

  // ---- the wrapped optimizer

  /// Updates applied.
  std::int64_t global_step() { return expect_built("global_step").global_step(); }
  /// Slots of the wrapped optimizer.
  std::vector<std::string> get_slot_names() const {
    std::vector<std::string> names;
    for (const Slot& slot : R::slots) names.emplace_back(slot.name);
    return names;
  }
  /// @throws UnknownVariable; UsageError before apply_gradients.
  Tensor<T> get_slot(std::string_view variable, std::string_view name) {
    const Trainer& trainer = expect_built("get_slot");
    const auto handle = detail::handle_of(variables_, variables_.layout().find(variable));
    return trainer.while_still([&] { return tensor_of(trainer.slot(name, handle)); });
  }
  /// The value of a variable, read while nobody writes it.
  Tensor<T> read(std::string_view variable) {
    const Trainer& trainer = expect_built("read");
    const auto handle = detail::handle_of(variables_, variables_.layout().find(variable));
    return trainer.while_still([&] { return tensor_of(variables_.value(handle)); });
  }
  /// The moving average of a variable. @throws UsageError if it has none.
  Tensor<T> average(std::string_view variable) {
    if (!variable_averages_ || !averages(variable))
      detail::throw_error<UsageError>("average: none was asked for of '", variable, "'");
    return get_slot(variable, "average");
  }
  /// The variables of `opt`: its slots, and the powers of the decay rates where it has some. No local steps.
  std::vector<OptimizerVariable<T>> variables() {
    const Trainer& trainer = expect_built("variables");
    std::vector<OptimizerVariable<T>> result;
    if constexpr (requires(const R& rule) {
                    rule.beta1;
                    rule.beta2;
                  }) {
      const auto t = static_cast<double>(trainer.updates() + 1);
      result.push_back({"beta1_power", "", {{static_cast<T>(std::pow(opt_.beta1, t))}, {}}});
      result.push_back({"beta2_power", "", {{static_cast<T>(std::pow(opt_.beta2, t))}, {}}});
    }
    for (const VariableInfo& info : variables_.infos())
      if (trainer.kind(info.id) != GradientKind::none)
        for (const std::string& name : get_slot_names())
          result.push_back({name, info.name, get_slot(info.name, name)});
    return result;
  }

  /// What this class stands on, for everything that TensorFlow has no name for. @throws UsageError before
  /// apply_gradients.
  Trainer& trainer() { return expect_built("trainer"); }

 private:
  Trainer& expect_built(const char* call) {
    if (!trainer_) detail::throw_error<UsageError>(call, ": call apply_gradients() first");
    return *trainer_;
  }
  bool averages(std::string_view variable) const {
    return variables_to_average_.empty() ||
           std::find(variables_to_average_.begin(), variables_to_average_.end(), variable) !=
               variables_to_average_.end();
  }
  Rule averaging_rule() const {
    const auto average = variable_averages_.value_or(ExponentialMovingAverage{.decay = 0});
    Rule rule{{.rule = opt_, .decay = average.decay, .num_updates = average.num_updates}};
    for (const std::string& name : variables_to_average_) (void)variables_.layout().find(name);
    rule.adjust = [enabled = variable_averages_.has_value(), names = variables_to_average_](
                      MovingAverage<R>& adjusted, const VariableInfo& info) {
      adjusted.enabled =
          enabled && (names.empty() || std::find(names.begin(), names.end(), info.name) != names.end());
    };
    return rule;
  }
  static Tensor<T> tensor_of(const NdSpan<const T>& view) { return {{view.begin(), view.end()}, view.shape}; }

  R opt_;
  Variables<T>& variables_;
  int replicas_to_aggregate_;
  std::optional<int> total_num_replicas_;
  std::optional<ExponentialMovingAverage> variable_averages_;
  std::vector<std::string> variables_to_average_;
  std::unique_ptr<Trainer> trainer_;
};

/// Deduces the rule and the scalar.
template <class R, class T, class... Arguments>
SyncReplicasOptimizer(R, Variables<T>&, Arguments...) -> SyncReplicasOptimizer<R, T>;

}  // namespace tensorflow

LOCKSTEP_NAMESPACE_END
