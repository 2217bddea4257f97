// SPDX-License-Identifier: MIT
/// @file
/// VariableReplicas and code of the program that it calls: schedules, and what keeps the variables still.
#include "support/catch.hpp"
#include "support/thread_net.hpp"
#include "support/threads.hpp"
#include <lockstep/optimizers/sgd.hpp>
#include <lockstep/per_variable/variable_replicas.hpp>

#include <Eigen/Core>

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace ls = lockstep;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

using CodeTrainer = ls::VariableReplicas<ls::Sgd, ls::test::ThreadNet>;

/// One replica with one number, whose rate is `rate(trainer)` once there is a trainer.
struct CodeScene {
  template <class Rate>
  explicit CodeScene(Rate rate, ls::VariableOptions options = {})
      : trainer(ls::Sgd{.learning_rate = [this, rate](std::int64_t) -> double {
                  return is_made ? rate(trainer) : 0;
                }},
                variables, options) {
    is_made = true;
  }
  template <class Replica>
  ls::StepResult step(Replica& replica, float gradient = 1) {
    replica.set_gradient(w, Eigen::VectorXf::Constant(1, gradient));
    return replica.apply_gradients();
  }
  float value() const { return variables.value(w)(0); }

  bool is_made = false;
  ls::Variables<float> variables;
  decltype(variables.add("", Eigen::VectorXf())) w = variables.add("w", Eigen::VectorXf::Zero(1));
  CodeTrainer trainer;
};

}  // namespace

TEST_CASE("variable_replicas: a schedule may look at its trainer", "[variable_replicas]") {
  const ls::test::Watchdog watchdog;
  std::vector<std::int64_t> steps;
  CodeScene scene([&](auto& trainer) {
    steps.push_back(trainer.global_step());
    return trainer.while_still([&] { return trainer.updates() == 0 ? 1.0 : 0.5; });
  });
  {
    auto replica = scene.trainer.join();
    CHECK(scene.step(replica).global_step == 1);
    CHECK(scene.step(replica).global_step == 2);
  }
  CHECK(steps.front() == 0);
  CHECK(steps.back() == 1);
  CHECK(scene.value() == -1.5F);
}

TEST_CASE("variable_replicas: an update has the rate of its step, whoever sets that meanwhile",
          "[variable_replicas]") {
  const ls::test::Watchdog watchdog;
  bool is_set = false;
  CodeScene scene([&](auto& trainer) {
    const auto step = trainer.global_step();
    if (!std::exchange(is_set, true)) trainer.set_global_step(4);
    return step == 4 ? 0.25 : 1.0;
  });
  auto replica = scene.trainer.join();
  CHECK(scene.step(replica).global_step == 5);
  CHECK(replica.value(scene.w)(0) == -0.25F);
}
