// SPDX-License-Identifier: MIT
/// @file
/// What two processes are asked to do at the same time, and the sizes for which it is measured.
#pragma once

#include "program.hpp"
#include "textbook.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

namespace lockstep::bench {

inline constexpr int k_processes = 2;

/// Steps of training with a rule, "sgd" or "adam". A line of text between processes.
struct Task {
  std::string rule;
  Index elements = 0;
  int steps = 0;

  static Task from(std::istream& words) {
    Task task;
    words >> task.rule >> task.elements >> task.steps;
    return task;
  }
  std::string text() const { return rule + ' ' + std::to_string(elements) + ' ' + std::to_string(steps); }
};

/// Registers `who`/step/two_processes for each rule and for 100 to 1e8 elements.
/// @param run seconds per step of the slower process.
inline void register_two_processes(const std::string& who, const std::function<double(const Task&)>& run) {
  for (const std::string rule : {"sgd", "adam"})
    for (Index elements = 100; elements <= 100'000'000; elements *= 10) {
      const double bytes =
          rule == "sgd" ? floor_bytes<Sgd>(elements, k_processes) : floor_bytes<Adam>(elements, k_processes);
      const auto batch = static_cast<int>(std::clamp<Index>(5'000'000 / elements, 1, 500));
      register_workload(
          who + "/step/two_processes/f32/" + rule + "/elements:" + std::to_string(elements) + "/replicas:2",
          bytes, batch, [=] {
            return std::make_unique<std::function<double(int)>>([=](int steps) {
              return run({rule, elements, steps});
            });
          });
    }
}

}  // namespace lockstep::bench
