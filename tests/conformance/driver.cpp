// SPDX-License-Identifier: MIT
/// @file
/// Loads the scenarios, runs them and prints what failed.
#include "driver.hpp"

#include <fstream>
#include <iostream>

namespace conformance {
namespace {

Tolerance tolerance_from(const Json& json) {
  return {json.at("rtol").get<double>(), json.at("atol").get<double>()};
}

/// What is wrong in one scenario.
Report report_of(const Json& scenario, const Runners& runners, Report report) {
  const auto runner = runners.find(scenario.at("kind").get<std::string>());
  if (runner == runners.end()) {
    report.fail("no runner for kind " + scenario.at("kind").get<std::string>());
    return report;
  }
  try {
    runner->second(scenario, report);
  } catch (const std::exception& exception) {
    report.fail(std::string("threw: ") + exception.what());
  }
  return report;
}

}  // namespace

int run_file(const std::string& file, const Runners& runners, OtherKinds others) {
  std::ifstream stream(file);
  if (!stream) throw std::runtime_error("conformance: cannot open " + file);
  const Json content = Json::parse(stream);
  const Json& tolerance = content.at("tolerance");
  const Report empty(tolerance_from(tolerance.at("float64")), tolerance_from(tolerance.at("float32")));

  int passed = 0, failed = 0, refused = 0, left_out = 0;
  std::string refused_ids;
  for (const Json& scenario : content.at("scenarios")) {
    if (others == OtherKinds::left_out && runners.count(scenario.at("kind").get<std::string>()) == 0) {
      ++left_out;
      continue;
    }
    const Report report = report_of(scenario, runners, empty);
    const auto& failures = report.failures();
    if (failures.empty()) {
      ++(report.is_refused() ? refused : passed);
      if (report.is_refused()) refused_ids += " " + scenario.at("id").get<std::string>();
      continue;
    }
    ++failed;
    std::cout << scenario.at("id").get<std::string>() << " " << scenario.at("title").get<std::string>()
              << ": " << failures.front();
    if (failures.size() > 1) std::cout << " (and " << failures.size() - 1 << " more)";
    std::cout << '\n';
  }
  if (content.at("scenario_count").get<int>() != passed + failed + refused + left_out) {
    std::cout << "scenario_count says " << content.at("scenario_count") << " scenarios\n";
    ++failed;
  }
  std::cout << "conformance: " << passed << " passed, " << failed << " failed";
  if (refused > 0)
    std::cout << ", " << refused << " refused for shapes that are not declared:" << refused_ids;
  if (left_out > 0) std::cout << ", " << left_out << " of other kinds left out";
  std::cout << std::endl;
  return failed;
}

}  // namespace conformance
