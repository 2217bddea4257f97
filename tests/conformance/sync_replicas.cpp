// SPDX-License-Identifier: MIT
/// @file
/// Scenarios of synchronous replicas at the granularity of a variable, with an explicit chief.
#include "driver.hpp"
#include "rules.hpp"
#include <lockstep/optimizers/moving_average.hpp>
#include <lockstep/per_variable/variable_replicas.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace conformance {
namespace {

/// A wait that the file calls blocked lasts this long; one that it does not ends at once, since all is done
/// by one thread.
constexpr std::chrono::milliseconds k_probe{10};

lockstep::VariableOptions options_from(const Json& inputs) {
  lockstep::VariableOptions options{
      .replicas_to_aggregate = inputs.at("replicas_to_aggregate").get<int>(),
      .total_num_replicas = inputs.at("total_num_replicas").get<int>(),
      .reduction = lockstep::parse_reduction(inputs.value("reduction_type", std::string("MEAN"))),
      .global_step = inputs.value("global_step", std::int64_t{0}),
      .driver = lockstep::Driver::chief};
  for (const Json& variable : inputs.at("variables")) {
    const auto name = variable.at("name").get<std::string>();
    if (variable.at("grad") == "sparse") options.sparse.push_back(name);
    if (variable.at("grad") == "none") options.without_gradient.push_back(name);
  }
  return options;
}

/// `f(id)` by name, for the variables that have an accumulator.
template <class Trainer, class F>
Json by_name(const Trainer& trainer, F&& f) {
  Json result = Json::object();
  for (const lockstep::VariableInfo& info : trainer.variables().infos())
    if (trainer.kind(info.id) != lockstep::GradientKind::none) result[info.name] = f(info.id);
  return result;
}

template <class Trainer>
Json state_of(const Trainer& trainer, const Json& inputs) {
  Json state{{"global_step", trainer.global_step()},
             {"vars", values_of(trainer.variables())},
             {"local_steps", Json::object()},
             {"tokens", trainer.tokens()},
             {"accum_count", by_name(trainer, [&](auto id) { return trainer.num_accumulated(id); })},
             {"accum_step", by_name(trainer, [&](auto id) { return trainer.accumulator_step(id); })}};
  for (int worker = 0; worker < trainer.replicas(); ++worker)
    state["local_steps"][std::to_string(worker)] = trainer.local_step(worker);
  if (inputs.contains("ema"))
    for (const Json& name : inputs.at("ema").at("variables"))
      state["ema"][name.get<std::string>()] =
          json_of(trainer.slot("average", handle_of(trainer.variables(), name.get<std::string>())));
  return state;
}

template <class Rule>
void run(const Rule& rule, const Json& scenario, Report& report) {
  const Json& inputs = scenario.at("inputs");
  VariableSet variables;
  add_variables(inputs.at("variables"), variables);
  using Trainer = lockstep::VariableReplicas<Rule, Net, Scalar>;
  Trainer trainer(rule, variables, options_from(inputs));
  typename Trainer::Chief chief = trainer.chief();

  const auto worker = [](const Json& step) { return step.at("worker").get<int>(); };
  const auto taken = [&] {
    const std::vector<bool> all = chief.taken();
    return by_name(trainer, [&](auto id) { return bool(all[id]); });
  };
  const auto json_of_update = [](const lockstep::VariableUpdate& update) -> Json {
    return {{"status", "ok"}, {"global_step", update.global_step}, {"tokens_added", update.tokens_added}};
  };
  const std::map<std::string, std::function<Json(const Json&)>> operations{
      {"init_chief",
       [&](const Json&) -> Json {
         const lockstep::ChiefInit init = trainer.init_chief(inputs.at("num_tokens").get<lockstep::Index>());
         return {{"status", "ok"},
                 {"tokens_added", init.tokens_added},
                 {"step_warning", init.step_went_backwards}};
       }},
      {"init_worker",
       [&](const Json& step) -> Json {
         return {{"status", "ok"}, {"local_step", trainer.init_worker(worker(step))}};
       }},
      {"push",
       [&](const Json& step) -> Json {
         const auto list = grads_and_vars(step.at("grads"));
         std::vector<lockstep::NamedGradient<Scalar>> gradients;
         for (const auto& pair : list)
           gradients.push_back({pair.variable, lockstep::tensorflow::detail::gradient_of<Scalar>(pair)});
         const std::vector<lockstep::Pushed> pushed = trainer.push(worker(step), gradients);
         Json accepted = Json::object();
         for (const lockstep::VariableInfo& info : variables.infos())
           if (pushed[info.id] != lockstep::Pushed::absent)
             accepted[info.name] = pushed[info.id] == lockstep::Pushed::accepted;
         return {{"status", "ok"}, {"accepted", accepted}};
       }},
      {"token",
       [&](const Json& step) -> Json {
         return {{"status", "ok"}, {"value", trainer.token(worker(step), k_probe)}};
       }},
      {"chief_take_begin",
       [&](const Json&) -> Json {
         chief.take_begin();
         return {{"status", "ok"}, {"taken", taken()}};
       }},
      {"chief_finish",
       [&](const Json&) -> Json {
         try {
           return json_of_update(chief.finish(k_probe));
         } catch (const lockstep::TimeoutError&) {
           return {{"status", "blocked"}, {"taken", taken()}};
         }
       }},
      {"chief_step",
       [&](const Json&) -> Json {
         try {
           return json_of_update(chief.step(k_probe));
         } catch (const lockstep::TimeoutError&) {
           chief.abort();  // the file's probe leaves no waiter behind
           return {{"status", "blocked"}};
         }
       }},
      {"chief_abort",
       [&](const Json&) -> Json {
         chief.abort();
         return {{"status", "ok"}};
       }},
      {"set_global_step_variable",
       [&](const Json& step) -> Json {
         trainer.set_global_step(step.at("value").get<std::int64_t>());
         return {{"status", "ok"}};
       }},
      {"set_local_step",
       [&](const Json& step) -> Json {
         trainer.set_local_step(worker(step), step.at("value").get<std::int64_t>());
         return {{"status", "ok"}};
       }},
      {"check", [&](const Json&) { return state_of(trainer, inputs); }},
  };
  run_steps(scenario, report, "",
            [&](const Json& step) { return operations.at(step.at("op").get<std::string>())(step); });
  report.at("final state");
  report.compare(scenario.at("expected"), state_of(trainer, inputs));
}

}  // namespace

void run_sync_replicas(const Json& scenario, Report& report) {
  const Json& inputs = scenario.at("inputs");
  with_rule(inputs.at("optimizer"), [&](auto rule) {
    using Rule = decltype(rule);
    if (!inputs.contains("ema")) {
      run(rule, scenario, report);
    } else if constexpr (std::same_as<Rule, lockstep::Sgd>) {  // the file averages with no other
      const Json& ema = inputs.at("ema");
      run(lockstep::MovingAverage<Rule>{.rule = rule,
                                        .decay = ema.at("decay").get<double>(),
                                        .num_updates = ema.value("num_updates_from_global_step", false)},
          scenario, report);
    } else {
      report.fail("a moving average with this optimizer is not built into the runner");
    }
  });
}

}  // namespace conformance
