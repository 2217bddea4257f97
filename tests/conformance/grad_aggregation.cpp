// SPDX-License-Identifier: MIT
/// @file
/// Scenarios of gradient aggregation, for one replica and for several.
#include "driver.hpp"
#include "rules.hpp"
#include "support/threads.hpp"
#include <lockstep/compat/tensorflow_gradient_aggregation.hpp>
#include <lockstep/gradient_aggregation.hpp>
#include <lockstep/optimizers/local.hpp>
#include <lockstep/sync_replicas.hpp>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace conformance {
namespace {

using lockstep::AggregationVariant;
using lockstep::GradientAggregation;

lockstep::AggregationOptions options_from(const Json& inputs) {
  const std::map<std::string, AggregationVariant> variants{{"gpu", AggregationVariant::gpu},
                                                           {"tpu", AggregationVariant::tpu},
                                                           {"mlperf_v1", AggregationVariant::mlperf_v1},
                                                           {"early", AggregationVariant::early},
                                                           {"lingvo", AggregationVariant::lingvo}};
  return {.grad_steps = inputs.at("grad_steps").get<std::int64_t>(),
          .variant = variants.at(inputs.at("variant").get<std::string>())};
}

/// Runs a scenario on replicas that have joined, each with a thread of its own for every micro-batch.
template <class Replica>
void run(std::vector<Replica*> replicas, const Json& scenario, Report& report) {
  const auto& first = *replicas.front();
  const auto micro_batch = [&](const Json& step) -> Json {
    const Json& grads = step.at("replica_grads");
    std::vector<lockstep::StepResult> results(replicas.size());
    const auto thrown = lockstep::test::run_replicas(static_cast<int>(replicas.size()), [&](int i) {
      const auto at = static_cast<std::size_t>(i);
      lockstep::tensorflow::GradientAggregationOptimizer front(*replicas[at]);
      results[at] = as_python([&] { return front.apply_gradients(grads_and_vars(grads.at(at))); });
    });
    for (const std::exception_ptr& error : thrown)
      if (error) std::rethrow_exception(error);
    return {{"status", "ok"}, {"applied", results.front().status == lockstep::Status::accepted}};
  };
  const auto state = [&]() -> Json {
    const lockstep::protocol::Window& window = first.window();
    Json accumulated = Json::object();
    for (const lockstep::VariableInfo& info : first.variables().infos())
      accumulated[info.name] = json_of(first.slot("grad_accum", handle_of(first.variables(), info.name)));
    return {{"global_step", window.global_step},
            {"updates", window.updates},
            {"counter", window.counter},
            {"vars", values_of(first.variables())},
            {"grad_accum", accumulated}};
  };
  const std::map<std::string, std::function<Json(const Json&)>> operations{
      {"micro_batch", micro_batch}, {"check", [&](const Json&) { return state(); }}};

  run_steps(scenario, report, "",
            [&](const Json& step) { return operations.at(step.at("op").get<std::string>())(step); });
  report.at("final state");
  report.compare(scenario.at("expected"), state());
}

/// A window that was open when the scenario begins: the state is restored as a checkpoint would be.
template <class Optimizer>
void reopen_window(Optimizer& optimizer, const Json& inputs) {
  auto state = optimizer.snapshot();
  state.counters.window.pending =
      inputs.at("global_step").get<std::int64_t>() % inputs.at("grad_steps").get<std::int64_t>();
  state.counters.window_total = static_cast<double>(state.counters.window.pending);
  for (const auto& [name, value] : inputs.at("grad_accum").items())
    state.window.push_back({name, lockstep::Presence::dense, {}, false, tensor_from<Scalar>(value).elements});
  optimizer.restore(state);
}

template <class Rule>
void run_alone(const Rule& rule, const Json& scenario, Report& report) {
  const Json& inputs = scenario.at("inputs");
  VariableSet variables;
  add_variables(inputs.at("variables"), variables);
  const bool resumes = inputs.contains("grad_accum");
  lockstep::Local optimizer(GradientAggregation<Rule>{rule, options_from(inputs)}, variables,
                            {.global_step = inputs.value("global_step", std::int64_t{0})});
  if (resumes) reopen_window(optimizer, inputs);
  run(std::vector{&optimizer}, scenario, report);
}

/// `apply_crs_to_grad`, and the reference without it, both sum over replicas.
template <class Rule>
void run_together(const Rule& rule, const Json& scenario, Report& report) {
  const Json& inputs = scenario.at("inputs");
  VariableSet variables;
  add_variables(inputs.at("variables"), variables);
  using Inner = lockstep::SyncReplicas<Rule, lockstep::InProcess, Scalar>;
  GradientAggregation<Inner> trainer{Inner(rule, variables,
                                           {.replicas_to_aggregate = inputs.at("num_replicas").get<int>(),
                                            .reduction = lockstep::Reduction::sum}),
                                     options_from(inputs)};
  std::vector<typename GradientAggregation<Inner>::Replica> replicas;
  replicas.reserve(static_cast<std::size_t>(trainer.inner.replicas()));
  std::vector<typename GradientAggregation<Inner>::Replica*> pointers;
  for (int i = 0; i < trainer.inner.replicas(); ++i)
    pointers.push_back(&replicas.emplace_back(trainer.join()));
  run(pointers, scenario, report);
}

}  // namespace

void run_grad_aggregation(const Json& scenario, Report& report) {
  const Json& inputs = scenario.at("inputs");
  with_rule(inputs.at("optimizer"), [&](auto rule) {
    if (inputs.value("num_replicas", 1) == 1)
      run_alone(rule, scenario, report);
    else if constexpr (std::same_as<decltype(rule),
                                    lockstep::Sgd>)  // the file has several replicas with no other
      run_together(rule, scenario, report);
    else
      report.fail("several replicas with this optimizer are not built into the runner");
  });
}

}  // namespace conformance
