// SPDX-License-Identifier: MIT
// Gradient aggregation as a recipe of Local. Around a trainer: unit/sync/nesting_test.cpp.
#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/optimizers/local.hpp>
#include <lockstep/optimizers/optimizers.hpp>

#include <Eigen/Core>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Vector = Eigen::VectorXd;
using DoubleTable = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A model of one number whose updates by Sgd{1} can be read off.
struct One {
  explicit One(const AggregationOptions& options, const LocalOptions& local = {})
      : w(variables.add("w", Vector::Zero(1))),
        optimizer(GradientAggregation<Sgd>{Sgd{1.0}, options}, variables, local) {}
  StepResult step(double gradient, const ApplyOptions& options = {}) {
    optimizer.gradient(w)[0] = gradient;
    return optimizer.apply_gradients(options);
  }
  /// What the last update subtracted.
  double moved() { return -(value() - std::exchange(last, value())); }
  double value() const { return variables.value(w)[0]; }

  Variables<double> variables;
  Handle<Vector, double> w;
  Local<GradientAggregation<Sgd>, double> optimizer;
  double last = 0;
};

}  // namespace

TEST_CASE("aggregation: k micro-batches make one update with their mean", "[optimizers][aggregation]") {
  for (int k = 1; k <= 9; ++k) {
    INFO("k = " << k);
    One model({.grad_steps = k});
    for (int window = 0; window < 3; ++window) {
      double sum = 0;
      for (int i = 1; i <= k; ++i) {
        const double g = (window + 1) * i;
        sum += g;
        CHECK(model.optimizer.pending() == i - 1);
        const StepResult result = model.step(g);
        CHECK(result.status == (i == k ? Status::accepted : Status::accumulated));
        CHECK(result.contributions == i);
        CHECK(result.global_step == window + (i == k));
        CHECK(result.computed_at == window);
        if (i < k) {
          CHECK(model.moved() == 0);
        }
      }
      CHECK(model.moved() == Approx(sum / k).epsilon(1e-14));
    }
    CHECK(model.optimizer.sequence() == 3 * k);
    CHECK(model.optimizer.updates() == 3);
  }
}

TEST_CASE("aggregation: every variant closes its windows and counts as it did", "[optimizers][aggregation]") {
  struct Expected {
    AggregationVariant variant;
    std::int64_t start;
    int k;
    const char* closes;                      // per micro-batch
    std::vector<std::int64_t> global_steps;  // after each
  };
  using enum AggregationVariant;
  const std::vector<Expected> cases{
      {own_counter, 0, 3, "..x..x..x", {0, 0, 1, 1, 1, 2, 2, 2, 3}},
      {own_counter, 1, 3, "..x..x", {1, 1, 2, 2, 2, 3}},
      {gpu, 0, 3, "..x..x..x", {1, 2, 3, 4, 5, 6, 7, 8, 9}},
      {gpu, 1, 3, ".x..x", {2, 3, 4, 5, 6}},  // a foreign step shifts the window
      {tpu, 0, 3, "..x..x", {1, 2, 3, 4, 5, 6}},
      {tpu, 1, 3, "..x..x", {2, 3, 4, 5, 6, 7}},
      {mlperf_v1, 0, 3, "..x..x", {0, 0, 1, 1, 1, 2}},
      {mlperf_v1, 1, 3, "..x..x", {1, 1, 2, 2, 2, 3}},
      {early, 0, 3, "..x..x", {1, 2, 3, 4, 5, 6}},
      {early, 2, 3, "x..x", {3, 4, 5, 6}},
      {lingvo, 0, 3, "..x..x", {0, 0, 1, 1, 1, 2}},
      {gpu, 0, 1, "xxx", {1, 2, 3}},
      {tpu, 0, 1, "xxx", {1, 2, 3}},
      {mlperf_v1, 0, 1, "xxx", {1, 2, 3}},
      {early, 0, 1, "xxx", {1, 2, 3}},
      {lingvo, 0, 1, "xxx", {1, 2, 3}},
      {own_counter, 0, 1, "xxx", {1, 2, 3}},
  };
  for (const Expected& expected : cases) {
    INFO("variant " << static_cast<int>(expected.variant) << ", k = " << expected.k << ", from step "
                    << expected.start);
    One model({.grad_steps = expected.k, .variant = expected.variant}, {.global_step = expected.start});
    double sum = 0;
    int in_window = 0;
    for (std::size_t i = 0; expected.closes[i] != '\0'; ++i) {
      const double g = static_cast<double>(i * i + 1);
      sum += g;
      ++in_window;
      const StepResult result = model.step(g);
      const bool closes = expected.closes[i] == 'x';
      CHECK((result.status == Status::accepted) == closes);
      CHECK(result.global_step == expected.global_steps[i]);
      CHECK(model.optimizer.global_step() == expected.global_steps[i]);
      if (closes) {
        // The default divides by what is there, the others by k.
        CHECK(model.moved() ==
              Approx(sum / (expected.variant == own_counter ? in_window : expected.k)).epsilon(1e-14));
        sum = in_window = 0;
      } else {
        CHECK(model.moved() == 0);
      }
    }
  }
}

TEST_CASE("aggregation: the length may depend on the updates so far", "[optimizers][aggregation]") {
  One model({.grad_steps = [](std::int64_t updates) { return updates + 1; }});
  for (int k = 1; k <= 4; ++k)
    for (int i = 1; i <= k; ++i) CHECK((model.step(i).status == Status::accepted) == (i == k));
  CHECK(model.value() == -(1 + 1.5 + 2 + 2.5));

  Variables<double> variables;
  variables.add("w", Vector::Zero(1));
  const auto bind = [&](const WindowLength& k) {
    Local{GradientAggregation<Sgd>{Sgd{}, {.grad_steps = k}}, variables};
  };
  CHECK_THROWS_WITH(bind(0), ContainsSubstring("grad_steps") && ContainsSubstring("0"));
  CHECK_THROWS_AS(bind(-3), InvalidArgument);
  CHECK_THROWS_AS(bind([](std::int64_t) { return 0; }), InvalidArgument);
  CHECK_NOTHROW(bind(1));

  One late({.grad_steps = [](std::int64_t updates) { return updates < 1 ? 2 : 0; }});
  late.step(1);
  late.step(1);
  CHECK_THROWS_AS(late.step(1), InvalidArgument);
  CHECK(late.value() == -1);
}

TEST_CASE("aggregation: set_grad_steps changes the open window too", "[optimizers][aggregation]") {
  One model({.grad_steps = 3});
  model.step(1);
  model.step(2);
  model.optimizer.set_grad_steps(5);
  CHECK(model.step(3).status == Status::accumulated);
  CHECK(model.step(4).status == Status::accumulated);
  model.optimizer.set_grad_steps(2);  // four are there already: the next one closes
  CHECK(model.step(5).status == Status::accepted);
  CHECK(model.moved() == 3);
  model.optimizer.set_grad_steps(1);
  CHECK(model.step(7).status == Status::accepted);
  CHECK(model.moved() == 7);

  One plain({.grad_steps = 1});
  CHECK_THROWS_AS(plain.optimizer.set_grad_steps(2), UsageError);
  CHECK_NOTHROW(plain.optimizer.set_grad_steps(1));
  CHECK(plain.step(1).status == Status::accepted);
}

TEST_CASE("aggregation: k may go to one inside a window", "[optimizers][aggregation]") {
  One model({.grad_steps = 3});
  model.step(1);
  model.step(2);
  model.optimizer.set_grad_steps(1);
  CHECK(model.optimizer.pending() == 2);
  CHECK(model.step(6).status == Status::accepted);
  CHECK(model.moved() == 3);  // nothing of the open window is lost
  model.step(5);
  CHECK(model.moved() == 5);
}

TEST_CASE("aggregation: flush applies what is there, with that as divisor", "[optimizers][aggregation]") {
  One model({.grad_steps = 4});
  CHECK(model.optimizer.flush().status == Status::accumulated);
  CHECK(model.optimizer.global_step() == 0);
  model.step(3);
  model.step(6);
  const StepResult flushed = model.optimizer.flush();
  CHECK(flushed.status == Status::accepted);
  CHECK(flushed.contributions == 2);
  CHECK(flushed.global_step == 1);
  CHECK(model.moved() == 4.5);
  CHECK(model.optimizer.pending() == 0);
  CHECK(model.optimizer.flush().status == Status::accumulated);
  model.step(1);
  CHECK(model.step(2, {.flush = true}).status == Status::accepted);
  CHECK(model.moved() == 1.5);
  CHECK(model.step(8, {.flush = true}).status == Status::accepted);  // a window of one
  CHECK(model.moved() == 8);
}

TEST_CASE("aggregation: weights weigh, and equal ones of any size leave the bits alone",
          "[optimizers][aggregation]") {
  One model({.grad_steps = 3});
  model.step(1, {.weight = 2});
  model.step(10, {.weight = 1});
  model.step(4, {.weight = 5});
  CHECK(model.moved() == Approx((2 + 10 + 20) / 8.0).epsilon(1e-14));

  const auto bits = [](double weight) {
    One equal({.grad_steps = 3});
    for (const double g : {0.1, 0.7, 1.3}) equal.step(g, {.weight = weight});
    return equal.value();
  };
  for (const double weight : {0.3, 7.0, 1e-200, 1e200}) CHECK(same_bits(bits(weight), bits(1)));
}

TEST_CASE("aggregation: a sum does not divide", "[optimizers][aggregation]") {
  One model({.grad_steps = 3, .reduction = Reduction::sum});
  for (const double g : {1, 2, 4}) model.step(g);
  CHECK(model.moved() == 7);
  model.step(5);
  model.optimizer.flush();
  CHECK(model.moved() == 5);
}

TEST_CASE("aggregation: sums and the historical variants keep the weights, and divide by nothing or k",
          "[optimizers][aggregation]") {
  for (const AggregationOptions& options :
       {AggregationOptions{.grad_steps = 3, .reduction = Reduction::sum},
        AggregationOptions{.grad_steps = 3, .variant = AggregationVariant::tpu}}) {
    One model(options);
    model.step(1, {.weight = 2});
    model.step(10, {.weight = 1});
    model.step(4, {.weight = 5});
    CHECK(model.moved() == Approx(32 / (options.reduction == Reduction::sum ? 1.0 : 3.0)).epsilon(1e-14));
  }
}

TEST_CASE("aggregation: absent micro-batches count as zero, absent variables do not move",
          "[optimizers][aggregation]") {
  Variables<double> variables;
  std::vector<Handle<Vector, double>> w;
  for (const char* name : {"first", "second", "both", "never"})
    w.push_back(variables.add(name, Vector::Ones(17)));
  Local local{GradientAggregation<Adam>{Adam{}, {.grad_steps = 2}}, variables};
  const auto window = [&] {
    local.set_gradient(w[0], Vector::Constant(17, 4));
    local.set_gradient(w[2], Vector::Constant(17, 4));
    local.apply_gradients();
    local.set_gradient(w[1], Vector::Constant(17, 6));
    local.set_gradient(w[2], Vector::Constant(17, 6));
    local.apply_gradients();
  };
  window();
  const auto m = [&](int i) { return local.slot("m", w[static_cast<std::size_t>(i)])[16]; };
  CHECK(m(0) == Approx(0.1 * 2).epsilon(1e-12));
  CHECK(m(1) == Approx(0.1 * 3).epsilon(1e-12));
  CHECK(m(2) == Approx(0.1 * 5).epsilon(1e-12));
  CHECK(m(3) == 0);
  CHECK(local.value(w[3]) == Vector::Ones(17));
  const double third = m(2);
  local.set_gradient(w[0], Vector::Ones(17));  // the window before leaves nothing behind
  local.apply_gradients();
  local.set_gradient(w[1], Vector::Ones(17));
  local.apply_gradients();
  CHECK(m(2) == third);
}

TEST_CASE("aggregation: rows are united over the window", "[optimizers][aggregation]") {
  Variables<double> variables;
  const auto w = variables.add("w", DoubleTable(DoubleTable::Zero(4100, 2)));
  Local local{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 3}}, variables};
  for (int window = 0; window < 2; ++window) {
    local.set_rows(w, std::vector{0, 63, 4096}, DoubleTable(DoubleTable::Constant(3, 2, 3)));
    local.apply_gradients();
    local.set_rows(w, std::vector{63, 64}, DoubleTable(DoubleTable::Constant(2, 2, 6)));
    local.apply_gradients();
    CHECK(local.value(w)(0, 0) == -window * 1);
    local.set_rows(w, std::vector{4099}, DoubleTable(DoubleTable::Constant(1, 2, 9)));
    local.apply_gradients();
    const double n = window + 1;
    DoubleTable expected = DoubleTable::Zero(4100, 2);
    expected.row(0).setConstant(-1 * n);
    expected.row(63).setConstant(-3 * n);
    expected.row(64).setConstant(-2 * n);
    expected.row(4096).setConstant(-1 * n);
    expected.row(4099).setConstant(-3 * n);
    CHECK(local.value(w).isApprox(expected, 1e-14));
  }
  // Rows and a dense gradient in one window become dense.
  local.set_rows(w, std::vector{1}, DoubleTable(DoubleTable::Constant(1, 2, 3)));
  local.apply_gradients();
  local.set_gradient(w, DoubleTable(DoubleTable::Constant(4100, 2, 6)));
  local.apply_gradients();
  local.set_rows(w, std::vector{2}, DoubleTable(DoubleTable::Constant(1, 2, 9)));
  local.apply_gradients();
  CHECK(local.value(w)(1, 1) == Approx(-3));
  CHECK(local.value(w)(2, 1) == Approx(-5));
  CHECK(local.value(w)(4098, 1) == Approx(-2));
}

TEST_CASE("aggregation: grad_accum shows the open window, and zeros where there is none",
          "[optimizers][aggregation]") {
  for (const AggregationVariant variant : {AggregationVariant::own_counter, AggregationVariant::tpu}) {
    const double divisor = variant == AggregationVariant::tpu ? 4 : 1;
    Variables<double> variables;
    const auto a = variables.add("a", Vector::Zero(3));
    const auto b = variables.add("b", DoubleTable(DoubleTable::Zero(3, 2)));
    const auto c = variables.add("c", Vector::Zero(3));
    Local local{GradientAggregation<Momentum>{Momentum{}, {.grad_steps = 4, .variant = variant}}, variables};
    CHECK(local.slot_names() == std::vector<std::string>{"momentum", "grad_accum"});
    CHECK(local.slot("grad_accum", a) == Vector::Zero(3));
    for (int i = 1; i <= 3; ++i) {
      local.set_gradient(a, Vector::Constant(3, i));
      local.set_rows(b, std::vector{i - 1}, DoubleTable(DoubleTable::Constant(1, 2, 8)));
      local.apply_gradients();
      CHECK(local.slot("grad_accum", a) == Vector::Constant(3, i * (i + 1) / 2 / divisor));
      for (int row = 0; row < 3; ++row)
        CHECK(local.slot("grad_accum", b)(row, 1) == (row < i ? 8 / divisor : 0));
      CHECK(local.slot("grad_accum", c) == Vector::Zero(3));
    }
    local.set_gradient(a, Vector::Constant(3, 2));
    local.apply_gradients();
    CHECK(local.slot("grad_accum", a) == Vector::Zero(3));
    CHECK(local.slot("grad_accum", b) == DoubleTable::Zero(3, 2));
    CHECK(local.slot("momentum", a) == Vector::Constant(3, 2));
  }
  One plain({.grad_steps = 1});
  CHECK(plain.optimizer.slot("grad_accum", plain.w)[0] == 0);
  plain.step(3);
  CHECK(plain.optimizer.slot("grad_accum", plain.w)[0] == 0);
}

TEST_CASE("aggregation: reading grad_accum does not disturb the window", "[optimizers][aggregation]") {
  const auto run = [](bool look) {
    Variables<float> variables;
    const auto w = variables.add("w", Eigen::VectorXf::Zero(5));
    const auto rows = variables.add("rows", Eigen::VectorXf::Zero(70));
    Local local{GradientAggregation<Sgd>{Sgd{0.3}, {.grad_steps = 3}}, variables};
    for (int t = 0; t < 9; ++t) {
      if (t % 3 != 1) local.set_gradient(w, Eigen::VectorXf::Constant(5, 0.1F * static_cast<float>(t)));
      local.set_rows(rows, std::vector{t, 69}, Eigen::VectorXf::Constant(2, 0.7F));
      local.apply_gradients();
      if (look) {
        (void)local.slot("grad_accum", w);
        (void)local.slot("grad_accum", rows);
      }
    }
    Eigen::VectorXf all(75);
    all << local.value(w), local.value(rows);
    return all;
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("aggregation: a micro-batch that is not finite does not count", "[optimizers][aggregation]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const NonFinite policy : {NonFinite::skip_contribution, NonFinite::skip_update}) {
    One model({.grad_steps = 2, .non_finite = policy});
    CHECK(model.step(nan).status == Status::skipped);  // as the first
    CHECK(model.optimizer.pending() == 0);
    CHECK(model.step(2).status == Status::accumulated);
    CHECK(model.step(nan).status == Status::skipped);  // as the closing one
    CHECK(model.optimizer.pending() == 1);
    CHECK(model.step(4).status == Status::accepted);
    CHECK(model.moved() == 3);
    CHECK(model.optimizer.sequence() == 4);
  }
  One propagates({.grad_steps = 2});
  propagates.step(nan);
  propagates.step(1);
  CHECK(std::isnan(propagates.value()));
}

TEMPLATE_TEST_CASE("aggregation: windows of 16-bit gradients are summed in the scalar of the variables",
                   "[optimizers][aggregation]", Eigen::half, Eigen::bfloat16) {
  // 2048 + 1 is 2048 in half, and 256 + 1 is 256 in bfloat16.
  const float large = std::is_same_v<TestType, Eigen::half> ? 2048 : 256;
  Variables<float, TestType> variables;
  const auto w = variables.add("w", Eigen::VectorXf::Zero(19));
  const auto rows = variables.add("rows", Eigen::VectorXf::Zero(70));
  Local local{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 8}}, variables};
  for (int i = 0; i < 8; ++i) {
    local.set_gradient(w, Eigen::VectorXf::Constant(19, i == 0 ? large : 1));
    local.set_rows(rows, std::vector{i * 9}, Eigen::VectorXf::Constant(1, 8));
    if (i == 5) {
      CHECK(local.slot("grad_accum", w)[18] == large + 4);
      CHECK(local.slot("grad_accum", rows)[9] == 8);
    }
    local.apply_gradients();
  }
  CHECK(local.value(w) == Eigen::VectorXf::Constant(19, -(large + 7) / 8));
  for (int i = 0; i < 70; ++i) CHECK(local.value(rows)[i] == (i % 9 == 0 ? -1 : 0));
}

TEST_CASE("aggregation: the rule's step counts updates, not micro-batches", "[optimizers][aggregation]") {
  const auto run = [](int k) {
    Variables<double> variables;
    const auto w = variables.add("w", Vector::Ones(3));
    Local local{GradientAggregation<Adam>{Adam{}, {.grad_steps = k}}, variables};
    for (int t = 0; t < 3 * k; ++t) {
      local.set_gradient(w, Vector::Constant(3, 1.0 + t / k));  // equal micro-batches
      local.apply_gradients();
    }
    return variables.value(w)[0];
  };
  CHECK(run(2) == run(1));
  CHECK(run(4) == run(1));
}

TEST_CASE("aggregation: one accumulator for k > 1 and none for k = 1", "[optimizers][aggregation]") {
  Variables<float> variables;
  variables.add("w", Eigen::VectorXf::Zero(5000));
  variables.add("rows", Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>::Zero(70, 3));
  const RowLayout rows(variables.layout());
  const auto bytes = [&](const auto& recipe) {
    Carver counter;
    const Updater<std::remove_cvref_t<decltype(recipe)>, float, float> updater(recipe, variables, rows,
                                                                               counter);
    return counter.used();
  };
  Carver one;
  const Contribution<float> contribution(one, variables.layout(), rows);
  const auto aggregation = [](const WindowLength& k) {
    return GradientAggregation<Adam>{Adam{}, {.grad_steps = k}};
  };
  CHECK(bytes(aggregation(1)) == bytes(Adam{}));
  CHECK(bytes(aggregation(4)) == bytes(Adam{}) + one.used());
  CHECK(bytes(aggregation(64)) == bytes(Adam{}) + one.used());
  CHECK(bytes(aggregation([](std::int64_t) { return 1; })) == bytes(Adam{}) + one.used());
}

TEST_CASE("aggregation: k = 1 gives the bits of the bare rule", "[optimizers][aggregation]") {
  const auto run = [](const auto& recipe, double weight) {
    Variables<float> variables;
    const auto w = variables.add("w", Eigen::VectorXf::Ones(33));
    Local local{recipe, variables};
    for (int t = 1; t < 6; ++t) {
      local.set_gradient(w, Eigen::VectorXf::LinSpaced(33, -0.3F, 0.1F * static_cast<float>(t)));
      local.apply_gradients({.weight = 1 + weight * t});
    }
    return Eigen::VectorXf(local.value(w));
  };
  const Eigen::VectorXf bare = run(Adam{}, 0);
  CHECK(run(Adam{}, 0.1) == bare);
  CHECK(run(GradientAggregation<Adam>{Adam{}, {.grad_steps = 1}}, 0.1) == bare);
  for (const AggregationVariant variant :
       {AggregationVariant::own_counter, AggregationVariant::gpu, AggregationVariant::tpu,
        AggregationVariant::mlperf_v1, AggregationVariant::early, AggregationVariant::lingvo})
    CHECK(run(GradientAggregation<Adam>{Adam{}, {.grad_steps = 1, .variant = variant}}, 0) == bare);
  CHECK(run(GradientAggregation<Adam>{Adam{}, {.grad_steps = 1, .reduction = Reduction::sum}}, 0) == bare);
}

TEST_CASE("aggregation: a snapshot holds the open window", "[optimizers][aggregation]") {
  const auto recipe = GradientAggregation<Momentum>{Momentum{}, {.grad_steps = 3}};
  const auto step = [](auto& local, const auto& w, const auto& rows, int t) {
    if (t % 4 != 1) local.set_gradient(w, Eigen::VectorXf::Constant(20, 0.1F * static_cast<float>(t)));
    local.set_rows(rows, std::vector{t, 64}, Eigen::VectorXf::Constant(2, 0.3F));
    local.apply_gradients({.weight = 1.0 + t});
  };
  Variables<float> whole, again;
  const auto w = whole.add("w", Eigen::VectorXf::Ones(20)), w2 = again.add("w", Eigen::VectorXf::Zero(20));
  const auto rows = whole.add("rows", Eigen::VectorXf::Ones(70)),
             rows2 = again.add("rows", Eigen::VectorXf::Zero(70));
  Local first{recipe, whole};
  Local second{recipe, again};
  for (int stop = 1; stop < 14; ++stop) {
    step(first, w, rows, stop);
    second.restore(first.snapshot());
    CHECK(second.pending() == first.pending());
    CHECK(second.global_step() == first.global_step());
    for (int t = 20; t < 24; ++t) step(second, w2, rows2, t);
    const auto goes_on = first.snapshot();
    for (int t = 20; t < 24; ++t) step(first, w, rows, t);
    CHECK(first.value(w) == second.value(w2));
    CHECK(first.value(rows) == second.value(rows2));
    CHECK(first.slot("momentum", rows) == second.slot("momentum", rows2));
    first.restore(goes_on);
  }
}
