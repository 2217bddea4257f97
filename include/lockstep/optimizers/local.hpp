// SPDX-License-Identifier: MIT
/// @file
/// The optimizer of a single replica: a recipe bound to variables.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/enumerator.hpp>
#include <lockstep/gradients/finite.hpp>
#include <lockstep/optimizers/gradient_access.hpp>
#include <lockstep/optimizers/partition_team.hpp>
#include <lockstep/optimizers/updater.hpp>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Options of an optimizer without replicas.
struct LocalOptions {
  std::int64_t global_step = 0;  ///< where counting starts
  double clip_norm = 0;          ///< limit of the gradient's norm over all variables; 0: no limit
  NonFinite non_finite = NonFinite::propagate;  ///< for gradients with NaN or infinity
};

/// An optimizer without any exchange: what a program trains with before it has replicas, and its own single
/// replica.
/// @tparam R a rule, `PerVariable` of one, or `GradientAggregation` of these.
/// @par Thread safety None: one thread at a time.
template <class R, class T = float, class G = T>
requires Recipe<R, T>
class Local : public GradientAccess<Local<R, T, G>, T, G> {
 public:
  /// It is its own replica.
  using Replica = Local;

  /// @throws InvalidArgument for an option without meaning; UsageError if the variables are bound already.
  Local(R recipe, Variables<T, G>& variables, const LocalOptions& options = {})
      : recipe_(std::move(recipe)),
        options_(options),
        binding_(variables),
        core_(std::make_unique<Core>(recipe_, variables)) {
    if (!(options.clip_norm >= 0))
      detail::throw_error<InvalidArgument>("clip_norm: must not be negative, got ", options.clip_norm);
    if (options.global_step < 0)
      detail::throw_error<InvalidArgument>("global_step: must not be negative, got ", options.global_step);
    detail::expect_enumerator("non_finite", options.non_finite, NonFinite::skip_update);
    core_->state.window.global_step = options.global_step;
  }

  /// Always 0: there is one replica.
  int index() const { return 0; }
  /// Updates applied, from `LocalOptions::global_step`; or what the variant of the window counts.
  std::int64_t global_step() const { return core_->state.window.global_step; }
  /// Updates applied so far; the same as `global_step` unless an aggregation variant counts micro-batches
  /// there.
  std::int64_t updates() const { return core_->state.window.updates; }
  /// Batches handed over so far: the key for the next one.
  std::int64_t sequence() const { return core_->sequence; }
  /// The set that it trains.
  const Variables<T, G>& variables() const { return *binding_; }
  /// Slots of the rule, then "grad_accum" if it aggregates.
  std::vector<std::string> slot_names() const { return core_->updater.slot_names(); }
  /// Counters of the open window.
  const protocol::Window& window() const { return core_->state.window; }

  /// Applies the gradients of this step, or adds them to the open window.
  /// @throws NoGradients if no variable has one; InvalidArgument for the weight or the value of a schedule;
  /// UsageError with `num_partitions` in a child that was forked since it was made.
  /// Nothing has changed then.
  StepResult apply_gradients(const ApplyOptions& options = {}) {
    detail::expect_options(options);
    Contribution<G>& staged = staging();
    if (staged.is_empty()) throw NoGradients("apply_gradients: no variable has a gradient in this step");
    if (policy() != NonFinite::propagate && !all_finite(staged)) {
      staged.clear();
      ++core_->sequence;
      return {.status = Status::skipped,
              .global_step = global_step(),
              .computed_at = global_step(),
              .culprit = 0};
    }
    staged.header().unit = staged.header().total = options.weight;
    return apply_merged(options, 1);
  }

  /// For a wrapper that has merged the gradients of several batches into the contribution: its header is
  /// final already.
  StepResult apply_merged(const ApplyOptions& options, std::int64_t batches) {
    staging().header().merged = 1;  // however many micro-batches are in it
    const std::array<const Contribution<G>*, 1> sources{&staging()};
    const StepResult result = run_round(sources, options.flush);
    core_->sequence += batches;
    return result;
  }

  /// Applies the open window as it is, with what was really added as divisor. Does nothing if it is empty.
  StepResult flush() {
    if (core_->state.window.pending == 0)
      return {.status = Status::accumulated, .global_step = global_step()};
    return run_round({}, true);
  }
  /// Micro-batches in the open window.
  std::int64_t pending() const { return core_->state.window.pending; }
  /// Changes k, also of the open window: it closes when it has at least that many.
  void set_grad_steps(WindowLength length) requires(Updater<R, T, G>::aggregates) {
    if (!core_->updater.has_window() && length.needs_accumulator())
      throw UsageError("set_grad_steps: the trainer was made for k = 1 and has no accumulator");
    (void)length(updates());
    core_->updater.set_grad_steps(std::move(length));
  }

  /// Variables, slots, open window and counters.
  Snapshot<T> snapshot() const {
    Snapshot<T> result;
    snapshot_into(result);
    return result;
  }
  /// The same into a snapshot that was there before, whose memory is used again.
  void snapshot_into(Snapshot<T>& to) const { core_->updater.save(core_->state, to); }
  /// Goes on from a snapshot as if training had never stopped. Gradients set since the last step are dropped.
  /// @throws LayoutMismatch if it is of other variables or another rule; InvalidArgument for counters that no
  /// training can have brought about. Nothing has changed then.
  void restore(const Snapshot<T>& snapshot) {
    core_->updater.load(snapshot, core_->state);
    core_->scratch.clear();
  }

  /// One replica, this thread.
  template <class F>
  void run(F&& loop) {
    std::forward<F>(loop)(*this);
  }

  // For GradientAccess.
  /// First element of the variables; for GradientAccess.
  const T* values() const { return core_->updater.values(); }
  /// What the next gradients are written to; for GradientAccess and wrappers.
  Contribution<G>& staging() {
    if constexpr (std::same_as<T, G>)
      if (core_->updater.has_window() && core_->state.window.pending == 0 && writes_into_window())
        return core_->updater.window();
    return core_->scratch;
  }
  /// First element of a slot array in which variable `id` may be read; for GradientAccess.
  /// @throws UnknownVariable with the names that exist.
  const T* slot_data(std::string_view name, std::uint32_t id) const {
    if (Updater<R, T, G>::aggregates && name == k_grad_accum) {
      if (!core_->updater.has_window()) {
        if constexpr (std::same_as<T, G>) {
          core_->scratch.zero_absent(id);
          return core_->scratch.data();
        }
      } else {
        core_->updater.window().zero_absent(id);
        return core_->updater.window().data();
      }
    }
    return core_->updater.slot(name);
  }
  /// How a wrapper's window is divided: by its weight.
  Reduction reduction() const { return Reduction::mean; }

 private:
  struct Core {
    Core(const R& recipe, Variables<T, G>& variables)
        : rows(variables.layout()),
          memory(bytes(recipe, variables, rows)),
          carver(memory.bytes().data()),
          updater(recipe, variables, rows, carver),
          scratch(carver, variables.layout(), rows, true) {
      updater.initialise();
      if (const int parts = updater.options().num_partitions; parts > 1)
        team = std::make_unique<detail::PartitionTeam>(variables.layout(), parts);
    }
    static std::size_t bytes(const R& recipe, Variables<T, G>& variables, const RowLayout& rows) {
      Carver counter;
      const Updater<R, T, G> updater(recipe, variables, rows, counter);
      const Contribution<G> scratch(counter, variables.layout(), rows, true);
      return counter.used();
    }

    RowLayout rows;
    ZeroedMemory memory;
    Carver carver;
    Updater<R, T, G> updater;
    Contribution<G> scratch;
    Contributors<T, G> sources;
    UpdaterState state;
    std::int64_t sequence = 0;
    std::unique_ptr<detail::PartitionTeam> team;
  };

  /// The historical variants and sums divide when a micro-batch arrives, so it cannot be the window itself.
  bool writes_into_window() const {
    const AggregationOptions& window = core_->updater.options();
    return !protocol::Window::divides_by_k(window.variant) && window.reduction == Reduction::mean;
  }
  NonFinite policy() const {
    const NonFinite window = core_->updater.options().non_finite;
    return window == NonFinite::propagate ? options_.non_finite : window;
  }

  StepResult run_round(std::span<const Contribution<G>* const> contributions, bool flush) {
    Core& core = *core_;
    const std::int64_t computed_at = global_step();
    const UpdatePlan plan =
        core.updater.plan(core.state, contributions, Reduction::mean, Absent::zero, flush);
    const Index size = core.updater.layout().size();
    if (plan.applies) core.updater.prepare(core.state, plan);
    core.updater.list(plan, contributions, 1, core.sources);
    if (plan.applies && options_.clip_norm > 0)
      core.updater.list(plan, contributions,
                        clip_factor(core.updater.squared_norm(core.sources), options_.clip_norm),
                        core.sources);
    if (core.team && (!plan.applies || Updater<R, T, G>::by_elements))
      core.team->run([&](Index begin, Index end) { core.updater.run(plan, core.sources, begin, end); });
    else
      core.updater.run(plan, core.sources, 0, size);
    const auto merged =
        static_cast<int>(core.state.window.pending + static_cast<std::int64_t>(contributions.size()));
    core.updater.commit(core.state, plan, contributions);
    if (!core.scratch.is_empty()) core.scratch.clear();
    return {.status = plan.applies ? Status::accepted : Status::accumulated,
            .global_step = global_step(),
            .contributions = merged,
            .computed_at = computed_at};
  }

  R recipe_;
  LocalOptions options_;
  Binding<T, G> binding_;
  std::unique_ptr<Core> core_;
};

/// Deduces the scalars from the variables.
template <class R, class T, class G>
Local(R, Variables<T, G>&) -> Local<R, T, G>;
/// Deduces the scalars from the variables.
template <class R, class T, class G>
Local(R, Variables<T, G>&, LocalOptions) -> Local<R, T, G>;

LOCKSTEP_NAMESPACE_END
