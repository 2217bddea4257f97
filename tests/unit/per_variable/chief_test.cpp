// SPDX-License-Identifier: MIT
/// @file
/// The explicit chief of VariableReplicas: halves of an update, restarts, a thread of its own.
#include "support/catch.hpp"
#include "support/thread_net.hpp"
#include "support/threads.hpp"
#include <lockstep/optimizers/sgd.hpp>
#include <lockstep/per_variable/variable_replicas.hpp>

#include <Eigen/Core>

#include <array>
#include <chrono>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ls = lockstep;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using ls::Index;
using ls::Pushed;

namespace {

using ChiefTrainer = ls::VariableReplicas<ls::Sgd, ls::test::ThreadNet>;

struct TwoVectors {
  ls::Variables<float> variables;
  decltype(variables.add("", Eigen::VectorXf())) a = variables.add("a", Eigen::VectorXf::Zero(1));
  decltype(variables.add("", Eigen::VectorXf())) b = variables.add("b", Eigen::VectorXf::Zero(1));
};

ls::VariableOptions chief_options(int replicas_to_aggregate, int total_num_replicas = 0) {
  return {.replicas_to_aggregate = replicas_to_aggregate,
          .total_num_replicas = total_num_replicas,
          .deadline = 10s,
          .driver = ls::Driver::chief};
}

std::vector<Pushed> push(ChiefTrainer& trainer, int place,
                         const std::vector<std::pair<std::string, float>>& what) {
  std::vector<ls::NamedGradient<float>> gradients;
  for (const auto& [name, value] : what)
    gradients.push_back({name, ls::TensorView<const float>(std::span<const float>(&value, 1), {1})});
  return trainer.push(place, gradients);
}

}  // namespace

TEST_CASE("chief: takes, then applies, then gives out tokens", "[chief]") {
  TwoVectors model;
  ChiefTrainer trainer{ls::Sgd{1.0}, model.variables, chief_options(2, 3)};
  if constexpr (!ls::test::ThreadNet::k_survives_kill)  // else it waits for a chief that may start later
    CHECK_THROWS_AS(trainer.join(), ls::UsageError);    // nobody has called init_chief
  CHECK(trainer.init_chief(0).tokens_added == 0);
  auto chief = trainer.chief();
  CHECK_THROWS_AS(chief.finish(), ls::UsageError);
  CHECK_THROWS_AS(trainer.chief(), ls::UsageError);
  CHECK(chief.take_begin() == std::vector<bool>{false, false});
  push(trainer, 0, {{"a", 1}, {"b", 10}});
  push(trainer, 1, {{"a", 3}});
  CHECK(chief.taken() == std::vector<bool>{true, false});
  CHECK(push(trainer, 2, {{"a", 5}, {"b", 30}}) == std::vector{Pushed::dropped, Pushed::accepted});
  CHECK(trainer.accumulator_step(0) == 1);
  CHECK(trainer.global_step() == 0);
  const ls::VariableUpdate update = chief.finish();
  CHECK(update.global_step == 1);
  CHECK(update.tokens_added == 3);
  CHECK(trainer.tokens() == std::vector<Index>{1, 1, 1});
  CHECK(model.variables.value(model.a)(0) == -2);
  CHECK(model.variables.value(model.b)(0) == -20);
}

TEST_CASE("chief: a late chief takes everything that is there", "[chief]") {
  TwoVectors model;
  ChiefTrainer trainer{ls::Sgd{1.0}, model.variables, chief_options(2, 3)};
  trainer.init_chief();
  for (int i = 0; i < 3; ++i) push(trainer, i, {{"a", static_cast<float>(i * i)}, {"b", 1}});
  auto chief = trainer.chief();
  CHECK(chief.step().global_step == 1);
  CHECK(model.variables.value(model.a)(0) == Approx(-5.0 / 3));
}

TEST_CASE("chief: a deadline keeps its requests, and abort withdraws them", "[chief]") {
  TwoVectors model;
  ChiefTrainer trainer{ls::Sgd{1.0}, model.variables, chief_options(2)};
  trainer.init_chief(0);
  auto chief = trainer.chief();
  push(trainer, 0, {{"a", 1}, {"b", 10}});
  push(trainer, 1, {{"a", 3}});
  CHECK_THROWS_WITH(chief.step(5ms), ContainsSubstring("'b': 1 of 2"));
  CHECK(chief.taken() == std::vector<bool>{true, false});
  SECTION("and goes on") {
    push(trainer, 1, {{"b", 20}});
    CHECK(chief.step().global_step == 1);
    CHECK(model.variables.value(model.a)(0) == -2);
  }
  SECTION("a stop keeps them as well") {
    std::stop_source stop;
    stop.request_stop();
    CHECK_THROWS_AS(chief.finish(1s, stop.get_token()), ls::Cancelled);
    push(trainer, 1, {{"b", 20}});
    CHECK(chief.finish().global_step == 1);
    CHECK(model.variables.value(model.a)(0) == -2);
    CHECK(model.variables.value(model.b)(0) == -15);
  }
  SECTION("or gives up: what it has taken is lost") {
    chief.abort();
    CHECK(chief.taken() == std::vector<bool>{false, false});
    CHECK(trainer.num_accumulated(1) == 1);
    const ls::ChiefInit again = trainer.init_chief(2);
    CHECK(again.step_went_backwards);
    CHECK(again.tokens_added == 2);
    CHECK(trainer.accumulator_step(0) == 0);
  }
}

TEST_CASE("chief: init tokens must be enough for the first update", "[chief]") {
  TwoVectors model;
  ChiefTrainer trainer{ls::Sgd{1.0}, model.variables, chief_options(4, 2)};
  CHECK_THROWS_AS(trainer.init_chief(1), ls::InvalidArgument);
  CHECK(trainer.tokens().empty());
  CHECK(trainer.init_chief().tokens_added == 2);    // lock-step
  CHECK(trainer.init_chief(-1).tokens_added == 4);  // TensorFlow's default
  trainer.set_global_step(7);
  CHECK(trainer.init_worker(1) == 7);
  CHECK(trainer.local_step(1) == 7);
  CHECK(trainer.local_step(0) == 0);
}

TEST_CASE("chief: in a thread of its own it drives replicas until they stop it", "[chief][thread]") {
  TwoVectors model;
  const ls::test::Watchdog watchdog;
  ChiefTrainer trainer{ls::Sgd{1.0}, model.variables, chief_options(2, 3)};
  trainer.init_chief();
  {
    const std::jthread driver([&](const std::stop_token& stop) { trainer.chief().run(stop); });
    trainer.run([&](auto& replica) {
      while (trainer.global_step() < 50) {
        replica.set_gradient(model.a, Eigen::VectorXf::Constant(1, 0.5F));
        replica.set_gradient(model.b, Eigen::VectorXf::Constant(1, 0.25F));
        try {
          replica.apply_gradients({.timeout = 300ms * ls::test::slowdown()});
        } catch (const ls::TimeoutError&) {
          break;  // the others have left
        }
      }
    });
  }
  CHECK(trainer.global_step() >= 50);
  const auto steps = static_cast<float>(trainer.global_step());
  CHECK(model.variables.value(model.a)(0) == -0.5F * steps);
  CHECK(model.variables.value(model.b)(0) == -0.25F * steps);
}

TEST_CASE("chief: close ends the chief, and replicas use up their tokens", "[chief][thread]") {
  TwoVectors model;
  const ls::test::Watchdog watchdog;
  ChiefTrainer trainer{ls::Sgd{1.0}, model.variables, chief_options(1, 2)};
  trainer.init_chief();
  auto replica = trainer.join(), other = trainer.join();
  std::jthread driver([&] { trainer.chief().run({}); });
  replica.set_gradient(model.a, Eigen::VectorXf::Ones(1));
  replica.set_gradient(model.b, Eigen::VectorXf::Ones(1));
  CHECK(replica.apply_gradients().global_step == 1);
  trainer.close();
  driver.join();
  other.set_gradient(model.a, Eigen::VectorXf::Ones(1));
  CHECK(other.apply_gradients().status == ls::Status::stale);
  other.set_gradient(model.a, Eigen::VectorXf::Ones(1));
  CHECK(other.apply_gradients().status == ls::Status::stopped);
  CHECK_THROWS_AS(trainer.chief().step(), ls::OutOfRange);
}

TEST_CASE("chief: a schedule that throws ends the replicas", "[chief][thread]") {
  TwoVectors model;
  const ls::test::Watchdog watchdog;
  const auto rate = [](std::int64_t) -> double { throw std::runtime_error("no rate"); };
  ChiefTrainer trainer{ls::Sgd{.learning_rate = rate}, model.variables, chief_options(1)};
  trainer.init_chief();
  std::string said;
  std::thread driver([&] {
    try {
      trainer.chief().run({});
    } catch (const std::exception& error) {
      said = error.what();
    }
  });
  auto replica = trainer.join();
  replica.set_gradient(model.a, Eigen::VectorXf::Ones(1));
  replica.set_gradient(model.b, Eigen::VectorXf::Ones(1));
  CHECK_THROWS_WITH(replica.apply_gradients(), ContainsSubstring("no rate"));
  driver.join();
  CHECK(said == "no rate");
}

TEST_CASE("chief: there is none where the replicas drive", "[chief]") {
  TwoVectors model;
  ChiefTrainer trainer{ls::Sgd{1.0}, model.variables, ls::VariableOptions{}};
  CHECK_THROWS_AS(trainer.chief(), ls::UsageError);
}
