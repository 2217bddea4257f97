// SPDX-License-Identifier: MIT
/// @file
/// What an optimizer and a trainer are, as programs see them: one loop compiles against every one of them.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/step_result.hpp>

#include <Eigen/Core>

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {
template <class O>
using ProbeHandle = Handle<Eigen::Matrix<typename O::Scalar, Eigen::Dynamic, 1>, typename O::Scalar>;
}  // namespace detail

/// `o.variables()` is the variable set that it trains.
template <class O>
concept HasVariables = requires(const O& o) {
  typename O::Scalar;
  typename O::GradientScalar;
  { o.variables() } -> std::same_as<const Variables<typename O::Scalar, typename O::GradientScalar>&>;
};

/// `o.global_step()` counts updates, `o.sequence()` gradients handed over, `o.index()` is the replica number.
template <class O>
concept HasSteps = requires(const O& o) {
  { o.global_step() } -> std::same_as<std::int64_t>;
  { o.sequence() } -> std::same_as<std::int64_t>;
  { o.index() } -> std::same_as<int>;
};

/// `o.value(handle)` is the variable as this replica sees it.
template <class O>
concept HasValues = requires(const O& o, const detail::ProbeHandle<O>& handle) {
  o.value(handle);
};

/// `o.gradient(handle)` is this step's gradient, to be written in place; `o.set_gradient(handle,
/// expression)`.
template <class O>
concept HasGradients = requires(O& o, const detail::ProbeHandle<O>& handle) {
  o.gradient(handle);
  o.set_gradient(handle, Eigen::Matrix<typename O::Scalar, Eigen::Dynamic, 1>());
};

/// `o.apply_gradients(options)` hands the gradients of this step over.
template <class O>
concept AppliesGradients = requires(O& o, const ApplyOptions& options) {
  { o.apply_gradients() } -> std::same_as<StepResult>;
  { o.apply_gradients(options) } -> std::same_as<StepResult>;
};

/// `o.slot_names()` and `o.slot(name, handle)` reach the state of the wrapped rule.
template <class O>
concept HasSlots = requires(const O& o, std::string_view name, const detail::ProbeHandle<O>& handle) {
  { o.slot_names() } -> std::same_as<std::vector<std::string>>;
  o.slot(name, handle);
};

/// An optimizer bound to variables, one per replica. See docs/concepts.md#optimizer.
template <class O>
concept Optimizer =
    HasVariables<O> && HasSteps<O> && HasValues<O> && HasGradients<O> && AppliesGradients<O> && HasSlots<O>;

namespace detail {
struct AnyLoop {
  void operator()(auto&) const {}
};
}  // namespace detail

/// `T::Replica` is the optimizer that loops see.
template <class T>
concept HasReplicas = requires {
  typename T::Replica;
}
&&Optimizer<typename T::Replica>;

/// `t.run(loop)` calls `loop(replica)` for each replica of this process.
template <class T>
concept RunsLoops = requires(T& t) {
  t.run(detail::AnyLoop{});
};

/// What owns the training of one variable set. See docs/concepts.md#trainer.
template <class T>
concept Trainer = HasReplicas<T> && RunsLoops<T>;

LOCKSTEP_NAMESPACE_END
