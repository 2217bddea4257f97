// SPDX-License-Identifier: MIT
/// @file
/// The front of TensorFlow's gradient aggregation: lists of gradients, all of them dense in the end.
#pragma once

#include <lockstep/compat/tensorflow_gradients.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/optimizers/aggregation.hpp>
#include <lockstep/optimizers/step_result.hpp>
#include <lockstep/per_variable/gradient_check.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace tensorflow {

/// The constructor arguments of TensorFlow programs' GradientAggregationOptimizer, without the optimizer.
struct GradientAggregationArguments {
  std::int64_t grad_steps = 1;  ///< micro-batches per update
  bool apply_crs_to_grad =
      false;             ///< sum over replicas: give `SyncReplicas` Reduction::sum, which is the same
  bool use_tpu = false;  ///< which counter closes a window: `tpu`, or `gpu` without it
  std::optional<int> xla_num_partitions = std::nullopt;  ///< no numeric effect
};

/// The options that reproduce these arguments: divided by `grad_steps` per micro-batch, global step counts
/// micro-batches.
inline AggregationOptions aggregation_options(const GradientAggregationArguments& arguments) {
  return {.grad_steps = arguments.grad_steps,
          .variant = arguments.use_tpu ? AggregationVariant::tpu : AggregationVariant::gpu};
}

/// Applies lists of gradients to one replica as GradientAggregationOptimizer does: every gradient is made
/// dense before it is accumulated, and None is an error.
/// @tparam O models lockstep::Optimizer: `Local<GradientAggregation<R>>`, or a replica of
/// `GradientAggregation<SyncReplicas<R>>`. It must outlive this object.
template <Optimizer O>
class GradientAggregationOptimizer {
 public:
  /// Scalar of the variables.
  using Scalar = typename O::Scalar;

  /// @param opt must outlive this object.
  explicit GradientAggregationOptimizer(O& opt) : opt_(opt) {}

  /// One micro-batch. All gradients are checked before the first one is used.
  /// @throws TypeError for None; InvalidArgument for IndexedSlices without dense_shape, other objects, a
  /// variable that is named twice and an empty list; UnknownVariable. Nothing has happened then.
  StepResult apply_gradients(const GradsAndVars& grads_and_vars) {
    if (grads_and_vars.empty())
      throw InvalidArgument("apply_gradients: must supply at least one (gradient, variable)");
    std::vector<Tensor<Scalar>> dense;
    std::vector<bool> seen(opt_.variables().layout().count());
    for (const GradAndVar& pair : grads_and_vars) {
      lockstep::detail::expect_first(info(pair.variable), seen);
      dense.push_back(densify<Scalar>(pair, info(pair.variable)));
    }
    for (std::size_t i = 0; i < dense.size(); ++i)
      opt_.set_gradient(handle(grads_and_vars[i].variable),
                        NdSpan<const Scalar>(dense[i].elements, dense[i].shape));
    return opt_.apply_gradients();
  }

  /// Slots of the wrapped optimizer, and "grad_accum".
  std::vector<std::string> get_slot_names() const { return opt_.slot_names(); }
  /// A slot of the inner optimizer, or "grad_accum". @throws UnknownVariable
  Tensor<Scalar> get_slot(std::string_view variable, std::string_view name) const {
    const auto view = opt_.slot(name, handle(variable));
    return {{view.begin(), view.end()}, view.shape};
  }

 private:
  const VariableInfo& info(std::string_view variable) const {
    return opt_.variables().layout().find(variable);
  }
  Handle<NdSpan<Scalar>, Scalar> handle(std::string_view variable) const {
    return detail::handle_of(opt_.variables(), info(variable));
  }

  O& opt_;
};

}  // namespace tensorflow

LOCKSTEP_NAMESPACE_END
