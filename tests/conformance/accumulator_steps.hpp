// SPDX-License-Identifier: MIT
/// @file
/// The steps that scenarios of dense and of sparse accumulators have in common.
#pragma once

#include "driver.hpp"
#include "tensors.hpp"
#include <lockstep/accumulators/accumulator_base.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace conformance {

inline lockstep::AccumulatorOptions accumulator_options(const Json& inputs) {
  return {.shape = shape_from(inputs.at("shape")),
          .reduction = lockstep::parse_reduction(inputs.at("reduction_type").get<std::string>())};
}

/// The options of a scenario with all extents that sums in shared memory need: those that the file leaves
/// open are taken from the gradients that are accepted. Nothing if these differ.
inline std::optional<lockstep::AccumulatorOptions> shared_options(const Json& scenario) {
  auto options = accumulator_options(scenario.at("inputs"));
  options.max_takers = 16;
  options.max_rows = 16;
  const bool is_sparse = scenario.at("kind") == "sparse_accumulator";
  const std::optional<lockstep::Shape> declared = options.shape;
  options.shape.reset();
  for (const Json& step : scenario.at("steps")) {
    if (step.at("op") != "apply" || !step.at("expect").value("accepted", false)) continue;
    const Json& gradient = step.at("grad");
    auto shape = (is_sparse ? gradient.at("values") : gradient).at("shape").get<lockstep::Shape>();
    if (is_sparse) {
      shape[0] = declared && !declared->empty() ? declared->front() : lockstep::k_unknown;
      const Json& dense_shape = gradient.at("dense_shape");
      if (!dense_shape.is_null() && dense_shape.size() != shape.size()) return std::nullopt;
    }
    if (options.shape && *options.shape != shape) return std::nullopt;
    options.shape = shape;
  }
  if (!options.shape) options.shape = declared;
  return options;
}

/// A blocking take that the file expects to end at once.
inline constexpr std::chrono::milliseconds k_at_once{500};

template <class Taker>
Json poll(Taker& taker) {
  if (!taker.ready()) return {{"status", "pending"}};
  return {{"status", "ok"}, {"value", json_of(taker.get(k_at_once))}};
}

/// Runs a scenario on an `Accumulator`; `apply(accumulator, grad, local_step)` returns whether it was
/// accepted.
template <class Accumulator, class Apply>
void run_accumulator(const Json& scenario, Report& report, const std::string& variant, Apply&& apply) {
  const Json& inputs = scenario.at("inputs");
  const Json& expected = scenario.at("expected");
  if (expected.contains("construct")) {
    const auto construct = [&] {
      Accumulator accumulator(accumulator_options(inputs));
      return Json{{"status", "ok"}};
    };
    report.at(variant + "construction");
    report.compare(expected.at("construct"), outcome_of(construct, When::building));
    return;
  }

  auto options = accumulator_options(inputs);
  if constexpr (Net::k_survives_kill) {
    const auto complete = shared_options(scenario);
    if (!complete) {
      report.at(variant + "construction without known extents");
      const auto construct = [&] { return Accumulator(options), Json{{"status", "ok"}}; };
      report.compare({{"status", "error"}, {"error", "ValueError"}}, outcome_of(construct, When::building));
      return report.refuse();
    }
    options = *complete;
  }
  Accumulator accumulator(options);
  std::map<std::string, typename Accumulator::Taker> takers;
  const auto taker = [&](const Json& step) -> auto& { return takers.at(step.at("tag").get<std::string>()); };
  using Operation = std::function<Json(const Json&)>;
  const std::map<std::string, Operation> operations{
      {"apply",
       [&](const Json& step) -> Json {
         const auto local_step = step.at("local_step").get<lockstep::Index>();
         return {{"status", "ok"}, {"accepted", apply(accumulator, step.at("grad"), local_step)}};
       }},
      {"take",
       [&](const Json& step) -> Json {
         const auto num_required = step.at("num_required").get<lockstep::Index>();
         return {{"status", "ok"}, {"value", json_of(accumulator.take_grad(num_required, k_at_once))}};
       }},
      {"take_begin",
       [&](const Json& step) -> Json {
         auto begun = accumulator.begin_take(step.at("num_required").template get<lockstep::Index>());
         return poll(takers.emplace(step.at("tag").get<std::string>(), std::move(begun)).first->second);
       }},
      {"take_poll", [&](const Json& step) { return poll(taker(step)); }},
      {"take_cancel",
       [&](const Json& step) -> Json {
         return {{"status", taker(step).cancel() ? "ok" : "not_waiting"}};
       }},
      {"set_global_step",
       [&](const Json& step) -> Json {
         const bool went_backwards = accumulator.set_global_step(step.at("value").get<lockstep::Index>());
         return {{"status", "ok"}, {"warning", went_backwards}};
       }},
      {"num_accumulated",
       [&](const Json&) -> Json {
         return {{"value", accumulator.num_accumulated()}};
       }},
      {"current_step",
       [&](const Json&) -> Json {
         return {{"value", accumulator.step()}};
       }},
  };
  run_steps(scenario, report, variant,
            [&](const Json& step) { return operations.at(step.at("op").get<std::string>())(step); });
  report.at(variant + "final state");
  report.compare(expected,
                 {{"num_accumulated", accumulator.num_accumulated()}, {"current_step", accumulator.step()}});
}

}  // namespace conformance
