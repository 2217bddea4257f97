// SPDX-License-Identifier: MIT
// Four micro-batches make one update: the same as one batch of four times the size.
#include <lockstep/lockstep.hpp>

#include <iostream>

namespace ls = lockstep;

int main() {
  ls::Variables<> variables;
  const auto w = variables.add("w", Eigen::Vector2f(1, 2));
  ls::Local optimizer{ls::GradientAggregation{ls::Sgd{.learning_rate = 0.5}, {.grad_steps = 4}}, variables};

  for (float batch = 0; batch < 8; ++batch) {
    optimizer.set_gradient(w, Eigen::Vector2f(batch, 1));
    const ls::StepResult result = optimizer.apply_gradients();
    std::cout << "batch " << batch << ": " << to_string(result.status) << ", step " << result.global_step
              << ", w = " << optimizer.value(w).transpose() << '\n';
  }
}
