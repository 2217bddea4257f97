// SPDX-License-Identifier: MIT
/// @file
/// What a round does with its contributions: decided once, then the same for everybody who helps.
#pragma once

#include <lockstep/checkpoint/snapshot.hpp>
#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/contributors.hpp>
#include <lockstep/optimizers/aggregation.hpp>
#include <lockstep/protocol/window.hpp>
#include <lockstep/reduction.hpp>

#include <cstdint>
#include <span>

LOCKSTEP_NAMESPACE_BEGIN

/// What one round does, decided once by whoever closes it and then the same for everybody who helps.
struct UpdatePlan {
  bool applies = false;      ///< the rule runs; otherwise the gradients only join the open window
  bool with_window = false;  ///< the open window is the first source
  bool divides_now =
      false;  ///< coefficients carry the divisor, and nothing is divided when the window closes
  std::int64_t grad_steps = 1;  ///< k of this window
  double first_unit = 1;        ///< coefficients are relative to this weight
  double total = 0;             ///< weight of all sources
  double scale = 1;             ///< of the sum of the sources
  bool by_present = false;      ///< the divisor is the weight of those that are present
};

namespace detail {

/// What a plan depends on beside counters and contributions.
struct PlanRequest {
  const AggregationOptions* window;  ///< null without a gradient aggregation
  bool keeps_window;                 ///< there is memory for an open window
  std::int64_t grad_steps;           ///< k of the open window
  Reduction reduction;               ///< of replicas
  Absent absent;
  bool flush;  ///< closes the window early
};

/// All weight in units of the first one: a sum of ones for equal weights, whatever their size.
template <class G>
double relative_total(const UpdaterState& state, const UpdatePlan& plan,
                      std::span<const Contribution<G>* const> contributions) {
  double sum = plan.with_window ? state.window_total / plan.first_unit : 0;
  for (const auto* contribution : contributions) sum += contribution->header().total / plan.first_unit;
  return sum;
}

/// Inlined, so that small steps do not pay for a window that their trainer cannot have.
template <class G>
LOCKSTEP_ALWAYS_INLINE UpdatePlan make_plan(const UpdaterState& state,
                                            std::span<const Contribution<G>* const> contributions,
                                            const PlanRequest& request) {
  const AggregationOptions* const window = request.window;
  UpdatePlan plan;
  plan.grad_steps = request.grad_steps;
  plan.applies = !window || request.flush || state.window.closes(window->variant, plan.grad_steps);
  plan.with_window = window && state.window.pending > 0 && request.keeps_window;
  const bool sums_replicas = request.reduction == Reduction::sum;
  const bool sums_window = window && window->reduction == Reduction::sum;
  const bool historical = window && protocol::Window::divides_by_k(window->variant);
  double round_total = 0;
  std::int64_t round_count = 0;
  for (const auto* contribution : contributions) {
    round_total += contribution->header().total;
    round_count += contribution->header().merged;
  }
  plan.total = round_total + (plan.with_window ? state.window_total : 0);
  plan.divides_now = historical || (sums_window && !sums_replicas);
  if (plan.divides_now) {
    // A sum over the window keeps the weights: each round gives the sum of w * g over its number of
    // contributions.
    plan.first_unit =
        static_cast<double>((historical ? plan.grad_steps : 1) * (sums_replicas ? 1 : round_count));
  } else {
    plan.first_unit = plan.with_window        ? state.window_unit
                      : contributions.empty() ? 1
                                              : contributions.front()->header().unit;
    if (plan.applies && sums_replicas)
      plan.scale =
          sums_window ? plan.first_unit : plan.first_unit / static_cast<double>(state.window.pending + 1);
    else if (plan.applies)
      plan.scale = 1 / relative_total(state, plan, contributions);
  }
  plan.by_present = request.absent == Absent::excluded && !sums_replicas && !window;
  return plan;
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
