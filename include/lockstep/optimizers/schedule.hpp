// SPDX-License-Identifier: MIT
/// @file
/// Values that may change from update to update: learning rates and window lengths.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

/// When an update happens. Counts updates that were applied, never micro-batches, replicas or skipped rounds.
struct StepInfo {
  std::int64_t step = 0;  ///< updates applied before this one; 0 for the first
  double weight = 1;      ///< total weight (samples, tokens) behind this update
  double examples = 0;    ///< total weight behind all updates before this one
  std::int64_t schedule =
      0;  ///< what a `Schedule` sees: `step`, unless an aggregation variant counts micro-batches
};

/// A number, or a callable of the update count. Converts from both, so rules stay aggregates.
class Schedule {
 public:
  /// @throws InvalidArgument if the value is not finite.
  Schedule(double constant) : constant_(constant) {  // NOLINT(google-explicit-constructor)
    if (!std::isfinite(constant))
      detail::throw_error<InvalidArgument>("learning rate: must be finite, got ", constant);
  }

  /// @param function maps the number of updates applied so far (0 for the first update) to the value.
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, Schedule> && std::invocable<const F&, std::int64_t> &&
           !std::convertible_to<F, double>) Schedule(F function)  // NOLINT(google-explicit-constructor)
      : function_(std::make_shared<Function>([f = std::move(function)](const StepInfo& info) {
          return static_cast<double>(f(info.schedule));
        })) {}

  /// A schedule over the weight (samples, tokens) seen so far instead of the update count.
  template <std::invocable<double> F>
  static Schedule by_examples(F function) {
    Schedule schedule(0.0);
    schedule.function_ = std::make_shared<Function>(
        [f = std::move(function)](const StepInfo& info) { return static_cast<double>(f(info.examples)); });
    return schedule;
  }

  /// @throws InvalidArgument if the value is not finite.
  double operator()(const StepInfo& info) const {
    const double value = function_ ? (*function_)(info) : constant_;
    if (!std::isfinite(value))
      detail::throw_error<InvalidArgument>("learning rate: must be finite, got ", value, " at update ",
                                           info.step);
    return value;
  }
  /// The value for this update count. @throws InvalidArgument if it is not finite.
  double operator()(std::int64_t step) const { return (*this)(StepInfo{.step = step, .schedule = step}); }

  /// Equal constants, or the same function object.
  friend bool operator==(const Schedule&, const Schedule&) = default;

 private:
  using Function = std::function<double(const StepInfo&)>;
  double constant_ = 0;
  std::shared_ptr<const Function> function_;
};

LOCKSTEP_NAMESPACE_END
