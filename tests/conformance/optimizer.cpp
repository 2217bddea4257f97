// SPDX-License-Identifier: MIT
/// @file
/// Scenarios of a single optimizer, and of the moving average on its own.
#include "driver.hpp"
#include "rules.hpp"
#include <lockstep/optimizers/fused_update.hpp>
#include <lockstep/optimizers/local.hpp>
#include <lockstep/optimizers/moving_average.hpp>

#include <array>
#include <functional>
#include <map>
#include <string>

namespace conformance {
namespace {

template <class Optimizer>
void set_gradient(Optimizer& optimizer, const std::string& name, const Json& json) {
  const auto type = json.at("type").get<std::string>();
  const VariableHandle handle = handle_of(optimizer.variables(), name);
  if (type == "dense") {
    const auto gradient = tensor_from<Scalar>(json);
    optimizer.set_gradient(handle, lockstep::NdSpan<const Scalar>(gradient.elements, gradient.shape));
  } else if (type == "sparse") {
    const SparseFixture<Scalar> rows(json);
    optimizer.set_rows(handle, rows.indices, rows.values.elements);
  }
}

}  // namespace

void run_optimizer(const Json& scenario, Report& report) {
  const Json& inputs = scenario.at("inputs");
  with_rule(inputs.at("optimizer"), [&](auto rule) {
    VariableSet variables;
    add_variables(inputs.at("variables"), variables);
    lockstep::Local optimizer(rule, variables);
    const std::map<std::string, std::function<Json(const Json&)>> operations{
        {"apply_gradients",
         [&](const Json& step) -> Json {
           for (const auto& [name, gradient] : step.at("grads").items())
             set_gradient(optimizer, name, gradient);
           as_python([&] { return optimizer.apply_gradients(); });
           return {{"status", "ok"}};
         }},
        {"check",
         [&](const Json&) -> Json {
           return {{"vars", values_of(variables)}};
         }},
    };
    run_steps(scenario, report, "",
              [&](const Json& step) { return operations.at(step.at("op").get<std::string>())(step); });
    report.at("final state");
    report.compare(scenario.at("expected"), {{"vars", values_of(variables)}});
  });
}

/// The average moves by itself where a variable has no gradient, so that is what is asked of the rule.
void run_ema(const Json& scenario, Report& report) {
  using Rule = lockstep::MovingAverage<lockstep::Sgd>;
  const Json& inputs = scenario.at("inputs");
  auto variable = tensor_from<Scalar>(inputs.at("value"));
  auto average = variable;
  const std::map<std::string, std::function<Json(const Json&)>> operations{
      {"set_value",
       [&](const Json& step) -> Json {
         variable = tensor_from<Scalar>(step.at("value"));
         return {{"status", "ok"}};
       }},
      {"ema_apply",
       [&](const Json& step) -> Json {
         const bool counts = step.contains("num_updates");
         const Rule rule{.rule = {}, .decay = inputs.at("decay").get<double>(), .num_updates = counts};
         const auto update = counts ? step.at("num_updates").get<std::int64_t>() - 1 : 0;  // numbered from 0
         lockstep::update_elements_absent<Scalar>(rule, rule.prepare({.step = update}),
                                                  variable.elements.data(), {average.elements.data()}, 0,
                                                  static_cast<lockstep::Index>(variable.elements.size()));
         return {{"status", "ok"}, {"value", json_of(average)}};
       }},
  };
  run_steps(scenario, report, "",
            [&](const Json& step) { return operations.at(step.at("op").get<std::string>())(step); });
  report.at("final state");
  report.compare(scenario.at("expected"), {{"value", json_of(average)}});
}

}  // namespace conformance
