// SPDX-License-Identifier: MIT
/// @file
/// The same with a checkpoint in the middle: what the file holds is trained on by another optimizer.
#include <lockstep/checkpoint/safetensors.hpp>
#include <lockstep/lockstep.hpp>

#include <filesystem>
#include <iostream>

int main() {
  const char* path = "halved.safetensors";
  for (const int steps : {1, 2}) {
    lockstep::Variables<> variables;
    const auto w = variables.add("w", Eigen::Vector2f(4, -4));
    lockstep::Local optimizer{lockstep::Sgd{.learning_rate = 0.5}, variables};
    if (steps == 2) optimizer.restore(lockstep::load(path));
    optimizer.set_gradient(w, optimizer.value(w));
    optimizer.apply_gradients();
    lockstep::save(path, optimizer.snapshot());
    if (steps == 2)
      std::cout << "checkpoint " << optimizer.global_step() << ": " << variables.value(w)(0) << ' '
                << variables.value(w)(1) << '\n';
  }
  std::filesystem::remove(path);
}
