// SPDX-License-Identifier: MIT
/// @file
/// Scenarios of the axis along which a gradient is cut.
#include "driver.hpp"
#include <lockstep/protocol/sharding.hpp>

#include <optional>
#include <vector>

namespace conformance {

void run_sharding_rule(const Json& scenario, Report& report) {
  using lockstep::Index;
  const Json& inputs = scenario.at("inputs");
  const auto shape = inputs.at("shape").get<std::vector<Index>>();
  const Json& partitions = inputs.at("num_partitions");
  const auto num_partitions = partitions.is_null() ? std::nullopt : std::optional(partitions.get<Index>());
  const auto cut = [&]() -> Json {
    const std::optional<int> axis = lockstep::protocol::sharded_axis(shape, num_partitions);
    return {{"status", "ok"}, {"axis", axis ? Json(*axis) : Json(nullptr)}};
  };
  report.compare(scenario.at("expected"), outcome_of(cut, When::building));
}

}  // namespace conformance
