// SPDX-License-Identifier: MIT
/// @file
/// One replica of `VariableReplicas`: gives gradients to the accumulators, then waits for a token.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/own_contribution.hpp>
#include <lockstep/optimizers/gradient_access.hpp>
#include <lockstep/optimizers/step_result.hpp>
#include <lockstep/per_variable/engine_choice.hpp>
#include <lockstep/per_variable/gradient_check.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// A seat at a `VariableReplicas` trainer, made by its `join()`. Leaves when it is destroyed; when an
/// exception destroys it, the others get `PeerFailed`. It sees a copy of the variables, made whenever it may
/// go on, since an update of one variable may come about while it computes.
/// @par Thread safety One thread at a time; different replicas on different threads.
template <class R, class Net, class T>
class VariableReplica : public GradientAccess<VariableReplica<R, Net, T>, T, T> {
  using Engine = detail::variable_engine_t<R, Net, T>;

 public:
  /// Used by `VariableReplicas::join`.
  VariableReplica(Engine& engine, int place, std::stop_token stop)
      : engine_(&engine),
        place_(engine.join(place, stop)),
        stop_(std::move(stop)),
        unwinding_(std::uncaught_exceptions()) {
    try {
      staged_ = std::make_unique<detail::OwnContribution<T>>(engine.layout());
      sequence_ = engine.sequence(place_);
      take_note(engine.read(snapshot_));
    } catch (...) {
      engine.depart(place_, line_);  // without it nobody could ever sit there
      throw;
    }
  }

  /// Takes over the seat; the other one has none any more.
  VariableReplica(VariableReplica&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)),
        place_(other.place_),
        stop_(std::move(other.stop_)),
        unwinding_(other.unwinding_),
        staged_(std::move(other.staged_)),
        scaled_(std::move(other.scaled_)),
        snapshot_(std::move(other.snapshot_)),
        pushed_(std::move(other.pushed_)),
        line_(std::move(other.line_)),
        needs_(other.needs_),
        scale_(other.scale_),
        batches_(other.batches_),
        computed_at_(other.computed_at_),
        step_(other.step_),
        updates_(other.updates_),
        sequence_(other.sequence_) {}
  VariableReplica& operator=(VariableReplica&&) = delete;

  ~VariableReplica() {
    if (!engine_ || engine_->is_in_forked_child()) return;
    if (std::uncaught_exceptions() > unwinding_)
      engine_->die(place_, line_, "an exception ended its loop");
    else
      engine_->depart(place_, line_);
  }

  // ---- where it is

  /// Its replica number.
  int index() const { return place_; }
  /// Global step of the variables that this replica sees.
  std::int64_t global_step() const { return step_; }
  /// The value of its last token: the label of its next gradients.
  std::int64_t local_step() const { return engine().local_step(place_); }
  /// Updates that the variables have which this replica sees.
  std::int64_t updates() const { return updates_; }
  /// Batches handed over so far: the key for the next one. Between processes a replacement goes on counting.
  std::int64_t sequence() const { return sequence_; }
  /// The set that it trains.
  const Variables<T>& variables() const { return engine().variables(); }
  /// Slots of the rule.
  std::vector<std::string> slot_names() const { return engine().updater().slot_names(); }
  /// What became of each variable's gradient in the last step, by variable number.
  std::span<const Pushed> pushed() const { return pushed_; }

  // ---- the step

  /// Gives each gradient of this step to its variable's accumulator, then waits for a token.
  /// The status is `stale` if every accumulator dropped its gradient, `accepted` if at least one took it,
  /// `stopped` if training has ended. `round_open`: no update has come since, as with tokens at the start.
  /// @throws NoGradients, InvalidArgument, UsageError for a gradient of another kind than declared (nothing
  /// has happened then); TimeoutError with what is missing (the gradients stand: `resume()`); PeerFailed;
  /// Cancelled.
  StepResult apply_gradients(const ApplyOptions& options = {}) {
    detail::expect_weight(options.weight);
    if (options.weight != 1)
      detail::throw_error<InvalidArgument>("weight: an accumulator counts gradients, so each weighs 1, got ",
                                           options.weight, "; SyncReplicas has weights");
    if (staging().is_empty())
      detail::throw_error<NoGradients>("apply_gradients: replica ", place_,
                                       " has no gradient for any variable");
    return contribute(1, 1, options);
  }

  /// For a wrapper that has merged several gradients: their mean is handed over and counts as one.
  StepResult apply_merged(const ApplyOptions& options, std::int64_t batches) {
    const ContributionHeader& header = staging().header();
    return contribute(header.unit / header.total, batches, options);
  }

  /// Goes on after a TimeoutError or Cancelled: gives the gradients if they do not count yet, and waits.
  StepResult resume(const ApplyOptions& options = {}) {
    detail::expect_options(options, "resume");
    (void)engine();
    if (needs_ == Need::nothing)
      detail::throw_error<UsageError>("resume: replica ", place_, " does not wait for a token");
    return go_on(options);
  }

  /// No more data. What its gradients have reached stays there. All views end.
  void leave() {
    if (!engine_) return;
    engine_->depart(place_, line_);
    engine_ = nullptr;
  }

  // ---- for GradientAccess and wrappers

  /// First element of the variables as this replica sees them; for GradientAccess.
  const T* values() const { return snapshot_.data(); }
  /// What the next gradients are written to; for GradientAccess.
  /// @throws UsageError while gradients are pending after a timeout, or if it has left.
  Contribution<T>& staging() {
    (void)engine();
    if (needs_ != Need::nothing)
      detail::throw_error<UsageError>("gradient: replica ", place_,
                                      " still waits for a token; call resume() first");
    return staged_->get();
  }
  /// First element of a slot array; for GradientAccess. @throws UnknownVariable
  const T* slot_data(std::string_view name, std::uint32_t) const { return engine().updater().slot(name); }
  /// Over the gradients of a variable.
  Reduction reduction() const { return engine().options().reduction; }

 private:
  /// What a step still needs. One that has begun to push and timed out has not.
  enum class Need { nothing, push, token, values };

  Engine& engine() const {
    if (!engine_) detail::throw_error<UsageError>("replica ", place_, " has left");
    return *engine_;
  }

  void take_note(const protocol::Window& of_snapshot) {
    step_ = of_snapshot.global_step;
    updates_ = of_snapshot.updates;
  }

  StepResult contribute(double scale, std::int64_t batches, const ApplyOptions& options) {
    detail::expect_options(options);
    (void)staging();
    scale_ = static_cast<T>(scale);
    batches_ = batches;
    needs_ = Need::push;
    return go_on(options);
  }

  StepResult go_on(const ApplyOptions& options) {
    if (needs_ == Need::push) hand_over();
    return wait_for_token(options);
  }

  /// Gives the gradients, unless the session cannot be entered: then they still are to be given.
  void hand_over() {
    Contribution<T>& staged = staged_->get();
    try {
      computed_at_ = local_step();
      pushed_ = push(staged, scale_, batches_);
    } catch (const TimeoutError&) {
      throw;
    } catch (...) {
      needs_ = Need::nothing;
      throw;
    }
    staged.clear();
    sequence_ += batches_;
    needs_ = Need::token;
  }

  std::vector<Pushed> push(Contribution<T>& staged, T scale, std::int64_t batches) {
    std::vector<detail::NumberedGradient<T>> gradients;
    std::vector<std::vector<Index>> indices(staged.layout().count());
    std::vector<std::vector<T>> rows(staged.layout().count());
    for (const VariableInfo& info : staged.layout().infos()) {
      T* data = staged.data() + info.offset;
      if (staged.presence(info.id) == Presence::dense) {
        const auto size = static_cast<std::size_t>(info.size);
        std::span<T> elements(data, size);
        if (scale != T(1)) {
          scaled_.resize(static_cast<std::size_t>(staged.layout().size()));
          const std::span<T> scaled(scaled_.data() + info.offset, size);
          detail::as_array(scaled) = detail::as_array(elements) * scale;
          elements = scaled;
        }
        gradients.push_back({info.id, TensorView<const T>(elements, info.shape)});
      } else if (staged.presence(info.id) == Presence::rows) {
        const Index width = info.row_size();
        auto& values = rows[info.id];
        staged.rows(info.id).for_each([&](Index row) {
          indices[info.id].push_back(row);
          values.insert(values.end(), data + row * width, data + (row + 1) * width);
        });
        if (scale != T(1)) detail::as_array(std::span<T>(values)) *= scale;
        const Shape shape = detail::rows_shape(info, static_cast<Index>(indices[info.id].size()));
        gradients.push_back(
            {info.id, SparseGradient<T>{.indices = indices[info.id], .values = {values, shape}}});
      }
    }
    return engine().push(place_, gradients, line_, batches);
  }

  StepResult wait_for_token(const ApplyOptions& options) {
    const auto timeout = detail::timeout_or("apply_gradients", options.timeout, engine().options().deadline);
    try {
      if (needs_ == Need::token) (void)engine().token(place_, timeout, stop_, line_);
    } catch (const OutOfRange&) {
      needs_ = Need::nothing;
      return {.status = Status::stopped, .global_step = step_, .computed_at = computed_at_};
    }
    needs_ = Need::values;  // it may time out as well, and then must not ask for another token
    take_note(engine().read(snapshot_));
    needs_ = Need::nothing;
    const auto count = [&](Pushed what) { return std::count(pushed_.begin(), pushed_.end(), what); };
    const bool used = count(Pushed::accepted) > 0 || count(Pushed::dropped) == 0;
    const bool open = used && step_ == computed_at_;
    return {.status = used ? Status::accepted : Status::stale,
            .global_step = step_,
            .contributions = used && !open ? engine().options().replicas_to_aggregate : 0,
            .round_open = open,
            .computed_at = computed_at_};
  }

  Engine* engine_;
  int place_;
  std::stop_token stop_;
  int unwinding_;
  std::unique_ptr<detail::OwnContribution<T>> staged_;  // this step's gradients
  std::vector<T> scaled_;       // the same times a scale: a push that is refused leaves them as they are
  std::vector<T> snapshot_;     // the variables, as they were when it could go on
  std::vector<Pushed> pushed_;  // by variable number, in the last step
  std::optional<typename Engine::Waiter> line_;  // its place in the line for tokens
  Need needs_ = Need::nothing;
  T scale_ = 1;               // of the gradients that are handed over
  std::int64_t batches_ = 1;  // that they were computed from
  std::int64_t computed_at_ = 0;
  std::int64_t step_ = 0;
  std::int64_t updates_ = 0;
  std::int64_t sequence_ = 0;
};

LOCKSTEP_NAMESPACE_END
