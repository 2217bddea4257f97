// SPDX-License-Identifier: MIT
/// @file
/// `explain_optimizer` and `explain_trainer`: say in a sentence which requirement a type misses.
#pragma once

#include <lockstep/concepts.hpp>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {
/// The types that the other requirements are written in.
template <class O>
concept NamesScalars = requires {
  typename O::Scalar;
  typename O::GradientScalar;
  typename ProbeHandle<O>;
};
template <class T>
concept NamesReplica = requires {
  typename T::Replica;
};

template <class T>
struct ReplicaAnswers {
  static constexpr bool optimizer = true;  // without a replica only that is reported
};
template <NamesReplica T>
struct ReplicaAnswers<T> {
  static constexpr bool optimizer = Optimizer<typename T::Replica>;
};
}  // namespace detail

/// Explains why a type is no `Optimizer`: one sentence per missing requirement, as a compile error. Authors
/// of an optimizer put one line in a test:
/// @code{.cpp}
/// template struct lockstep::explain_optimizer<MyOptimizer>;
/// @endcode
/// The tags in brackets are stable text. Compiles to nothing for a type that is an optimizer.
template <class O>
struct explain_optimizer {
  static_assert(
      detail::NamesScalars<O>,
      "[lockstep.optimizer.scalars] an optimizer must have the member types 'Scalar' (of variables) and "
      "'GradientScalar'; see docs/concepts.md#optimizer");
  // Without them the sentences below would only repeat the cause.
  /// Whether the first sentence is the one that matters.
  static constexpr bool k_no_scalars = !detail::NamesScalars<O>;
  static_assert(
      k_no_scalars || HasVariables<O>,
      "[lockstep.optimizer.variables] 'variables()' must be const and return 'const Variables<Scalar, "
      "GradientScalar>&'; see docs/concepts.md#optimizer");
  static_assert(
      k_no_scalars || HasSteps<O>,
      "[lockstep.optimizer.steps] 'global_step()' and 'sequence()' must be const and return std::int64_t, "
      "'index()' int; see docs/concepts.md#optimizer");
  static_assert(
      k_no_scalars || HasValues<O>,
      "[lockstep.optimizer.values] 'value(handle)' must be callable on a const optimizer with the handle of "
      "any tensor type; see docs/concepts.md#optimizer");
  static_assert(k_no_scalars || HasGradients<O>,
                "[lockstep.optimizer.gradients] 'gradient(handle)' and 'set_gradient(handle, expression)' "
                "must exist for "
                "handles of any tensor type; see docs/concepts.md#optimizer");
  static_assert(
      k_no_scalars || AppliesGradients<O>,
      "[lockstep.optimizer.apply] 'apply_gradients(const ApplyOptions& = {})' must return StepResult; see "
      "docs/concepts.md#optimizer");
  static_assert(k_no_scalars || HasSlots<O>,
                "[lockstep.optimizer.slots] 'slot_names()' must return std::vector<std::string>, and "
                "'slot(name, handle)' "
                "must be callable on a const optimizer; see docs/concepts.md#optimizer");
};

/// The same for `Trainer`. For what its replica misses: `explain_optimizer<MyTrainer::Replica>`.
template <class T>
struct explain_trainer {
  static_assert(
      detail::NamesReplica<T>,
      "[lockstep.trainer.replica] a trainer must name the optimizer that loops see as its member type "
      "'Replica'; see docs/concepts.md#trainer");
  static_assert(detail::ReplicaAnswers<T>::optimizer,
                "[lockstep.trainer.optimizer] 'Replica' must model lockstep::Optimizer: "
                "explain_optimizer<Replica> says "
                "what it misses; see docs/concepts.md#trainer");
  static_assert(RunsLoops<T>,
                "[lockstep.trainer.run] 'run(loop)' must exist, and call loop(replica) for each replica of "
                "this process; "
                "see docs/concepts.md#trainer");
};

LOCKSTEP_NAMESPACE_END
