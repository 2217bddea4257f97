// SPDX-License-Identifier: MIT
// Four replicas, one thread each, fit a line to points on y = 3 x + 1. Every update averages a gradient of
// each.
#include <lockstep/lockstep.hpp>

#include <cstdio>

namespace ls = lockstep;

int main() {
  ls::Variables<> variables;
  const auto line = variables.add("line", Eigen::Vector2f(0, 0));  // slope and offset

  ls::SyncReplicas trainer{ls::Momentum{.learning_rate = 0.1}, variables, {.replicas_to_aggregate = 4}};
  trainer.run([&](auto& replica) {
    while (replica.global_step() < 200) {
      // The sequence and the number of the replica give every batch to exactly one of them.
      const auto batch = replica.sequence() * 4 + replica.index();
      const float x = static_cast<float>(batch % 16) / 16, y = 3 * x + 1;
      const float error = replica.value(line)(0) * x + replica.value(line)(1) - y;
      replica.set_gradient(line, error * Eigen::Vector2f(x, 1));
      replica.apply_gradients();
    }
  });

  for (int i = 0; i < trainer.replicas(); ++i)
    std::printf("replica %d: %d contributions\n", i, static_cast<int>(trainer.stats(i).accepted));
  std::printf("%d updates: y = %.3f x + %.3f\n", static_cast<int>(trainer.global_step()),
              static_cast<double>(variables.value(line)(0)), static_cast<double>(variables.value(line)(1)));
}
