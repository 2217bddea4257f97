// SPDX-License-Identifier: MIT
/// @file
/// A program of someone who uses lockstep: two threads halve a vector twice.
#include <lockstep/lockstep.hpp>

#include <iostream>

int main() {
  lockstep::Variables<> variables;
  const auto w = variables.add("w", Eigen::Vector2f(4, -4));
  lockstep::SyncReplicas trainer{
      lockstep::Sgd{.learning_rate = 0.5}, variables, {.replicas_to_aggregate = 2}};
  trainer.run([&](auto& replica) {
    while (replica.global_step() < 2) {
      replica.set_gradient(w, replica.value(w));
      replica.apply_gradients();
    }
  });
  std::cout << "lockstep " << LOCKSTEP_VERSION_MAJOR << '.' << LOCKSTEP_VERSION_MINOR << '.'
            << LOCKSTEP_VERSION_PATCH << ": " << variables.value(w)(0) << ' ' << variables.value(w)(1)
            << '\n';
}
