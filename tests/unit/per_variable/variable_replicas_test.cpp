// SPDX-License-Identifier: MIT
/// @file
/// Synchronous replicas at the granularity of a variable: kinds of gradients, steps, departures, threads.
#include "support/catch.hpp"
#include "support/thread_net.hpp"
#include "support/threads.hpp"
#include <lockstep/concepts.hpp>
#include <lockstep/gradient_aggregation.hpp>
#include <lockstep/optimizers/adam.hpp>
#include <lockstep/optimizers/moving_average.hpp>
#include <lockstep/optimizers/per_variable.hpp>
#include <lockstep/optimizers/sgd.hpp>
#include <lockstep/per_variable/granularity.hpp>
#include <lockstep/per_variable/variable_replicas.hpp>

#include <Eigen/Core>

#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace ls = lockstep;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using ls::Index;
using ls::Pushed;
using ls::Status;

namespace {

using Rows = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// One vector and one table.
struct TableModel {
  ls::Variables<float> variables;
  decltype(variables.add("", Eigen::VectorXf())) w = variables.add("w", Eigen::VectorXf::Constant(3, 1));
  decltype(variables.add("", Rows())) table = variables.add("table", Rows::Constant(4, 2, 1));
};

Eigen::VectorXf constant(float value) { return Eigen::VectorXf::Constant(3, value); }

ls::VariableOptions options(int replicas_to_aggregate, int total_num_replicas = 0) {
  return {.replicas_to_aggregate = replicas_to_aggregate,
          .total_num_replicas = total_num_replicas,
          .sparse = {"table"},
          .deadline = 10s};
}
/// The table has no gradient.
ls::VariableOptions only_w(int replicas_to_aggregate, int total_num_replicas = 0) {
  auto result = options(replicas_to_aggregate, total_num_replicas);
  result.sparse = {};
  result.without_gradient = {"table"};
  return result;
}

template <class Trainer>
std::vector<Pushed> push_w(Trainer& trainer, int place, float value) {
  const std::vector<float> gradient(3, value);
  const std::array<ls::NamedGradient<float>, 1> gradients{
      {{.variable = "w", .gradient = ls::TensorView<const float>(gradient)}}};
  return trainer.push(place, gradients);
}

using TableTrainer = ls::VariableReplicas<ls::Sgd, ls::test::ThreadNet>;

}  // namespace

static_assert(ls::Trainer<TableTrainer>);
static_assert(ls::Trainer<ls::GradientAggregation<TableTrainer>>);
static_assert(ls::Optimizer<TableTrainer::Replica>);
static_assert(
    std::same_as<ls::ReplicasBy<ls::Granularity::per_variable, ls::Sgd, ls::test::ThreadNet>, TableTrainer>);
static_assert(std::same_as<ls::ReplicasBy<ls::Granularity::per_step, ls::Sgd>, ls::SyncReplicas<ls::Sgd>>);
static_assert(
    std::same_as<ls::ReplicasBy<ls::Granularity::per_variable, ls::Sgd>, ls::VariableReplicas<ls::Sgd>>);

TEST_CASE("variable_replicas: replicas in lock-step apply the mean of their gradients",
          "[variable_replicas][thread]") {
  const ls::test::Watchdog watchdog;
  for (const int replicas : {1, 2, 3, 5}) {
    TableModel model;
    TableTrainer trainer{ls::Sgd{0.5}, model.variables, options(replicas)};
    std::vector<std::vector<Index>> steps(static_cast<std::size_t>(replicas));
    trainer.run([&](auto& replica) {
      for (int i = 0; i < 20; ++i) {
        replica.set_gradient(model.w, constant(static_cast<float>(replica.index())));
        replica.set_rows(model.table, std::vector<int>{1, replica.index() % 4}, Rows::Constant(2, 2, 1));
        steps[static_cast<std::size_t>(replica.index())].push_back(replica.apply_gradients().global_step);
      }
    });
    CHECK(trainer.global_step() == 20);
    for (const auto& of_replica : steps) {
      REQUIRE(of_replica.size() == 20);
      for (std::size_t i = 0; i < 20; ++i) CHECK(of_replica[i] == static_cast<Index>(i) + 1);
    }
    const float mean = static_cast<float>(replicas - 1) / 2;
    CHECK(model.variables.value(model.w)(0) == Approx(1 - 10 * mean));
    CHECK(trainer.tokens().empty());
  }
}

TEST_CASE("variable_replicas: a row is averaged over those who have it", "[variable_replicas][sparse]") {
  TableModel model;
  TableTrainer trainer{ls::Sgd{1.0}, model.variables, options(2)};
  const ls::test::Watchdog watchdog;
  trainer.run([&](auto& replica) {
    replica.set_gradient(model.w, constant(0));
    if (replica.index() == 0)
      replica.set_rows(model.table, std::vector<int>{0, 1}, Rows::Constant(2, 2, 1));
    else
      replica.set_rows(model.table, std::vector<int>{1, 3}, Rows::Constant(2, 2, 3));
    replica.apply_gradients();
  });
  const auto table = model.variables.value(model.table);
  CHECK(table(0, 0) == 0);   // one of two replicas, at full value
  CHECK(table(1, 1) == -1);  // the mean of 1 and 3
  CHECK(table(2, 0) == 1);
  CHECK(table(3, 0) == -2);
}

TEST_CASE("variable_replicas: equal rows are summed, but applied in turn by Sgd",
          "[variable_replicas][sparse]") {
  // The sum of the two gradients is lost in rounding, each on its own is not.
  const std::vector<Index> indices{2, 2};
  const std::vector<float> values{1e8F, 1e8F, 1, 1};
  const auto push = [&](auto& trainer) {
    const std::array<ls::NamedGradient<float>, 1> gradients{
        {{.variable = "table",
          .gradient = ls::SparseGradient<float>{.indices = indices, .values = {values, {2, 2}}}}}};
    trainer.push(0, gradients);
  };
  auto of_table = options(1);
  of_table.without_gradient = {"w"};
  SECTION("Sgd") {
    TableModel model;
    TableTrainer trainer{ls::Sgd{1e-8}, model.variables, of_table};
    push(trainer);
    CHECK(model.variables.value(model.table)(2, 0) == -1e-8F);  // 1 - 1 first, then the small one
    CHECK(model.variables.value(model.table)(1, 0) == 1);
  }
  SECTION("Sgd with a moving average, which moves once") {
    TableModel model;
    ls::VariableReplicas trainer{ls::MovingAverage<ls::Sgd>{ls::Sgd{1e-8}, 0.5}, model.variables, of_table};
    push(trainer);
    CHECK(model.variables.value(model.table)(2, 0) == -1e-8F);
    CHECK(trainer.slot("average", model.table)(2, 0) == 0.5F - 0.5e-8F);
    CHECK(trainer.slot("average", model.table)(1, 0) == 1);
    CHECK(trainer.slot("average", model.w)(1) == 1);
  }
  SECTION("Adam sees the sum") {
    TableModel model;
    ls::VariableReplicas trainer{ls::Adam{.learning_rate = 0.5}, model.variables, of_table};
    push(trainer);
    CHECK(trainer.slot("m", model.table)(2, 0) == Approx(0.1F * (1e8F + 1)));
    CHECK(model.variables.value(model.table)(2, 0) == Approx(0.5));
    CHECK(model.variables.value(model.table)(0, 0) == 1);
  }
}

TEST_CASE("variable_replicas: a gradient must be of the declared kind and fit", "[variable_replicas]") {
  TableModel model;
  TableTrainer trainer{ls::Sgd{1.0}, model.variables, options(1)};
  auto replica = trainer.join();
  replica.set_gradient(model.table, Rows::Constant(4, 2, 1));
  CHECK_THROWS_WITH(replica.apply_gradients(),
                    ContainsSubstring("'table'") && ContainsSubstring("row-sparse"));
  CHECK(trainer.num_accumulated(0) == 0);

  const std::vector<float> three(3);
  const std::vector<Index> index{4};
  const auto push = [&](std::string_view name, ls::VariableGradient<float> gradient) {
    const std::array<ls::NamedGradient<float>, 1> gradients{{{name, std::move(gradient)}}};
    return trainer.push(0, gradients);
  };
  CHECK_THROWS_AS(push("v", ls::TensorView<const float>(three)), ls::UnknownVariable);
  CHECK_THROWS_AS(push("w", ls::TensorView<const float>(three, {1, 3})), ls::ShapeMismatch);
  CHECK_THROWS_AS(push("w", ls::SparseGradient<float>{.indices = index, .values = three}), ls::UsageError);
  CHECK_THROWS_AS(push("table", ls::SparseGradient<float>{.indices = index, .values = three}),
                  ls::ShapeMismatch);
  const std::vector<float> row(2);
  CHECK_THROWS_AS(push("table", ls::SparseGradient<float>{.indices = index, .values = {row, {1, 2}}}),
                  ls::InvalidArgument);
  CHECK(push("w", {}) == std::vector{Pushed::absent, Pushed::absent});

  // Wrong in the second one: the first one is not added either.
  const std::vector<Index> rows{0, 1};
  const std::vector<float> values(4);
  const auto push_after_w = [&](ls::SparseGradient<float> gradient) {
    const std::array<ls::NamedGradient<float>, 2> gradients{
        {{"w", ls::TensorView<const float>(three)}, {"table", std::move(gradient)}}};
    return trainer.push(0, gradients);
  };
  CHECK_THROWS_AS(push_after_w({.indices = {rows, {1, 2}}, .values = {values, {2, 2}}}), ls::ShapeMismatch);
  CHECK_THROWS_AS(push_after_w({.indices = {rows, {3}}, .values = {values, {2, 2}}}), ls::ShapeMismatch);
  CHECK_THROWS_AS(push_after_w({.indices = rows, .values = {values, {2, 2}}, .dense_shape = ls::Shape{5, 2}}),
                  ls::ShapeMismatch);
  const std::array<ls::NamedGradient<float>, 2> twice{
      {{"w", ls::TensorView<const float>(three)}, {"w", ls::TensorView<const float>(three)}}};
  CHECK_THROWS_WITH(trainer.push(0, twice), ContainsSubstring("'w' is named twice"));
  CHECK(trainer.num_accumulated(0) == 0);
  CHECK(trainer.global_step() == 0);
  CHECK_THROWS_AS(TableTrainer(ls::Sgd{}, model.variables, options(1)), ls::UsageError);  // bound already
}

TEST_CASE("variable_replicas: a merged gradient that is refused stays as it is", "[variable_replicas]") {
  TableModel model;
  TableTrainer trainer{ls::Sgd{1.0}, model.variables, only_w(1)};
  auto replica = trainer.join();
  auto& staged = replica.staging();
  replica.set_gradient(model.w, constant(8));
  staged.header().total = 2;
  replica.set_gradient(model.table, Rows::Constant(4, 2, 1));
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS_AS(replica.apply_merged({}, 2), ls::UsageError);
    CHECK(replica.staging().data()[0] == 8);
  }
}

TEST_CASE("variable_replicas: options without meaning are refused", "[variable_replicas]") {
  TableModel model;
  const auto make = [&](const ls::VariableOptions& wrong) {
    TableTrainer{ls::Sgd{}, model.variables, wrong};
  };
  CHECK_THROWS_AS(make({.replicas_to_aggregate = 0}), ls::InvalidArgument);
  CHECK_THROWS_AS(make({.total_num_replicas = -1}), ls::InvalidArgument);
  CHECK_THROWS_AS(make({.total_num_replicas = 1000}), ls::InvalidArgument);
  CHECK_THROWS_AS(make({.replicas_to_aggregate = 4, .total_num_replicas = 2, .init_tokens = 1}),
                  ls::InvalidArgument);
  CHECK_THROWS_AS(make({.sparse = {"nobody"}}), ls::UnknownVariable);
  CHECK_THROWS_AS(make({.without_gradient = {"w", "table"}}), ls::InvalidArgument);
  CHECK_THROWS_AS(make({.departure = ls::Departure::shrink}), ls::InvalidArgument);
  CHECK_THROWS_AS(make({.global_step = -1}), ls::InvalidArgument);
  CHECK_THROWS_AS(make({.global_step = std::numeric_limits<std::int64_t>::max()}), ls::InvalidArgument);
  CHECK_THROWS_AS(make({.deadline = 0ms}), ls::InvalidArgument);
  make(options(1));  // and none of them has kept the variables
}

TEST_CASE("variable_replicas: variables without gradient stay", "[variable_replicas]") {
  TableModel model;
  SECTION("declared so: a gradient for one is an error") {
    TableTrainer trainer{ls::Sgd{1.0}, model.variables, only_w(1)};
    CHECK(trainer.kind(1) == ls::GradientKind::none);
    CHECK_THROWS_AS(trainer.num_accumulated(1), ls::UsageError);
    auto replica = trainer.join();
    replica.set_rows(model.table, std::vector{0}, Rows::Ones(1, 2));
    CHECK_THROWS_AS(replica.apply_gradients(), ls::UsageError);
  }
  SECTION("frozen by PerVariable: a gradient for one is ignored") {
    ls::VariableReplicas trainer{
        ls::PerVariable{ls::Sgd{1.0}, nullptr, [](const ls::VariableInfo& info) { return info.name == "w"; }},
        model.variables, options(1)};
    auto replica = trainer.join();
    replica.set_gradient(model.w, constant(1));
    replica.set_rows(model.table, std::vector{0}, Rows::Ones(1, 2));
    CHECK(replica.apply_gradients().global_step == 1);
    CHECK(replica.pushed()[0] == Pushed::accepted);
    CHECK(replica.pushed()[1] == Pushed::absent);
    CHECK(replica.value(model.w)(0) == 0);
  }
  CHECK(model.variables.value(model.table)(0, 0) == 1);
}

TEST_CASE("variable_replicas: each variable has contributors of its own", "[variable_replicas][thread]") {
  TableModel model;
  TableTrainer trainer{ls::Sgd{1.0}, model.variables, options(1, 2)};
  const ls::test::Watchdog watchdog;
  trainer.run([&](auto& replica) {
    if (replica.index() == 0)
      replica.set_gradient(model.w, constant(1));
    else
      replica.set_rows(model.table, std::vector{0}, Rows::Ones(1, 2));
    replica.apply_gradients();
  });
  CHECK(trainer.global_step() == 1);
  CHECK(model.variables.value(model.w)(0) == 0);
  CHECK(model.variables.value(model.table)(0, 0) == 0);
}

TEST_CASE("variable_replicas: a late gradient is dropped and its replica catches up", "[variable_replicas]") {
  TableModel model;
  TableTrainer trainer{ls::Sgd{1.0}, model.variables, only_w(1, 2)};
  auto fast = trainer.join(), late = trainer.join();
  late.set_gradient(model.w, constant(9));
  fast.set_gradient(model.w, constant(1));
  CHECK(fast.apply_gradients().global_step == 1);
  CHECK(late.value(model.w)(0) == 1);  // its own copy is from before
  const ls::StepResult result = late.apply_gradients();
  CHECK(result.status == Status::stale);
  CHECK(result.contributions == 0);
  CHECK(result.computed_at == 0);
  CHECK(result.global_step == 1);
  CHECK(late.pushed()[0] == Pushed::dropped);
  CHECK(late.value(model.w)(0) == 0);
  CHECK(late.local_step() == 1);
  CHECK(late.sequence() == 1);
}

TEST_CASE("variable_replicas: fewer replicas than gradients give several each",
          "[variable_replicas][thread]") {
  TableModel model;
  TableTrainer trainer{ls::Sgd{1.0}, model.variables, only_w(4, 2)};
  CHECK(trainer.tokens() == std::vector<Index>{0, 0});
  const ls::test::Watchdog watchdog;
  std::atomic<int> open_rounds = 0;
  trainer.run([&](auto& replica) {
    while (replica.global_step() < 5) {
      replica.set_gradient(model.w, constant(0.25F));
      if (replica.apply_gradients().round_open) ++open_rounds;
    }
  });
  CHECK(open_rounds >= 5 * (4 - 2));  // of four gradients of a round only the last of each replica waits
  CHECK(trainer.global_step() == 5);
  CHECK(model.variables.value(model.w)(0) == 1 - 5 * 0.25F);
}

TEST_CASE("variable_replicas: a wait ends at its deadline and can be resumed", "[variable_replicas]") {
  TableModel model;
  TableTrainer trainer{ls::Sgd{1.0}, model.variables, only_w(2)};
  auto first = trainer.join();
  first.set_gradient(model.w, constant(1));
  try {
    first.apply_gradients({.timeout = 20ms});
    FAIL("it should wait for the second gradient");
  } catch (const ls::TimeoutError& error) {
    CHECK(error.missing() == std::vector{ls::Missing{1, ls::Missing::Why::not_joined}});
    CHECK_THAT(error.what(),
               ContainsSubstring("'w': 1 of 2") && ContainsSubstring("replica 1 has not joined"));
  }
  CHECK_THROWS_AS(first.gradient(model.w), ls::UsageError);
  CHECK_THROWS_AS(first.apply_gradients(), ls::UsageError);
  CHECK_THROWS_AS(first.resume({.timeout = 5ms}), ls::TimeoutError);
  auto second = trainer.join();
  CHECK_THROWS_AS(second.resume(), ls::UsageError);
  second.set_gradient(model.w, constant(3));
  CHECK(second.apply_gradients().global_step == 1);
  CHECK(first.resume().global_step == 1);
  CHECK(first.value(model.w)(0) == -1);
}

TEST_CASE("variable_replicas: a stop token ends a wait, and no token is lost", "[variable_replicas]") {
  TableModel model;
  TableTrainer trainer{ls::Sgd{1.0}, model.variables, only_w(2)};
  std::stop_source stop;
  auto first = trainer.join(stop.get_token());
  first.set_gradient(model.w, constant(1));
  std::jthread later([&] {
    std::this_thread::sleep_for(20ms);
    stop.request_stop();
  });
  CHECK_THROWS_AS(first.apply_gradients(), ls::Cancelled);
  push_w(trainer, 1, 1);
  CHECK(trainer.tokens() == std::vector<Index>{1, 1});
}

TEST_CASE("variable_replicas: who leaves after a deadline puts the token back that came meanwhile",
          "[variable_replicas]") {
  TableModel model;
  TableTrainer trainer{ls::Sgd{1.0}, model.variables, only_w(2)};
  {
    auto first = trainer.join(0);
    first.set_gradient(model.w, constant(1));
    CHECK_THROWS_AS(first.apply_gradients({.timeout = 5ms}), ls::TimeoutError);
    push_w(trainer, 1, 1);
    CHECK(trainer.tokens() == std::vector<Index>{1});
  }
  CHECK(trainer.tokens() == std::vector<Index>{1, 1});
  auto again = trainer.join(0);
  CHECK(again.global_step() == 1);
}

TEST_CASE("variable_replicas: an exception in a loop reaches the others", "[variable_replicas][thread]") {
  TableModel model;
  TableTrainer trainer{ls::Sgd{1.0}, model.variables, only_w(2)};
  const ls::test::Watchdog watchdog;
  CHECK_THROWS_WITH(trainer.run([&](auto& replica) {
    for (int i = 0;; ++i) {
      if (replica.index() == 1 && i == 3) throw std::runtime_error("no more data");
      replica.set_gradient(model.w, constant(0));
      replica.apply_gradients();
    }
  }),
                    "no more data");
  CHECK(trainer.global_step() == 3);
  CHECK_THROWS_AS(push_w(trainer, 0, 1), ls::PeerFailed);
  trainer.run([&](auto& replica) {
    replica.set_gradient(model.w, constant(0));
    replica.apply_gradients();
  });
  CHECK(trainer.global_step() >= 4);
}

TEST_CASE("variable_replicas: a schedule that throws ends everybody", "[variable_replicas][thread]") {
  TableModel model;
  const auto rate = [](std::int64_t step) -> double {
    return step < 2 ? 0.0 : throw std::runtime_error("no rate");
  };
  TableTrainer trainer{ls::Sgd{.learning_rate = rate}, model.variables, only_w(2)};
  const ls::test::Watchdog watchdog;
  CHECK_THROWS_WITH(trainer.run([&](auto& replica) {
    for (;;) {
      replica.set_gradient(model.w, constant(0));
      replica.apply_gradients();
    }
  }),
                    "no rate");
  CHECK(trainer.global_step() == 2);
}

TEST_CASE("variable_replicas: a schedule that throws what is no exception of the library ends everybody",
          "[variable_replicas]") {
  TableModel model;
  const auto rate = [](std::int64_t step) -> double { return step < 2 ? 0.0 : throw 42; };
  ls::VariableReplicas trainer{ls::Sgd{.learning_rate = rate}, model.variables, only_w(2)};
  auto first = trainer.join(0), last = trainer.join(1);
  for (int step = 0; step < 3; ++step) {
    first.set_gradient(model.w, constant(1));
    CHECK_THROWS_AS(first.apply_gradients({.timeout = 1ms}), ls::TimeoutError);
    last.set_gradient(model.w, constant(1));
    if (step == 2) break;
    CHECK(last.apply_gradients().status == Status::accepted);
    CHECK(first.resume().status == Status::accepted);
  }
  CHECK_THROWS_AS(last.apply_gradients(), int);
  CHECK_THROWS_AS(first.resume(), ls::PeerFailed);
}

TEST_CASE("variable_replicas: what a departure does", "[variable_replicas][thread]") {
  TableModel model;
  auto chosen = only_w(2);
  const ls::test::Watchdog watchdog;
  const auto run_uneven = [&](TableTrainer& trainer, std::array<Status, 2>& last) {
    trainer.run([&](auto& replica) {
      for (int i = 0; i < 3 + 2 * replica.index(); ++i) {
        replica.set_gradient(model.w, constant(0));
        auto& status = last.at(static_cast<std::size_t>(replica.index()));
        status = replica.apply_gradients().status;
        if (status == Status::stopped) break;
      }
    });
  };
  std::array<Status, 2> last{};
  SECTION("stop: the other is told, and a further run is possible") {
    chosen.departure = ls::Departure::stop;
    TableTrainer trainer{ls::Sgd{1.0}, model.variables, chosen};
    run_uneven(trainer, last);
    CHECK(last == std::array{Status::accepted, Status::stopped});
    CHECK(trainer.global_step() == 3);
    CHECK_THROWS_AS(trainer.token(0), ls::OutOfRange);
    trainer.start_over();
    CHECK(trainer.tokens().empty());
    CHECK_THROWS_AS(trainer.token(0, 5ms), ls::TimeoutError);
  }
  SECTION("fail") {
    chosen.departure = ls::Departure::fail;
    TableTrainer trainer{ls::Sgd{1.0}, model.variables, chosen};
    CHECK_THROWS_AS(run_uneven(trainer, last), ls::PeerFailed);
  }
  SECTION("wait: until the deadline, with its name") {
    chosen.deadline = 100ms * ls::test::slowdown();
    TableTrainer trainer{ls::Sgd{1.0}, model.variables, chosen};
    CHECK_THROWS_WITH(run_uneven(trainer, last), ContainsSubstring("replica 0 has left"));
  }
}

TEST_CASE("variable_replicas: seats", "[variable_replicas]") {
  TableModel model;
  TableTrainer trainer{ls::Sgd{1.0}, model.variables, only_w(2)};
  auto one = trainer.join(1);
  auto zero = trainer.join();
  CHECK(zero.index() == 0);
  CHECK_THROWS_AS(trainer.join(), ls::UsageError);
  CHECK_THROWS_AS(trainer.join(0), ls::UsageError);
  CHECK_THROWS_AS(trainer.join(2), ls::InvalidArgument);
  CHECK_THROWS_AS(trainer.start_over(), ls::UsageError);
  auto moved = std::move(zero);
  moved.leave();
  for (auto* gone : {&zero, &moved}) {
    CHECK_THROWS_WITH(gone->apply_gradients(), "replica 0 has left");
    CHECK_THROWS_WITH(gone->apply_merged({}, 2), "replica 0 has left");
    CHECK_THROWS_WITH(gone->resume(), "replica 0 has left");
    CHECK_THROWS_WITH(gone->gradient(model.w), "replica 0 has left");
    CHECK_THROWS_WITH(gone->value(model.w), "replica 0 has left");
    CHECK_THROWS_WITH(gone->local_step(), "replica 0 has left");
  }
  CHECK(trainer.join().index() == 0);
}

TEST_CASE("variable_replicas: a step that cannot be is refused", "[variable_replicas]") {
  TableModel model;
  TableTrainer trainer{ls::Sgd{1.0}, model.variables, only_w(1)};
  for (const std::int64_t wrong : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    CHECK_THROWS_AS(trainer.set_global_step(wrong), ls::InvalidArgument);
    CHECK_THROWS_AS(trainer.set_local_step(0, wrong), ls::InvalidArgument);
  }
  CHECK_THROWS_AS(trainer.set_local_step(1, 0), ls::InvalidArgument);
  CHECK(trainer.global_step() == 0);
  trainer.set_global_step(7);
  trainer.set_local_step(0, 7);
  CHECK(push_w(trainer, 0, 1)[0] == Pushed::accepted);
  CHECK(trainer.global_step() == 8);
}

TEST_CASE("variable_replicas: weights are not possible", "[variable_replicas]") {
  TableModel model;
  TableTrainer trainer{ls::Sgd{1.0}, model.variables, only_w(1)};
  auto replica = trainer.join();
  CHECK_THROWS_AS(replica.apply_gradients(), ls::NoGradients);
  replica.set_gradient(model.w, constant(1));
  CHECK_THROWS_AS(replica.apply_gradients({.weight = 2}), ls::InvalidArgument);
  CHECK_THROWS_AS(replica.apply_gradients({.weight = -1}), ls::InvalidArgument);
  CHECK(replica.apply_gradients().contributions == 1);
}

TEST_CASE("variable_replicas: a gradient aggregation around it exchanges once per window",
          "[variable_replicas][thread]") {
  TableModel model;
  ls::GradientAggregation trainer{TableTrainer{ls::Sgd{1.0}, model.variables, options(2)},
                                  ls::AggregationOptions{.grad_steps = 3}};
  const ls::test::Watchdog watchdog;
  trainer.run([&](auto& replica) {
    for (int i = 0; i < 6; ++i) {
      replica.set_gradient(model.w, constant(static_cast<float>(i % 3 + replica.index())));
      replica.set_rows(model.table, std::vector<int>{replica.index()},
                       Rows::Constant(1, 2, static_cast<float>(i % 3)));
      replica.apply_gradients();
    }
  });
  CHECK(trainer.global_step() == 2);
  CHECK(model.variables.value(model.w)(0) == 1 - 2 * 1.5F);
  CHECK(model.variables.value(model.table)(0, 0) == 1 - 2 * 1.0F);
  CHECK(model.variables.value(model.table)(2, 0) == 1);
}
