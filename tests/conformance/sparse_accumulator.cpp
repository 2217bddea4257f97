// SPDX-License-Identifier: MIT
/// @file
/// Scenarios of the sparse conditional accumulator, in float and in double.
#include "accumulator_steps.hpp"
#include <lockstep/accumulators/sparse_conditional_accumulator.hpp>

namespace conformance {
namespace {

template <class T>
void run_sparse(const Json& scenario, Report& report, const std::string& variant) {
  using Accumulator = lockstep::SparseConditionalAccumulator<T, Net>;
  report.computed_in<T>();
  run_accumulator<Accumulator>(
      scenario, report, variant,
      [](Accumulator& accumulator, const Json& gradient, lockstep::Index local_step) {
        const SparseFixture<T> fixture(gradient);
        return accumulator.apply_grad(fixture.gradient(), local_step);
      });
}

}  // namespace

void run_sparse_accumulator(const Json& scenario, Report& report) {
  run_sparse<double>(scenario, report, "double, ");
  run_sparse<float>(scenario, report, "float, ");
}

}  // namespace conformance
