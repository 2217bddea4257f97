// SPDX-License-Identifier: MIT
/// @file
/// GradientAggregation: k micro-batches make one gradient, around a rule (see optimizers/aggregation.hpp) or
/// a trainer.
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/finite.hpp>
#include <lockstep/gradients/merge.hpp>
#include <lockstep/gradients/own_contribution.hpp>
#include <lockstep/optimizers/aggregation.hpp>
#include <lockstep/optimizers/float_environment.hpp>
#include <lockstep/optimizers/gradient_access.hpp>
#include <lockstep/optimizers/local.hpp>
#include <lockstep/optimizers/step_result.hpp>
#include <lockstep/sync_replicas.hpp>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// How a trainer's replica is held: by value where it is handed out by `join()`, by reference where it is the
/// trainer.
template <class Inner>
using HeldReplica =
    std::conditional_t<std::same_as<Inner, typename Inner::Replica>, Inner&, typename Inner::Replica>;

}  // namespace detail

/// The optimizer of one replica around another one: it averages k micro-batches in this replica and hands one
/// gradient to the inner optimizer, so replicas exchange once per window. The first micro-batch of a window
/// is written into the inner optimizer's own memory; each further one is one pass `acc += c * g`. Gradients
/// of 16 bits are summed in the scalar of the variables and rounded once, when they are handed over.
/// @tparam Inner models lockstep::Trainer.
template <class Inner>
class AggregatingReplica : public GradientAccess<AggregatingReplica<Inner>, typename Inner::Replica::Scalar,
                                                 typename Inner::Replica::GradientScalar> {
 public:
  /// Scalar of variables and slots.
  using T = typename Inner::Replica::Scalar;
  /// Scalar of gradients.
  using G = typename Inner::Replica::GradientScalar;

  /// @throws InvalidArgument for an option without meaning.
  AggregatingReplica(detail::HeldReplica<Inner>&& inner, const AggregationOptions& options)
      : inner_(static_cast<detail::HeldReplica<Inner>&&>(inner)), options_(options) {
    detail::expect_valid(options_);
    if (options_.num_partitions != 1)
      detail::throw_error<InvalidArgument>(
          "num_partitions: only Local<GradientAggregation<...>> splits over threads, got ",
          options_.num_partitions);
    window_.global_step = inner_.global_step();
    inner_.staging().clear();
  }

  /// Replica number, as the inner optimizer counts.
  int index() const { return inner_.index(); }
  /// Updates, or what the variant of the window counts.
  std::int64_t global_step() const { return historical() ? window_.global_step : inner_.global_step(); }
  /// Updates that the variables have which this replica sees.
  std::int64_t updates() const { return inner_.updates(); }
  /// Micro-batches in accepted windows, over all who sat at this replica number, and in the open one: the key
  /// for the next batch. Those of a window that was refused come again.
  std::int64_t sequence() const { return inner_.sequence() + batches_; }
  /// The set that it trains.
  const Variables<T, G>& variables() const { return inner_.variables(); }
  /// The inner slots, then "grad_accum".
  std::vector<std::string> slot_names() const {
    std::vector<std::string> names = inner_.slot_names();
    names.emplace_back(k_grad_accum);
    return names;
  }
  /// The replica that windows are handed to.
  typename Inner::Replica& inner() { return inner_; }
  /// Counters of the open window.
  const protocol::Window& window() const { return window_; }
  /// Micro-batches in the open window.
  std::int64_t pending() const { return window_.pending; }
  /// Changes k, also of the open window: it closes when it has at least that many.
  void set_grad_steps(WindowLength length) {
    (void)length(updates());
    options_.grad_steps = std::move(length);
  }

  /// Adds this step's gradients to the window; the k-th hands the window to the inner optimizer and returns
  /// its result.
  /// @throws NoGradients, InvalidArgument for an option: nothing has happened. What the inner optimizer
  /// throws: if it has not taken the window (a schedule without a usable value), the window stands with this
  /// micro-batch in it, and `flush()` hands it over.
  StepResult apply_gradients(const ApplyOptions& options = {}) {
    detail::expect_options(options);
    Contribution<G>& staged = staging();
    if (staged.is_empty()) throw NoGradients("apply_gradients: no variable has a gradient in this step");
    const std::int64_t k = options_.grad_steps(updates());
    if (options_.non_finite != NonFinite::propagate && !all_finite(staged)) {
      staged.clear();
      ++batches_;
      return {.status = Status::skipped,
              .global_step = global_step(),
              .computed_at = inner_.global_step(),
              .culprit = index()};
    }
    staged.header().unit = staged.header().total = options.weight;
    staged.header().merged = 1;
    take_in(staged);
    ++batches_;
    if (options.flush || window_.closes(options_.variant, k)) {
      try {
        return hand_over(options, k);
      } catch (...) {
        if (batches_ > 0) keep(k);  // it was not taken
        throw;
      }
    }
    window_.advance(options_.variant, k, false);
    return {.status = Status::accumulated,
            .global_step = global_step(),
            .contributions = static_cast<int>(window_.pending),
            .computed_at = inner_.global_step()};
  }

  /// Hands the open window over as it is, with what was really added as divisor. Does nothing if it is empty.
  /// @throws as `apply_gradients`; if the inner optimizer has not taken the window, it stands as it was.
  StepResult flush(const ApplyOptions& options = {}) {
    detail::expect_options(options, "flush");
    if (window_.pending == 0) return {.status = Status::accumulated, .global_step = global_step()};
    return hand_over(options, options_.grad_steps(updates()));
  }

  /// After a TimeoutError: waits on for the window that was handed over.
  StepResult resume(const ApplyOptions& options = {}) requires requires(typename Inner::Replica& replica) {
    replica.resume(options);
  }
  { return inner_.resume(options); }
  /// After a TimeoutError: gives the window up, so that its micro-batches may be computed again. False if its
  /// round has closed: `resume()` then.
  bool withdraw() requires requires(typename Inner::Replica& replica) { replica.withdraw(); }
  { return inner_.withdraw(); }

  // For GradientAccess.
  /// First element of the variables as this replica sees them.
  const T* values() const { return inner_.values(); }
  /// What the next micro-batch is written to. @throws UsageError while a window is pending after a timeout.
  Contribution<G>& staging() {
    Contribution<G>& inner = inner_.staging();  // throws while a contribution is pending
    if (!k_widens && window_.pending == 0) return inner;
    return own(scratch_);
  }
  /// First element of a slot array in which variable `id` may be read. @throws UnknownVariable
  const T* slot_data(std::string_view name, std::uint32_t id) {
    if (name != k_grad_accum) return inner_.slot_data(name, id);
    Contribution<T>& sum = accumulator();
    sum.zero_absent(id);
    return sum.data();
  }
  /// The same.
  const T* slot_data(std::string_view name, std::uint32_t id) const {
    return const_cast<AggregatingReplica*>(this)->slot_data(
        name, id);  // fills unused memory with zeros, changes no value
  }

 private:
  static constexpr bool k_widens = !std::same_as<T, G>;

  bool historical() const { return protocol::Window::divides_by_k(options_.variant); }

  /// Memory that is made when it is first needed, so k = 1 needs none.
  template <class S>
  Contribution<S>& own(std::unique_ptr<detail::OwnContribution<S>>& memory) {
    if (!memory) memory = std::make_unique<detail::OwnContribution<S>>(variables().layout());
    return memory->get();
  }
  Contribution<T>& accumulator() {
    if constexpr (k_widens)
      return own(wide_);
    else
      return inner_.staging();
  }

  void take_in(Contribution<G>& staged) {
    const FloatEnvironment same_everywhere;
    if constexpr (k_widens) {
      Contribution<T>& sum = own(wide_);
      detail::add_wide<T, G>(sum, staged, window_.pending == 0, sources_);
      staged.clear();
    } else {
      Contribution<G>& sum = inner_.staging();
      if (&staged == &sum) return;
      detail::merge<T>(sum, staged, sum, sources_);
      staged.clear();
    }
  }

  /// One boundary, one normalisation: says in the header what the inner optimizer divides by.
  StepResult hand_over(const ApplyOptions& options, std::int64_t k) {
    Contribution<G>& to = inner_.staging();
    const ContributionHeader header = to.header();
    const protocol::Window window = window_;
    double unit = accumulator().header().unit, total = accumulator().header().total;
    if (historical()) {
      unit /= static_cast<double>(k);
      total = 1;
    } else if (options_.reduction == Reduction::sum) {
      total = 1;
    } else if (inner_.reduction() == Reduction::sum) {
      unit /= total;
      total = 1;
    }
    if constexpr (k_widens) {
      const FloatEnvironment same_everywhere;
      detail::narrow<T, G>(own(wide_), to, unit / total);
      unit = total;
    }
    to.header().unit = unit;
    to.header().total = total;
    window_.advance(options_.variant, k, true);
    const std::int64_t batches = std::exchange(batches_, 0);
    ApplyOptions inner_options = options;
    inner_options.flush = false;
    try {
      const StepResult result = inner_.apply_merged(inner_options, batches);
      forget_sum();
      return result;
    } catch (const TimeoutError&) {
      forget_sum();
      throw;
    } catch (const Cancelled&) {
      forget_sum();
      throw;
    } catch (...) {
      if constexpr (k_widens)
        to.clear();
      else
        to.header() = header;
      window_ = window;
      batches_ = batches;
      throw;
    }
  }

  /// The inner optimizer has the window now.
  void forget_sum() {
    if constexpr (k_widens) own(wide_).clear();
  }

  /// The micro-batch that should have closed the window stays in it; alone, it stays as it was set.
  void keep(std::int64_t k) {
    if (window_.pending == 0 && !k_widens)
      --batches_;
    else
      window_.advance(options_.variant, k, false);
  }

  detail::HeldReplica<Inner> inner_;
  AggregationOptions options_;
  protocol::Window window_;
  std::unique_ptr<detail::OwnContribution<G>> scratch_;
  std::unique_ptr<detail::OwnContribution<T>> wide_;  // only for 16-bit gradients
  Contributors<T, G> sources_;
  std::int64_t batches_ = 0;  // in the open window, also those that were left out of it
};

/// Gradient aggregation around a trainer: each replica averages its own k micro-batches, then the trainer
/// sees one gradient of it. Around `SyncReplicas` this exchanges once per window: the nesting to recommend.
/// @tparam Inner models lockstep::Trainer.
template <class Inner>
requires Trainer<Inner>
struct GradientAggregation<Inner> {
  Inner inner;                 ///< the trainer around which windows are put
  AggregationOptions options;  ///< of the window of each replica

  /// What loops see.
  using Replica = AggregatingReplica<Inner>;

  /// The inner trainer's `join`, with a window of its own. For `Local`: the window ends with the returned
  /// object.
  template <class... Arguments>
  Replica join(Arguments&&... arguments) {
    if constexpr (std::same_as<Inner, typename Inner::Replica>)
      return Replica(static_cast<Inner&>(inner), options);
    else
      return Replica(inner.join(std::forward<Arguments>(arguments)...), options);
  }

  /// Runs `loop(replica)` for each replica of this process, as the inner trainer does.
  template <class F, class... Arguments>
  void run(F&& loop, Arguments&&... arguments) {
    inner.run(
        [&](auto& replica) {
          if constexpr (std::same_as<Inner, typename Inner::Replica>) {
            Replica aggregating(replica, options);
            loop(aggregating);
          } else {
            Replica aggregating(std::move(replica), options);
            try {
              loop(aggregating);
              if constexpr (requires { aggregating.inner().leave(); }) aggregating.inner().leave();
            } catch (const std::exception& error) {
              if constexpr (requires { aggregating.inner().abandon(error.what()); })
                aggregating.inner().abandon(error.what());
              throw;
            }
          }
        },
        std::forward<Arguments>(arguments)...);
  }

  /// Updates applied.
  std::int64_t global_step() const { return inner.global_step(); }
  /// Counters of one replica number, as the inner trainer keeps them: windows, not micro-batches.
  auto stats(int place) const requires requires(const Inner& trainer) { trainer.stats(0); }
  { return inner.stats(place); }
  /// The set that it trains.
  decltype(auto) variables() const { return inner.variables(); }
  /// The slots of the inner optimizer; "grad_accum" belongs to the replicas.
  std::vector<std::string> slot_names() const { return inner.slot_names(); }
  /// A slot of the inner optimizer, as the inner trainer gives it.
  template <class M>
  auto slot(std::string_view name, const M& handle) const {
    return inner.slot(name, handle);
  }
};

/// Deduces the recipe or trainer inside.
template <class Inner>
GradientAggregation(Inner, AggregationOptions) -> GradientAggregation<Inner>;

LOCKSTEP_NAMESPACE_END
