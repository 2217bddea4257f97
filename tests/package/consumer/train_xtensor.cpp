// SPDX-License-Identifier: MIT
/// @file
/// The same with the opt-in header for xtensor, and without threads.
#include <lockstep/lockstep.hpp>
#include <lockstep/tensor/xtensor.hpp>

#include <iostream>

int main() {
  lockstep::Variables<> variables;
  const auto w = variables.add("w", xt::xtensor<float, 1>{4, -4});
  lockstep::Local optimizer{lockstep::Sgd{.learning_rate = 0.5}, variables};
  while (optimizer.global_step() < 2) {
    optimizer.set_gradient(w, optimizer.value(w));
    optimizer.apply_gradients();
  }
  std::cout << "xtensor: " << variables.value(w)(0) << ' ' << variables.value(w)(1) << '\n';
}
