// SPDX-License-Identifier: MIT
/// @file
/// What a benchmark program says: measurements, one JSON object a line, and why its result is wrong.
#pragma once

#include "interleave.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace lockstep::bench {

/// A measurement for `scripts/bench goals`, with the times that it comes from.
inline void report(const std::string& name, double value, const char* unit, const Interleaved& times = {}) {
  std::printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"seconds\": {", name.c_str(), value,
              unit);
  const char* separator = "";
  for (const auto& contender : times.contenders()) {
    std::printf("%s\"%s\": {\"median\": %.6g, \"min\": %.6g}", separator, contender.name.c_str(),
                times.median(contender.name), times.best(contender.name));
    separator = ", ";
  }
  std::printf("}}\n");
  std::fflush(stdout);
}

/// A benchmark that computes something else is no benchmark: ends the program.
inline void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "wrong result: %s\n", what.c_str());
  std::exit(1);
}

inline void expect_close(double actual, double expected, const std::string& where, double tolerance = 2e-5) {
  if (std::abs(actual - expected) <= tolerance * std::max(1.0, std::abs(expected))) return;
  expect(false, where + ": expected " + std::to_string(expected) + ", got " + std::to_string(actual));
}

}  // namespace lockstep::bench
