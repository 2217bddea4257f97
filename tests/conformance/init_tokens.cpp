// SPDX-License-Identifier: MIT
/// @file
/// Scenarios of the tokens before the first update.
#include "driver.hpp"
#include <lockstep/protocol/init_tokens.hpp>

#include <optional>

namespace conformance {

void run_init_tokens(const Json& scenario, Report& report) {
  using lockstep::Index;
  const Json& inputs = scenario.at("inputs");
  const auto to_aggregate = inputs.at("replicas_to_aggregate").get<Index>();
  const Json& total = inputs.at("total_num_replicas");
  std::optional<Index> replicas;
  if (!total.is_null()) replicas = total.get<Index>();
  const auto init_tokens = [&]() -> Json {
    const auto num_tokens = inputs.at("num_tokens").get<Index>();
    return {{"status", "ok"}, {"value", lockstep::protocol::init_tokens(to_aggregate, replicas, num_tokens)}};
  };
  report.compare(scenario.at("expected"),
                 {{"tokens_per_step", lockstep::protocol::tokens_per_step(to_aggregate, replicas)},
                  {"init_tokens", outcome_of(init_tokens, When::building)}});
}

}  // namespace conformance
