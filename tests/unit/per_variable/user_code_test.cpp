// SPDX-License-Identifier: MIT
/// @file
/// VariableReplicas and code of the program that it calls: schedules, and what keeps the variables still.
#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/thread_net.hpp"
#include "support/threads.hpp"
#include <lockstep/optimizers/sgd.hpp>
#include <lockstep/per_variable/variable_replicas.hpp>

#include <Eigen/Core>

#include <chrono>
#include <cstdint>
#include <new>
#include <stop_token>
#include <thread>
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

TEST_CASE("variable_replicas: an update waits for while_still until the deadline", "[variable_replicas]") {
  const ls::test::Watchdog watchdog;
  CodeScene scene([](auto&) { return 1.0; });
  auto replica = scene.trainer.join();
  scene.trainer.while_still([&] {
    scene.trainer.while_still([&] { CHECK(scene.trainer.global_step() == 0); });
    replica.set_gradient(scene.w, Eigen::VectorXf::Constant(1, 1));
    CHECK_THROWS_WITH(replica.apply_gradients({.timeout = 20ms}),
                      ContainsSubstring("a call of while_still does not end"));
    CHECK_THROWS_AS(replica.resume({.timeout = 20ms}), ls::TimeoutError);
    CHECK(scene.value() == 0);
  });
  CHECK(replica.resume().global_step == 1);
  CHECK(scene.value() == -1);
  CHECK(scene.step(replica).global_step == 2);
}

TEST_CASE("variable_replicas: a chief waits for while_still until the deadline",
          "[variable_replicas][chief]") {
  const ls::test::Watchdog watchdog;
  CodeScene scene([](auto&) { return 1.0; }, {.driver = ls::Driver::chief});
  scene.trainer.init_chief();
  auto replica = scene.trainer.join();
  auto chief = scene.trainer.chief();
  replica.set_gradient(scene.w, Eigen::VectorXf::Constant(1, 1));
  CHECK_THROWS_AS(replica.apply_gradients({.timeout = 5ms}), ls::TimeoutError);
  scene.trainer.while_still([&] {
    CHECK_THROWS_WITH(chief.step(20ms), ContainsSubstring("a call of while_still does not end"));
    CHECK(chief.taken() == std::vector<bool>{true});
  });
  CHECK(scene.value() == 0);
  CHECK(chief.step().global_step == 1);
  CHECK(replica.resume().global_step == 1);
}

TEST_CASE("variable_replicas: readers keep the variables still while replicas train",
          "[variable_replicas][thread]") {
  const ls::test::Watchdog watchdog;
  CodeScene scene([](auto&) { return 1.0; }, {.replicas_to_aggregate = 2});
  bool were_still = true;
  {
    const std::jthread reader([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        scene.trainer.while_still([&] {
          const float before = scene.value();
          std::this_thread::yield();
          were_still = were_still && scene.value() == before &&
                       before == -static_cast<float>(scene.trainer.global_step());
        });
        std::this_thread::sleep_for(100us);  // else updates between processes hardly get a turn
      }
    });
    scene.trainer.run([&](auto& replica) {
      for (int i = 0; i < 200; ++i) scene.step(replica);
    });
  }
  CHECK(were_still);
  CHECK(scene.value() == -200);
}

TEST_CASE("variable_replicas: a schedule may throw anything", "[variable_replicas][chief]") {
  const ls::test::Watchdog watchdog;
  bool throws = true;
  const auto rate = [&](auto&) -> double { return throws ? throw 42 : 1.0; };
  SECTION("in a replica: the next training goes on") {
    CodeScene scene(rate);
    {
      auto replica = scene.trainer.join();
      CHECK_THROWS_AS(scene.step(replica), int);
      CHECK_THROWS_WITH(replica.resume(), ContainsSubstring("not wait"));
      CHECK_THROWS_WITH(scene.step(replica), ContainsSubstring("an exception that is no std::exception"));
    }
    throws = false;
    scene.trainer.start_over();
    auto replica = scene.trainer.join();
    CHECK(scene.step(replica).global_step > 0);
    CHECK(scene.value() < 0);
  }
  SECTION("in a chief: the replicas are told") {
    CodeScene scene(rate, {.driver = ls::Driver::chief});
    scene.trainer.init_chief();
    auto replica = scene.trainer.join();
    auto chief = scene.trainer.chief();
    replica.set_gradient(scene.w, Eigen::VectorXf::Constant(1, 1));
    CHECK_THROWS_AS(replica.apply_gradients({.timeout = 5ms}), ls::TimeoutError);
    CHECK_THROWS_AS(chief.step(), int);
    CHECK_THROWS_WITH(
        replica.resume(),
        ContainsSubstring("the chief failed: an exception that is no std::exception; replica 0 cannot"));
    int culprit = 0;
    try {
      replica.resume();
    } catch (const ls::PeerFailed& failure) {
      culprit = failure.replica();
    }
    CHECK(culprit < 0);  // no replica
  }
}

TEST_CASE("variable_replicas: a chief without memory ends the training for all",
          "[variable_replicas][chief]") {
  const ls::test::Watchdog watchdog;
  if (!ls::test::are_allocations_counted()) return;
  std::uint64_t needed = 1;
  int failures = 0;
  for (std::uint64_t n = 0; n <= needed; ++n) {  // the first time nothing fails
    INFO("allocation " << n << " of " << needed);
    CodeScene scene([](auto&) { return 1.0; }, {.driver = ls::Driver::chief});
    scene.trainer.init_chief();
    auto replica = scene.trainer.join();
    auto chief = scene.trainer.chief();
    replica.set_gradient(scene.w, Eigen::VectorXf::Constant(1, 1));
    CHECK_THROWS_AS(replica.apply_gradients({.timeout = 1ms}), ls::TimeoutError);
    bool is_thrown = false;
    {
      const std::uint64_t before = ls::test::allocations();
      const ls::test::FailingAllocation fails(n);
      try {
        chief.step();
      } catch (const std::bad_alloc&) {
        is_thrown = true;
      }
      if (n == 0) needed = ls::test::allocations() - before;
    }
    CHECK(is_thrown == (n > 0));
    if (is_thrown) {
      ++failures;
      CHECK_THROWS_AS(replica.resume(), ls::PeerFailed);
    } else {
      CHECK(replica.resume().global_step == 1);
    }
  }
  CHECK(failures > 0);
}

TEST_CASE("variable_replicas: a chief that runs without memory wakes those who wait",
          "[variable_replicas][chief][thread]") {
  const ls::test::Watchdog watchdog;
  if (!ls::test::are_allocations_counted()) return;
  CodeScene scene([](auto&) { return 1.0; }, {.driver = ls::Driver::chief});
  scene.trainer.init_chief();
  auto replica = scene.trainer.join();
  bool is_thrown = false;
  std::jthread driver([&] {
    auto chief = scene.trainer.chief();
    while (scene.trainer.num_accumulated(0) == 0) std::this_thread::sleep_for(1ms);
    const ls::test::FailingAllocation fails(1);
    try {
      chief.run({});
    } catch (const std::bad_alloc&) {
      is_thrown = true;
    }
  });
  CHECK_THROWS_WITH(scene.step(replica), ContainsSubstring("std::bad_alloc"));
  driver.join();
  CHECK(is_thrown);
}
