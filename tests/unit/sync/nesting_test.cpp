// SPDX-License-Identifier: MIT
// Gradient aggregation inside and around synchronous replicas.
#include "support/allocations.hpp"
#include "unit/sync/scene.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Model {
  Model()
      : w(variables.add("w", Eigen::VectorXf(Eigen::VectorXf::LinSpaced(5003, -1, 1)))),
        rows(variables.add("rows", Table(Table::Ones(70, 3)))) {}
  std::vector<float> bits() const { return {variables.flat().begin(), variables.flat().end()}; }
  Variables<float> variables;
  Handle<Eigen::VectorXf, float> w;
  Handle<Table, float> rows;
};

/// Micro-batch `number` of update `update`: its gradient depends on the variables too.
template <class O>
StepResult micro_batch(O& optimizer, const Model& model, std::int64_t update, std::int64_t number) {
  const auto x = static_cast<float>(update) * 0.7F + static_cast<float>(number) * 0.13F;
  if ((update + number) % 3 != 1)
    optimizer.set_gradient(model.w, x * optimizer.value(model.w) + Eigen::VectorXf::Constant(5003, 0.1F));
  optimizer.set_rows(model.rows, std::vector{number, Index{64}}, Table(Table::Constant(2, 3, x)));
  return optimizer.apply_gradients({.weight = 1.0 + 0.3 * static_cast<double>(number % 3)});
}

constexpr int k_updates = 3;

/// Every form of training whose updates consist of four micro-batches in the same order.
template <class R>
std::vector<std::pair<std::string, std::vector<float>>> four_forms(const R& rule) {
  std::vector<std::pair<std::string, std::vector<float>>> forms;
  const auto windows = [](auto& optimizer, const Model& model) {
    for (int update = 0; update < k_updates; ++update)
      for (int number = 0; number < 4; ++number) micro_batch(optimizer, model, update, number);
  };
  {
    Model model;
    Local local{GradientAggregation<R>{rule, {.grad_steps = 4}}, model.variables};
    windows(local, model);
    forms.emplace_back("Local<GA>", model.bits());
  }
  {
    Model model;
    GradientAggregation outer{Local{rule, model.variables}, {.grad_steps = 4}};
    outer.run([&](auto& replica) { windows(replica, model); });
    forms.emplace_back("GA<Local>", model.bits());
  }
  {
    Model model;
    SyncReplicas trainer{rule, model.variables, {.replicas_to_aggregate = 4}};
    trainer.run([&](auto& replica) {
      for (int update = 0; update < k_updates; ++update) micro_batch(replica, model, update, replica.index());
    });
    forms.emplace_back("N = 4", model.bits());
  }
  {
    Model model;
    SyncReplicas trainer{rule, model.variables, {.replicas_to_aggregate = 4, .total_num_replicas = 1}};
    trainer.run([&](auto& replica) { windows(replica, model); });
    forms.emplace_back("R = 4, N = 1", model.bits());
  }
  {
    Model model;
    SyncReplicas trainer{
        GradientAggregation<R>{rule, {.grad_steps = 4}}, model.variables, {.replicas_to_aggregate = 1}};
    trainer.run([&](auto& replica) { windows(replica, model); });
    forms.emplace_back("N = 1 of GA", model.bits());
  }
  {
    Model model;
    GradientAggregation outer{SyncReplicas{rule, model.variables, {.replicas_to_aggregate = 1}},
                              {.grad_steps = 4}};
    outer.run([&](auto& replica) { windows(replica, model); });
    forms.emplace_back("GA of N = 1", model.bits());
  }
  return forms;
}

template <class R>
void check_four_forms(const R& rule) {
  const auto forms = four_forms(rule);
  for (const auto& [name, bits] : forms) {
    INFO(name);
    CHECK(bits == forms.front().second);
  }
}

}  // namespace

TEST_CASE("nesting: four replicas or four micro-batches, all forms give the same bits",
          "[sync][nesting][thread]") {
  const Watchdog watchdog;
  check_four_forms(Sgd{.learning_rate = 0.1});
  check_four_forms(Adam{});
  check_four_forms(Lamb{});
  check_four_forms(PerVariable{
      AdamW{}, [](AdamW& rule, const VariableInfo& v) { rule.weight_decay = v.rank() > 1 ? 0.1 : 0; }});
}

TEST_CASE("nesting: around a trainer replicas exchange once per window", "[sync][nesting][thread]") {
  const Watchdog watchdog;
  Net<> net;
  GradientAggregation outer{SyncReplicas{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2}},
                            {.grad_steps = 3}};
  static_assert(Trainer<decltype(outer)>);
  std::array<std::vector<StepResult>, 2> results;
  outer.run([&](auto& replica) {
    static_assert(Optimizer<std::remove_cvref_t<decltype(replica)>>);
    for (int i = 0; i < 6; ++i)
      results[at(replica.index())].push_back(step(replica, net.w, (replica.index() + 1) * (i + 1)));
  });
  CHECK(outer.inner.stats(0).accepted == 2);
  CHECK(outer.global_step() == 2);
  for (const auto& of_one : results)
    for (int i = 0; i < 6; ++i) {
      CHECK(of_one[at(i)].status == (i % 3 == 2 ? Status::accepted : Status::accumulated));
      CHECK(of_one[at(i)].global_step == (i + 1) / 3);
      CHECK(of_one[at(i)].contributions == (i % 3 == 2 ? 2 : i % 3 + 1));
    }
  CHECK(-net.value() == Approx((1 + 2) / 2.0 * (2 + 5)).epsilon(1e-14));
}

TEST_CASE("nesting: inside a trainer replicas exchange every micro-batch", "[sync][nesting][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{
      GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 3}}, net.variables, {.replicas_to_aggregate = 2}};
  std::array<std::vector<StepResult>, 2> results;
  trainer.run([&](auto& replica) {
    for (int i = 0; i < 6; ++i)
      results[at(replica.index())].push_back(step(replica, net.w, (replica.index() + 1) * (i + 1)));
  });
  CHECK(trainer.stats(0).accepted == 6);
  for (const auto& of_one : results)
    for (int i = 0; i < 6; ++i) {
      CHECK(of_one[at(i)].status == (i % 3 == 2 ? Status::accepted : Status::accumulated));
      CHECK(of_one[at(i)].global_step == (i + 1) / 3);
      CHECK(of_one[at(i)].contributions == 2);
    }
  CHECK(-net.value() == Approx((1 + 2) / 2.0 * (2 + 5)).epsilon(1e-14));
  CHECK(trainer.slot_names() == std::vector<std::string>{"grad_accum"});
}

TEST_CASE("nesting: both at once", "[sync][nesting][thread]") {
  const Watchdog watchdog;
  Net<> net;
  GradientAggregation outer{
      SyncReplicas{
          GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 2}}, net.variables, {.replicas_to_aggregate = 2}},
      {.grad_steps = 3}};
  outer.run([&](auto& replica) {
    for (int i = 1; i <= 12; ++i) step(replica, net.w, i * (1 + 2 * replica.index()));
  });
  CHECK(outer.global_step() == 2);
  CHECK(-net.value() == Approx(2 * (3.5 + 9.5)).epsilon(1e-14));
}

TEST_CASE("nesting: weights travel through the window", "[sync][nesting][thread]") {
  const Watchdog watchdog;
  const auto check = [](auto&& make) {
    Net<> net;
    auto trainer = make(net.variables);
    trainer.run([&](auto& replica) {
      step(replica, net.w, 1 + replica.index(), {.weight = 1});
      step(replica, net.w, 10 + replica.index(), {.weight = 3.0 + 4 * replica.index()});
    });
    CHECK(-net.value() == Approx((1 * 1 + 3 * 10 + 1 * 2 + 7 * 11) / 12.0).epsilon(1e-14));
  };
  check([](auto& v) {
    return GradientAggregation{SyncReplicas{Sgd{1.0}, v, {.replicas_to_aggregate = 2}}, {.grad_steps = 2}};
  });
  check([](auto& v) {
    return SyncReplicas{
        GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 2}}, v, {.replicas_to_aggregate = 2}};
  });
}

TEST_CASE("nesting: sums in time and over replicas", "[sync][nesting][thread]") {
  const Watchdog watchdog;
  // Gradients (i + 1) * 10^t of replica i in micro-batch t: over replicas 3, in time 11.
  for (const Reduction in_time : {Reduction::mean, Reduction::sum})
    for (const Reduction over_replicas : {Reduction::mean, Reduction::sum}) {
      const double expected =
          33.0 / (in_time == Reduction::mean ? 2 : 1) / (over_replicas == Reduction::mean ? 2 : 1);
      const auto check = [&](auto&& make) {
        Net<> net;
        auto trainer = make(net.variables);
        trainer.run([&](auto& replica) {
          for (int window = 0; window < 2; ++window)
            for (int t = 0; t < 2; ++t) step(replica, net.w, (replica.index() + 1) * std::pow(10, t));
        });
        CHECK(-net.value() == Approx(2 * expected).epsilon(1e-14));
      };
      INFO("in time " << to_string(in_time) << ", over replicas " << to_string(over_replicas));
      const SyncOptions options{.replicas_to_aggregate = 2, .reduction = over_replicas};
      check([&](auto& v) {
        return GradientAggregation{SyncReplicas{Sgd{1.0}, v, options},
                                   {.grad_steps = 2, .reduction = in_time}};
      });
      check([&](auto& v) {
        return SyncReplicas{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 2, .reduction = in_time}}, v,
                            options};
      });
    }
}

TEST_CASE("nesting: with one replica a window is the same inside and outside, weights and all",
          "[sync][nesting]") {
  using enum AggregationVariant;
  for (const AggregationVariant variant : {own_counter, gpu, tpu, mlperf_v1, early, lingvo})
    for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
      if (variant != own_counter && reduction == Reduction::sum) continue;
      INFO("variant " << static_cast<int>(variant) << ", " << to_string(reduction));
      const AggregationOptions options{.grad_steps = 3, .reduction = reduction, .variant = variant};
      const auto run = [&](auto&& make) {
        Net<> net;
        auto trainer = make(net.variables);
        trainer.run([&](auto& replica) {
          for (int i = 1; i <= 6; ++i) step(replica, net.w, i * i, {.weight = 1.0 + i % 3});
        });
        return net.value();
      };
      const double inside = run([&](auto& v) {
        return Local{GradientAggregation<Sgd>{Sgd{1.0}, options}, v};
      });
      const double outside = run([&](auto& v) { return GradientAggregation{Local{Sgd{1.0}, v}, options}; });
      CHECK(inside == Approx(outside).epsilon(1e-14));
      CHECK(inside != 0);
    }
}

TEST_CASE("nesting: flush hands over what is there", "[sync][nesting][thread]") {
  const Watchdog watchdog;
  {
    Net<> net;
    GradientAggregation outer{SyncReplicas{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2}},
                              {.grad_steps = 4}};
    std::array<StepResult, 2> empty, partial;
    outer.run([&](auto& replica) {
      const auto i = at(replica.index());
      empty[i] = replica.flush();
      step(replica, net.w, 2);
      if (i == 1) step(replica, net.w, 8);
      partial[i] = replica.flush();
      step(replica, net.w, 1);
      step(replica, net.w, 3, {.flush = true});
    });
    for (const StepResult& result : empty) CHECK(result.status == Status::accumulated);
    for (const StepResult& result : partial) {
      CHECK(result.status == Status::accepted);
      CHECK(result.global_step == 1);
    }
    CHECK(-net.value() == Approx((2 + 2 + 8) / 3.0 + 2).epsilon(1e-14));  // each micro-batch counts the same
  }
  {
    Net<> net;
    SyncReplicas trainer{
        GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 4}}, net.variables, {.replicas_to_aggregate = 2}};
    std::array<StepResult, 2> results;
    trainer.run([&](auto& replica) {
      step(replica, net.w, 2);
      results[at(replica.index())] = step(replica, net.w, 8, {.flush = replica.index() == 1});
      step(replica, net.w, 7, {.flush = true});
    });
    for (const StepResult& result : results) {
      CHECK(result.status == Status::accepted);
      CHECK(result.global_step == 1);
    }
    CHECK(net.value() == -5 - 7);
  }
}

TEST_CASE("nesting: with N < R a window goes into each of a replica's contributions", "[sync][nesting]") {
  Net<> net(20);
  GradientAggregation outer{
      SyncReplicas{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 3, .total_num_replicas = 1}},
      {.grad_steps = 2}};
  auto replica = outer.join();
  double sum = 0;
  for (int i = 1; i <= 6; ++i) {
    sum += i * i;
    const StepResult result = step(replica, net.w, i * i);
    CHECK(result.status == (i % 2 == 0 ? Status::accepted : Status::accumulated));
    CHECK(result.round_open == (i == 2 || i == 4));
    CHECK(result.global_step == (i == 6));
  }
  CHECK(-net.value(19) == Approx(sum / 6).epsilon(1e-14));
}

TEST_CASE("nesting: a stale window is dropped whole and the next one starts empty", "[sync][nesting]") {
  Net<> net;
  GradientAggregation outer{
      SyncReplicas{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 1, .total_num_replicas = 2}},
      {.grad_steps = 2}};
  auto fast = outer.join(0), slow = outer.join(1);
  step(slow, net.w, 100);
  step(fast, net.w, 1);
  CHECK(step(fast, net.w, 3).status == Status::accepted);
  CHECK(step(slow, net.w, 100).status == Status::stale);
  CHECK(slow.pending() == 0);
  step(slow, net.w, 5);
  CHECK(step(slow, net.w, 7).status == Status::accepted);
  CHECK(net.value() == -2 - 6);
}

TEST_CASE("nesting: the window of a replica can be read and is zero when closed", "[sync][nesting]") {
  Model model;
  GradientAggregation outer{SyncReplicas{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 1}},
                            {.grad_steps = 3}};
  auto replica = outer.join();
  CHECK(replica.slot_names() == std::vector<std::string>{"grad_accum"});
  CHECK((replica.slot("grad_accum", model.w).array() == 0).all());
  replica.set_gradient(model.w, Eigen::VectorXf::Constant(5003, 2));
  replica.apply_gradients();
  replica.set_rows(model.rows, std::vector{3}, Table(Table::Constant(1, 3, 5)));
  replica.apply_gradients();
  CHECK(replica.pending() == 2);
  CHECK((replica.slot("grad_accum", model.w).array() == 2).all());
  CHECK(replica.slot("grad_accum", model.rows).row(3) == Table::Constant(1, 3, 5));
  CHECK(replica.slot("grad_accum", model.rows).row(4) == Table::Zero(1, 3));
  replica.flush();
  CHECK((replica.slot("grad_accum", model.w).array() == 0).all());
  CHECK((replica.slot("grad_accum", model.rows).array() == 0).all());
  CHECK(model.variables.value(model.w)[5002] == 1 - 1);
}

TEST_CASE("nesting: k may change and follow a schedule around a trainer", "[sync][nesting]") {
  Net<> net;
  GradientAggregation outer{Local{Sgd{1.0}, net.variables},
                            {.grad_steps = [](std::int64_t updates) { return updates + 1; }}};
  outer.run([&](auto& replica) {
    for (int k = 1; k <= 3; ++k)
      for (int i = 1; i <= k; ++i) CHECK((step(replica, net.w, i).status == Status::accepted) == (i == k));
    replica.set_grad_steps(2);
    step(replica, net.w, 1);
    replica.set_grad_steps(1);
    CHECK(step(replica, net.w, 2).status == Status::accepted);
    CHECK_THROWS_AS(replica.set_grad_steps(0), InvalidArgument);
  });
  CHECK(net.value() == -(1 + 1.5 + 2) - 1.5);
  Net<> other;
  GradientAggregation senseless{Local{Sgd{}, other.variables}, {.grad_steps = 0}};
  CHECK_THROWS_AS(senseless.join(), InvalidArgument);
}

TEST_CASE("nesting: micro-batches that are not finite do not enter the window", "[sync][nesting]") {
  Net<> net;
  GradientAggregation outer{Local{Sgd{1.0}, net.variables},
                            {.grad_steps = 2, .non_finite = NonFinite::skip_contribution}};
  outer.run([&](auto& replica) {
    CHECK(step(replica, net.w, std::nan("")).status == Status::skipped);
    CHECK(step(replica, net.w, 2).status == Status::accumulated);
    CHECK(step(replica, net.w, std::numeric_limits<double>::infinity()).status == Status::skipped);
    CHECK(step(replica, net.w, 4).status == Status::accepted);
    CHECK(replica.sequence() == 4);
  });
  CHECK(net.value() == -3);
}

TEMPLATE_TEST_CASE("nesting: 16-bit gradients are summed wide in every form", "[sync][nesting][thread]",
                   Eigen::half, Eigen::bfloat16) {
  const Watchdog watchdog;
  const double large = std::is_same_v<TestType, Eigen::half> ? 2048 : 256;
  const auto gradient = [&](int number) { return number == 0 ? large : 1; };
  const double expected = (large + 7) / 8;
  {
    Net<float, TestType> net(37);
    SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 8}};
    trainer.run([&](auto& replica) { step(replica, net.w, gradient(replica.index())); });
    CHECK(static_cast<double>(net.value(36)) == -expected);
  }
  {
    Net<float, TestType> net(37);
    SyncReplicas trainer{
        GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 4}}, net.variables, {.replicas_to_aggregate = 2}};
    trainer.run([&](auto& replica) {
      for (int i = 0; i < 4; ++i) step(replica, net.w, gradient(2 * i + replica.index()));
    });
    CHECK(static_cast<double>(net.value(36)) == -expected);
  }
  {
    // Here each replica's mean is rounded once, when it is handed over.
    Net<float, TestType> net(37);
    GradientAggregation outer{SyncReplicas{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2}},
                              {.grad_steps = 4}};
    outer.run([&](auto& replica) {
      for (int i = 0; i < 4; ++i) step(replica, net.w, gradient(i + 4 * replica.index()));
    });
    const auto rounded =
        static_cast<double>(static_cast<float>(static_cast<TestType>(static_cast<float>((large + 3) / 4))));
    CHECK(static_cast<double>(net.value(36)) == -(rounded + 1) / 2);
  }
}

TEST_CASE("nesting: around a trainer a steady window allocates nothing, and k = 1 nothing at all",
          "[sync][nesting]") {
  const auto allocated = [](int k, int first, int last) {
    Model model;
    GradientAggregation outer{SyncReplicas{Adam{}, model.variables, {.replicas_to_aggregate = 1}},
                              {.grad_steps = k}};
    auto replica = outer.join();
    const std::vector<int> indices{1, 64};
    const Table rows = Table::Ones(2, 3);
    std::uint64_t before = 0;
    for (int t = 0; t < last; ++t) {
      if (t == first) before = allocations();
      replica.gradient(model.w).setConstant(1);
      if (t % 2 == 0) replica.set_rows(model.rows, indices, rows);
      replica.apply_gradients();
    }
    return allocations() - before;
  };
  CHECK(allocated(4, 8, 24) == 0);
  CHECK(allocated(1, 2, 10) == 0);
}

#if defined(__SSE__)
TEST_CASE("nesting: a replica that flushes denormals changes no bit", "[sync][nesting]") {
  const unsigned usual = _mm_getcsr();
  const auto run = [&](unsigned mode) {
    Net<float> net(40);
    GradientAggregation outer{
        SyncReplicas{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .total_num_replicas = 1}},
        {.grad_steps = 3}};
    auto replica = outer.join();
    const std::array<float, 3> tiny{1e-40F, 3e-40F, 2e-41F};
    for (int i = 0; i < 6; ++i) {
      _mm_setcsr(usual | mode);
      std::fill_n(replica.gradient(net.w).data(), 40, tiny[at(i % 3)]);
      replica.apply_gradients();
      _mm_setcsr(usual);
    }
    return VectorOf<float>(net.variables.value(net.w));
  };
  const auto bits = run(0);
  CHECK(bits[0] != 0);
  CHECK((run(0x8040).array() == bits.array()).all());
}
#endif
