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

/// What is wrong in one scenario; empty if nothing is.
std::vector<std::string> failures_of(const Json& scenario, const Runners& runners, Report report) {
  const auto runner = runners.find(scenario.at("kind").get<std::string>());
  if (runner == runners.end()) return {"no runner for kind " + scenario.at("kind").get<std::string>()};
  try {
    runner->second(scenario, report);
  } catch (const std::exception& exception) {
    report.fail(std::string("threw: ") + exception.what());
  }
  return report.failures();
}

}  // namespace

int run_file(const std::string& file, const Runners& runners) {
  std::ifstream stream(file);
  if (!stream) throw std::runtime_error("conformance: cannot open " + file);
  const Json content = Json::parse(stream);
  const Json& tolerance = content.at("tolerance");
  const Report report(tolerance_from(tolerance.at("float64")), tolerance_from(tolerance.at("float32")));

  int passed = 0, failed = 0;
  for (const Json& scenario : content.at("scenarios")) {
    const auto failures = failures_of(scenario, runners, report);
    if (failures.empty()) {
      ++passed;
      continue;
    }
    ++failed;
    std::cout << scenario.at("id").get<std::string>() << " " << scenario.at("title").get<std::string>()
              << ": " << failures.front();
    if (failures.size() > 1) std::cout << " (and " << failures.size() - 1 << " more)";
    std::cout << '\n';
  }
  if (content.at("scenario_count").get<int>() != passed + failed) {
    std::cout << "scenario_count says " << content.at("scenario_count") << " scenarios\n";
    ++failed;
  }
  std::cout << "conformance: " << passed << " passed, " << failed << " failed" << std::endl;
  return failed;
}

}  // namespace conformance
