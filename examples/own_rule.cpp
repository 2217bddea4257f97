// SPDX-License-Identifier: MIT
// An update rule of one's own, Lion, in ten lines: it trains alone or with replicas like any other.
#include <lockstep/lockstep.hpp>
#include <lockstep/optimizers/explain.hpp>

#include <iostream>

namespace ls = lockstep;

struct Lion {
  ls::Schedule learning_rate = 1e-4;
  double beta1 = 0.9, beta2 = 0.99;
  static constexpr std::array slots{ls::Slot{"m"}};
  struct Step {
    double rate, keep1, keep2;
  };
  Step prepare(const ls::StepInfo& info) const { return {learning_rate(info), beta1, beta2}; }
  void update(const Step& step, auto& w, auto g, auto& m) const {
    w -= step.rate * sign(step.keep1 * m + (1 - step.keep1) * g);
    m = step.keep2 * m + (1 - step.keep2) * g;
  }
};
template struct ls::explain_rule<Lion>;  // says in a sentence what is missing, if something is

int main() {
  ls::Variables<> variables;
  const auto w = variables.add("w", Eigen::Vector3f(1, -2, 0.5F));
  ls::SyncReplicas trainer{Lion{.learning_rate = 0.25}, variables, {.replicas_to_aggregate = 2}};
  trainer.run([&](auto& replica) {
    while (replica.global_step() < 6) {
      replica.set_gradient(w, replica.value(w) * static_cast<float>(1 + replica.index()));
      replica.apply_gradients();
    }
  });
  std::cout << "w = " << variables.value(w).transpose() << "\nm = " << trainer.slot("m", w).transpose()
            << '\n';
}
