// SPDX-License-Identifier: MIT
/// @file
/// Scenarios of the dense conditional accumulator, in float and in double.
#include "accumulator_steps.hpp"
#include <lockstep/accumulators/conditional_accumulator.hpp>

namespace conformance {
namespace {

template <class T>
void run_dense(const Json& scenario, Report& report, const std::string& variant) {
  using Accumulator = lockstep::ConditionalAccumulator<T, Net>;
  report.computed_in<T>();
  run_accumulator<Accumulator>(
      scenario, report, variant,
      [](Accumulator& accumulator, const Json& gradient, lockstep::Index local_step) {
        return accumulator.apply_grad(tensor_from<T>(gradient), local_step);
      });
}

}  // namespace

void run_dense_accumulator(const Json& scenario, Report& report) {
  run_dense<double>(scenario, report, "double, ");
  run_dense<float>(scenario, report, "float, ");
}

}  // namespace conformance
