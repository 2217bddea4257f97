// SPDX-License-Identifier: MIT
/// @file
/// SyncReplicasOptimizer and GradientAggregationOptimizer by TensorFlow's names.
#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/threads.hpp"
#include <lockstep/compat/tensorflow.hpp>
#include <lockstep/gradient_aggregation.hpp>
#include <lockstep/optimizers/adam.hpp>
#include <lockstep/optimizers/local.hpp>
#include <lockstep/optimizers/sgd.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace ls = lockstep;
namespace tf = lockstep::tensorflow;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

using FloatRows = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Model {
  ls::Variables<float> variables;
  decltype(variables.add("", Eigen::VectorXf())) w = variables.add("w", Eigen::VectorXf::Constant(2, 4));
  decltype(variables.add("", FloatRows())) table = variables.add("table", FloatRows::Constant(3, 1, 1));
};

tf::GradAndVar dense(float value) { return {ls::Tensor<float>{{value, value}, {2}}, "w"}; }
tf::GradAndVar rows(std::vector<ls::Index> indices, std::vector<float> values) {
  const auto count = static_cast<ls::Index>(indices.size());
  return {tf::IndexedSlices<float>{{std::move(values), {count, 1}}, std::move(indices), ls::Shape{3, 1}},
          "table"};
}

}  // namespace

TEST_CASE("tensorflow: workers, a chief's thread and a moving average", "[tensorflow][thread]") {
  const ls::test::Watchdog watchdog;
  Model model;
  tf::SyncReplicasOptimizer opt(ls::Sgd{0.5}, model.variables, 2, 2,
                                tf::ExponentialMovingAverage{.decay = 0.5}, std::vector<std::string>{"w"});
  const auto grads = opt.compute_gradients([] { return tf::GradsAndVars{dense(1), rows({0}, {1})}; });
  auto train_op = opt.apply_gradients(grads, tf::GlobalStep{});
  auto hook = opt.make_session_run_hook(true, 0);
  hook.begin();
  hook.after_create_session({});
  const auto thrown = ls::test::run_replicas(2, [&](int worker) {
    for (int step = 0; step < 3; ++step)
      train_op.run(worker, {dense(static_cast<float>(worker)), rows({worker}, {0.25F})}, 20s);
  });
  for (const auto& error : thrown) CHECK(ls::test::message_of(error) == "");
  hook.end();
  CHECK(opt.global_step() == 3);
  CHECK(opt.read("w").elements == std::vector<float>{3.25F, 3.25F});
  CHECK(opt.read("table").elements == std::vector<float>{0.625F, 0.625F, 1});
  CHECK(opt.average("w").elements[0] == 3.46875F);
  CHECK_THROWS_AS(opt.average("table"), ls::UsageError);
}

TEST_CASE("tensorflow: one worker, step by step", "[tensorflow]") {
  Model model;
  tf::SyncReplicasOptimizer opt(ls::Adam{.learning_rate = 0.5}, model.variables, 1);
  CHECK_THROWS_AS(opt.get_chief_queue_runner(), ls::UsageError);
  CHECK_THROWS_AS(opt.global_step(), ls::UsageError);
  auto train_op = opt.apply_gradients({dense(0), {tf::None, "table"}}, tf::GlobalStep{5});
  CHECK_THROWS_AS(opt.apply_gradients({dense(0)}, tf::GlobalStep{}), ls::UsageError);
  opt.chief_init_op();
  opt.local_step_init_op(0);
  CHECK(opt.get_init_tokens_op().run() == 1);
  auto thread = opt.get_chief_queue_runner().create_threads();
  CHECK(train_op.run(0, {dense(1)}, 20s) == 5);  // the initial token; the update may come before or after it
  CHECK(train_op.run(0, {dense(1)}, 20s) == 6);
  CHECK_THROWS_AS(train_op.run(0, {rows({0}, {1})}), ls::UsageError);  // the kind was declared
  CHECK_THROWS_AS(train_op.run(0, {{std::string("text"), "w"}}), ls::InvalidArgument);
  thread = {};
  const auto variables = opt.variables();
  const auto find = [&](const std::string& name) {
    return std::find_if(variables.begin(), variables.end(), [&](const auto& v) { return v.name == name; });
  };
  REQUIRE(find("beta1_power") != variables.end());
  CHECK(find("beta1_power")->value.elements[0] < 0.9F);
  CHECK(find("m")->variable == "w");
  CHECK(find("average") == variables.end());
  CHECK(opt.get_slot("w", "m").elements[0] > 0);
}

TEST_CASE("tensorflow: workers learn what has ended the chief's thread", "[tensorflow][thread]") {
  const ls::test::Watchdog watchdog;
  Model model;
  const auto schedule = [](std::int64_t step) {
    if (step > 0) throw std::runtime_error("no rate for this step");  // not an error of the library
    return 0.5;
  };
  tf::SyncReplicasOptimizer opt(ls::Sgd{.learning_rate = schedule}, model.variables, 1);
  auto train_op = opt.apply_gradients({dense(0)}, tf::GlobalStep{});
  auto hook = opt.make_session_run_hook(true, 0);
  hook.begin();
  hook.after_create_session({});
  CHECK(train_op.run(0, {dense(1)}, 20s) == 1);
  CHECK_THROWS_WITH(train_op.run(0, {dense(1)}, 20s), ContainsSubstring("no rate for this step"));
}

TEST_CASE("tensorflow: who starts a chief's thread learns why there is none", "[tensorflow][thread]") {
  const ls::test::Watchdog watchdog;
  Model model;
  tf::SyncReplicasOptimizer opt(ls::Sgd{}, model.variables, 1);
  opt.apply_gradients({dense(0)}, tf::GlobalStep{});
  auto runner = opt.get_chief_queue_runner();
  auto thread = runner.create_threads();
  CHECK_THROWS_WITH(runner.create_threads(), ContainsSubstring("there is one already"));
  thread = {};
  thread = runner.create_threads();
  thread = {};
  if (!ls::test::are_allocations_counted()) return;
  bool is_told = false;
  for (std::uint64_t n = 1; !thread.joinable(); ++n) {
    try {
      const ls::test::FailingAllocation fails(n);
      thread = runner.create_threads();
    } catch (const ls::SystemError& error) {
      is_told =
          is_told || std::string(error.what()).starts_with("create_threads: cannot start thread 1 of 1");
    } catch (const std::bad_alloc&) {  // of the chief
    }
  }
  CHECK(is_told);
}

TEST_CASE("tensorflow: lists of gradients are checked when the accumulators are made", "[tensorflow]") {
  Model model;
  tf::SyncReplicasOptimizer opt(ls::Sgd{}, model.variables, 4, 2);
  CHECK_THROWS_AS(opt.apply_gradients({}, tf::GlobalStep{}), ls::InvalidArgument);
  CHECK_THROWS_AS(opt.apply_gradients({dense(1)}), ls::InvalidArgument);
  CHECK_THROWS_WITH(opt.apply_gradients({{1, "w"}}, tf::GlobalStep{}), ContainsSubstring("'w'"));
  CHECK_THROWS_AS(opt.apply_gradients({{tf::None, "w"}}, tf::GlobalStep{}), ls::InvalidArgument);
  CHECK_THROWS_AS(opt.apply_gradients({{tf::None, "v"}}, tf::GlobalStep{}), ls::UnknownVariable);
  CHECK_THROWS_WITH(opt.apply_gradients({dense(1), {tf::None, "w"}}, tf::GlobalStep{}),
                    ContainsSubstring("'w' is named twice"));
  auto hook = opt.make_session_run_hook(true, 1);
  CHECK_THROWS_AS(hook.begin(), ls::UsageError);
  opt.apply_gradients({dense(1)}, tf::GlobalStep{});
  CHECK_THROWS_AS(hook.begin(), ls::InvalidArgument);
  opt.make_session_run_hook(false, 1, 1).begin();
  auto good = opt.make_session_run_hook(true, 2);
  good.begin();
  CHECK_THROWS_AS(good.after_create_session({.uninitialized_variables = {"w"}}), tf::NotInitialized);
}

TEST_CASE("tensorflow: gradient aggregation makes gradients dense", "[tensorflow]") {
  Model model;
  ls::Local inner(ls::GradientAggregation<ls::Sgd>{ls::Sgd{1.0}, tf::aggregation_options({.grad_steps = 2})},
                  model.variables);
  tf::GradientAggregationOptimizer opt(inner);
  CHECK_THROWS_AS(opt.apply_gradients({{tf::None, "w"}}), tf::TypeError);
  CHECK_THROWS_AS(opt.apply_gradients({}), ls::InvalidArgument);
  auto without_shape = rows({0}, {1});
  std::any_cast<tf::IndexedSlices<float>&>(without_shape.gradient).dense_shape.reset();
  CHECK_THROWS_AS(opt.apply_gradients({dense(1), without_shape}), ls::InvalidArgument);
  CHECK_THROWS_AS(opt.apply_gradients({rows({3}, {1})}), ls::InvalidArgument);
  CHECK_THROWS_WITH(opt.apply_gradients({dense(1), dense(2)}), ContainsSubstring("'w' is named twice"));
  auto short_of_values = rows({0, 1}, {1, 2});
  std::any_cast<tf::IndexedSlices<float>&>(short_of_values.gradient).values.elements.pop_back();
  CHECK_THROWS_AS(opt.apply_gradients({short_of_values}), ls::ShapeMismatch);
  CHECK_THROWS_AS(opt.apply_gradients({{ls::Tensor<float>{{1}, {2}}, "w"}}), ls::ShapeMismatch);
  CHECK(inner.global_step() == 0);
  CHECK(opt.apply_gradients({dense(2), rows({2, 2, 0}, {1, 2, 4})}).status == ls::Status::accumulated);
  CHECK(opt.get_slot("table", "grad_accum").elements == std::vector<float>{2, 0, 1.5});
  CHECK(opt.apply_gradients({dense(4), rows({0}, {2})}).status == ls::Status::accepted);
  CHECK(model.variables.value(model.w)(0) == 1);
  CHECK(model.variables.value(model.table)(2, 0) == -0.5F);
}
