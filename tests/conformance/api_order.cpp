// SPDX-License-Identifier: MIT
/// @file
/// Scenarios of the order of calls, with TensorFlow's names.
#include "driver.hpp"
#include "rules.hpp"
#include <lockstep/compat/tensorflow.hpp>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace conformance {
namespace {

namespace tf = lockstep::tensorflow;

tf::GradsAndVars grads_from(const std::string& what) {
  const lockstep::Tensor<Scalar> ones{{1, 1}, {2}};
  if (what == "empty") return {};
  if (what == "one_dense") return {{ones, "w"}};
  if (what == "all_none") return {{tf::None, "w"}};
  return {{std::string("not a gradient"), "w"}};
}

template <class Rule>
void run(const Rule& rule, const Json& scenario, Report& report) {
  using Optimizer = tf::SyncReplicasOptimizer<Rule, Scalar>;
  const Json& inputs = scenario.at("inputs");
  VariableSet variables;
  variables.add("w", lockstep::NdSpan<const Scalar>(std::vector<Scalar>{1, 2}, {2}));
  Optimizer optimizer(rule, variables, inputs.at("replicas_to_aggregate").get<int>(),
                      inputs.at("total_num_replicas").get<int>());
  std::optional<typename Optimizer::SessionRunHook> hook;
  const Json ok{{"status", "ok"}};

  const std::map<std::string, std::function<Json(const Json&)>> calls{
      {"apply_gradients",
       [&](const Json& step) {
         const bool has_step = step.value("global_step", std::string()) != "absent";
         optimizer.apply_gradients(grads_from(step.at("grads").get<std::string>()),
                                   has_step ? std::optional(tf::GlobalStep{}) : std::nullopt);
         return ok;
       }},
      {"get_chief_queue_runner",
       [&](const Json&) {
         (void)optimizer.get_chief_queue_runner();
         return ok;
       }},
      {"get_init_tokens_op",
       [&](const Json&) {
         (void)optimizer.get_init_tokens_op();
         return ok;
       }},
      {"make_session_run_hook",
       [&](const Json& step) {
         hook.emplace(optimizer.make_session_run_hook(step.at("is_chief").get<bool>(),
                                                      step.value("num_tokens", lockstep::Index{-1})));
         return ok;
       }},
      {"hook_begin",
       [&](const Json&) {
         hook->begin();
         return ok;
       }},
      {"hook_after_create_session",
       [&](const Json& step) {
         tf::Session session;
         if (!step.at("variables_initialized").get<bool>()) session.uninitialized_variables = {"w"};
         hook->after_create_session(session);
         return ok;
       }},
      {"variables",
       [&](const Json& step) -> Json {
         std::vector<std::string> names;
         for (const auto& variable : optimizer.variables()) names.push_back(variable.name);
         const auto has = [&](const Json& name) {
           return std::find(names.begin(), names.end(), name.get<std::string>()) != names.end();
         };
         Json contains = Json::array(), excludes = Json::array();
         for (const Json& name : step.at("expect").at("contains"))
           if (has(name)) contains.push_back(name);
         for (const Json& name : step.at("expect").at("excludes"))
           if (!has(name)) excludes.push_back(name);
         return {{"status", "ok"}, {"contains", contains}, {"excludes", excludes}};
       }},
      {"get_slot_names",
       [&](const Json&) -> Json {
         return {{"status", "ok"}, {"value", optimizer.get_slot_names()}};
       }},
  };
  Json last = ok;
  run_steps(scenario, report, "", [&](const Json& step) {
    last = outcome_of(
        [&] { return as_python([&] { return calls.at(step.at("name").get<std::string>())(step); }); });
    return last;
  });
  report.at("final state");
  report.compare(scenario.at("expected"), last);
}

}  // namespace

void run_api_order(const Json& scenario, Report& report) {
  const Json& inputs = scenario.at("inputs");
  const Json plain{{"type", "sgd"}, {"learning_rate", 0.1}};
  with_rule(inputs.value("optimizer", plain), [&](auto rule) { run(rule, scenario, report); });
}

}  // namespace conformance
