// SPDX-License-Identifier: MIT
// Section B of the reports: gradient accumulation.
#include "reports/scenario.hpp"
#include "support/allocations.hpp"

#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <span>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOCKSTEP_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LOCKSTEP_TEST_SANITIZED 1
#endif
#endif
#if defined(LOCKSTEP_TEST_SANITIZED)
#include <sanitizer/allocator_interface.h>
#elif defined(__GLIBC__)
#include <malloc.h>
#endif

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Feeds the gradients, one micro-batch each, and returns the value after each of them.
template <class Trainer, class W>
std::vector<double> feed(Trainer& trainer, const W& w, std::span<const double> gradients,
                         std::span<const double> weights = {}) {
  std::vector<double> values;
  trainer.run([&](auto& replica) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      step(replica, w, gradients[i], {.weight = weights.empty() ? 1 : weights[i]});
      values.push_back(static_cast<double>(replica.value(w)[0]));
    }
  });
  return values;
}
template <class Trainer, class W>
std::vector<double> feed(Trainer& trainer, const W& w, std::initializer_list<double> gradients,
                         std::initializer_list<double> weights = {}) {
  return feed(trainer, w, std::span(gradients.begin(), gradients.size()),
              std::span(weights.begin(), weights.size()));
}

/// Plain descent with decoupled weight decay, as a user would write it.
struct DecayedSgd {
  Schedule learning_rate = 0.1;
  double decay = 0.1;
  static constexpr std::array<Slot, 0> slots{};
  struct Step {
    double rate, decay;
  };
  Step prepare(const StepInfo& info) const {
    const double rate = learning_rate(info);
    return {rate, rate * decay};
  }
  void update(const Step& s, auto& w, auto g) const { w -= s.rate * g + s.decay * w; }
};

/// w becomes minus the gradient, whatever it was.
struct Replace {
  static constexpr std::array<Slot, 0> slots{};
  void update(const StepInfo&, auto& w, auto g) const { w = -1.0 * g; }
};

/// A rate that counts how often it is asked for: once per update, and over a segment a few times when the
/// trainer is made, so the count begins after that.
Schedule counting(std::atomic<int>& calls, double rate) {
  return Schedule([&calls, rate](std::int64_t) {
    ++calls;
    return rate;
  });
}

constexpr double k_infinity = std::numeric_limits<double>::infinity();
constexpr double k_nan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("BR-020: micro-batches are weighted by what is in them", "[reports][BR-020]") {
  struct Case {
    std::vector<double> gradients, weights;
    double mean;
  };
  for (const auto& [gradients, weights, mean] :
       {Case{{1, 3}, {2, 6}, 2.5}, Case{{1, 3}, {1, 1}, 2}, Case{{1, 3}, {7, 7}, 2}, Case{{1, 3}, {}, 2},
        Case{{1, 3}, {0.25, 0.75}, 2.5}, Case{{8, 4, 0}, {1, 2, 5}, 2}, Case{{6, 0, 0, 0}, {3, 1, 1, 1}, 3},
        Case{{5}, {17}, 5}})
    with_each_aggregation(
        Sgd{1.0}, {.grad_steps = gradients.size()},
        [&, gradients = gradients, weights = weights, mean = mean](const char* form, auto make) {
          INFO(form << ", expected mean " << mean);
          Model<> model;
          auto trainer = make(model.variables);
          const auto values = feed(trainer, model.w, gradients, weights);
          for (std::size_t i = 0; i + 1 < values.size(); ++i) CHECK(values[i] == 0);
          CHECK(values.back() == -mean);
        });
}

TEST_CASE("BR-022: an incomplete window is divided by what was added to it", "[reports][BR-022]") {
  SECTION("flush() after the last micro-batch") {
    const auto check = [](const char* form, auto make) {
      INFO(form);
      for (const int steps : {10, 9, 11, 12, 3}) {
        Model<> model;
        auto trainer = make(model.variables);
        double before_flush = 0;
        StepResult flushed, empty;
        trainer.run([&](auto& replica) {
          for (int i = 0; i < steps; ++i) step(replica, model.w, 1);
          before_flush = replica.value(model.w)[0];
          flushed = replica.flush();
          empty = replica.flush();
        });
        CHECK(before_flush == -(steps / 4));
        CHECK(model.value() == -((steps + 3) / 4));
        CHECK(flushed.global_step == (steps + 3) / 4);
        if (steps % 4 != 0) {
          CHECK(flushed.status == Status::accepted);
        }
        CHECK(empty.global_step == flushed.global_step);
        CHECK(empty.status == Status::accumulated);
      }
    };
    const AggregationOptions options{.grad_steps = 4};
    check("Local<GradientAggregation>", [&](auto& variables) {
      return Local{GradientAggregation<Sgd>{Sgd{1.0}, options}, variables};
    });
    check("GradientAggregation<Local>", [&](auto& variables) {
      return GradientAggregation{Local{Sgd{1.0}, variables}, options};
    });
    check("GradientAggregation<SyncReplicas>", [&](auto& variables) {
      return GradientAggregation{SyncReplicas{Sgd{1.0}, variables, {.replicas_to_aggregate = 1}}, options};
    });
  }
  SECTION("the flush option with the last micro-batch") {
    with_each_aggregation(Sgd{1.0}, {.grad_steps = 4}, [](const char* form, auto make) {
      INFO(form);
      Model<> model;
      auto trainer = make(model.variables);
      StepResult last;
      trainer.run([&](auto& replica) {
        for (int i = 0; i < 9; ++i) step(replica, model.w, 1);
        last = step(replica, model.w, 3, {.flush = true});
      });
      CHECK(last.status == Status::accepted);
      CHECK(last.global_step == 3);
      CHECK(model.value() == -4);  // 1, 1, and the mean of 1 and 3
    });
  }
  SECTION("weights are part of the divisor") {
    with_each_aggregation(Sgd{1.0}, {.grad_steps = 4}, [](const char* form, auto make) {
      INFO(form);
      Model<> model;
      auto trainer = make(model.variables);
      trainer.run([&](auto& replica) {
        step(replica, model.w, 1, {.weight = 2});
        step(replica, model.w, 3, {.weight = 6, .flush = true});
      });
      CHECK(model.value() == -2.5);
    });
  }
}

TEST_CASE("BR-024: a window ends after k micro-batches, not with an epoch", "[reports][BR-024]") {
  for (const auto& sizes : {std::array{8, 3, 3}, {8, 1, 3}, {4, 5, 3}, {5, 4, 1}}) {
    const int k = sizes[0], epochs = sizes[1], length = sizes[2];
    const int steps = epochs * length;
    INFO("k " << k << ", " << epochs << " epochs of " << length);
    {
      Model<> model;
      Local trainer{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = k}}, model.variables};
      for (int epoch = 0; epoch < epochs; ++epoch)
        trainer.run([&](auto& replica) {
          for (int i = 0; i < length; ++i) step(replica, model.w, 1);
        });
      CHECK(model.value() == -(steps / k));
      CHECK(trainer.global_step() == steps / k);
      CHECK(trainer.pending() == steps % k);
      CHECK(trainer.sequence() == steps);
      CHECK(trainer.slot("grad_accum", model.w)[0] == steps % k);
    }
    {
      // The window belongs to the trainer, so it outlives the loops.
      Model<> model;
      SyncReplicas trainer{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = k}},
                           model.variables,
                           {.replicas_to_aggregate = 2}};
      for (int epoch = 0; epoch < epochs; ++epoch)
        trainer.run([&](auto& replica) {
          for (int i = 0; i < length; ++i) step(replica, model.w, 1);
        });
      CHECK(model.value() == -(steps / k));
      CHECK(trainer.slot("grad_accum", model.w)[0] == 2 * (steps % k));
    }
    {
      // The window belongs to the replica.
      Model<> model;
      GradientAggregation trainer{SyncReplicas{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 1}},
                                  {.grad_steps = k}};
      std::int64_t pending = -1;
      trainer.run([&](auto& replica) {
        for (int epoch = 0; epoch < epochs; ++epoch)
          for (int i = 0; i < length; ++i) step(replica, model.w, 1);
        pending = replica.pending();
      });
      CHECK(model.value() == -(steps / k));
      CHECK(pending == steps % k);
    }
  }
}

TEST_CASE("BR-025: weight decay acts once per update", "[reports][BR-025]") {
  SECTION("a rule with decoupled decay") {
    with_each_aggregation(DecayedSgd{}, {.grad_steps = 3}, [](const char* form, auto make) {
      INFO(form);
      Model<> model(1);
      auto trainer = make(model.variables);
      const auto values = feed(trainer, model.w, {1, 2, 3});
      CHECK(values[0] == 1);
      CHECK(values[1] == 1);
      CHECK(values[2] == Approx(0.79).epsilon(1e-15));
    });
  }
  SECTION("AdamW: the bits of the plain optimizer with the mean") {
    const AdamW rule{.learning_rate = 0.1, .weight_decay = 0.1};
    Model<> plain(1);
    {
      Local optimizer{rule, plain.variables};
      for (const double gradient : {2.0, -1.0}) step(optimizer, plain.w, gradient);
    }
    with_each_aggregation(rule, {.grad_steps = 4}, [&](const char* form, auto make) {
      INFO(form);
      Model<> model(1);
      auto trainer = make(model.variables);
      feed(trainer, model.w, {1, 2, 3, 2, 0, -4, 2, -2});
      CHECK(bits(model.value()) == bits(plain.value()));
    });
  }
}

TEST_CASE("BR-027: a schedule sees applied updates only", "[reports][BR-027]") {
  const Watchdog watchdog;
  const auto rate = [](std::int64_t updates) { return 0.1 / (1 + static_cast<double>(updates)); };
  for (const auto& sizes : {std::array{4, 2}, {1, 2}, {4, 1}, {2, 3}, {8, 4}}) {
    const int k = sizes[0], n = sizes[1];
    double expected = 0;
    for (int u = 0; u < 8 / k; ++u) expected -= 0.1 / (1 + u);
    with_both_nestings(Sgd{Schedule(rate)}, {.grad_steps = k}, {.replicas_to_aggregate = n},
                       [&](const char* form, auto make) {
                         INFO(form << ", k " << k << ", N " << n);
                         Model<> model;
                         auto trainer = make(model.variables);
                         std::vector<double> seen(at(n));
                         trainer.run([&](auto& replica) {
                           for (int i = 0; i < 8; ++i) step(replica, model.w, 1);
                           seen[at(replica.index())] = replica.value(model.w)[0];
                         });
                         for (const double value : seen) CHECK(value == Approx(expected).epsilon(1e-14));
                         CHECK(model.value() == Approx(expected).epsilon(1e-14));
                       });
  }
}

TEST_CASE("BR-028: sums of 16-bit gradients are formed in the scalar of the variables", "[reports][BR-028]") {
  const Watchdog watchdog;

  SECTION("bfloat16: 256 and 256 ones") {
    using G = Eigen::bfloat16;
    std::vector<double> gradients(257, 1.0);
    gradients[0] = 256;
    {
      Model<float, G> model;
      Local trainer{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 257}}, model.variables};
      feed(trainer, model.w, gradients);
      CHECK(model.value() == Approx(-512.0 / 257).epsilon(1e-6));
    }
    {
      // Handed over as bfloat16, rounded once.
      Model<float, G> model;
      GradientAggregation trainer{Local{Sgd{1.0}, model.variables}, {.grad_steps = 257}};
      feed(trainer, model.w, gradients);
      CHECK(model.value() == -1.9921875F);
    }
    {
      Model<float, G> model;
      GradientAggregation trainer{SyncReplicas{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 1}},
                                  {.grad_steps = 257}};
      feed(trainer, model.w, gradients);
      CHECK(model.value() == -1.9921875F);
    }
    {
      // All of one round from one replica.
      Model<float, G> model;
      SyncReplicas trainer{
          Sgd{1.0}, model.variables, {.replicas_to_aggregate = 257, .total_num_replicas = 1}};
      feed(trainer, model.w, gradients);
      CHECK(trainer.global_step() == 1);
      CHECK(model.value() == Approx(-512.0 / 257).epsilon(1e-6));
    }
    {
      Model<float, G> model;
      Local trainer{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 257, .reduction = Reduction::sum}},
                    model.variables};
      feed(trainer, model.w, gradients);
      CHECK(model.value() == -512.0F);
    }
  }
  SECTION("half: 2048 and ones") {
    using G = Eigen::half;
    std::vector<double> gradients(1025, 1.0);
    gradients[0] = 2048;
    Model<float, G> model;
    Local trainer{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 1025, .reduction = Reduction::sum}},
                  model.variables};
    feed(trainer, model.w, gradients);
    CHECK(model.value() == -3072.0F);  // in half 2048 + 1 = 2048
  }
  SECTION("between replicas, and a replica that contributes several times") {
    for (const int n : {4, 2}) {
      Model<float, Eigen::bfloat16> model;
      SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 4, .total_num_replicas = n}};
      trainer.run([&](auto& replica) {
        while (replica.global_step() < 1)
          step(replica, model.w, replica.index() == 0 && replica.sequence() == 0 ? 256 : 1);
      });
      INFO("N " << n);
      // Sum 259; a second contribution of one replica is merged into the first one's memory, where 257 rounds
      // to 256.
      CHECK(model.value() == (n == 4 ? -64.75F : -64.5F));
    }
  }
}

TEST_CASE("BR-030: an infinite gradient does not reach the next window", "[reports][BR-030]") {
  for (const double bad : {k_infinity, -k_infinity, k_nan})
    for (const bool first : {true, false}) {
      INFO("bad gradient " << bad << (first ? " first" : " second"));
      with_each_aggregation(Replace{}, {.grad_steps = 2}, [&](const char* form, auto make) {
        INFO(form);
        Model<> model;
        auto trainer = make(model.variables);
        const auto values = feed(trainer, model.w, {first ? bad : 1, first ? 1 : bad, 1, 3});
        CHECK(!std::isfinite(values[1]));
        CHECK(values[3] == -2);
      });
    }
  SECTION("row by row") {
    Variables<double> variables;
    using Table = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const auto table = variables.add("table", Table::Zero(4, 2));
    Local trainer{GradientAggregation<Replace>{Replace{}, {.grad_steps = 2}}, variables};
    const auto feed_row = [&](int row, double gradient) {
      trainer.set_rows(table, std::vector{row}, Table::Constant(1, 2, gradient));
      trainer.apply_gradients();
    };
    feed_row(1, k_infinity);
    feed_row(2, 1);
    feed_row(1, 1);
    feed_row(1, 3);
    CHECK(trainer.value(table)(1, 0) == -2);
    CHECK(trainer.value(table)(0, 0) == 0);
  }
  SECTION("with a limit of the norm") {
    Model<> model;
    Local trainer{
        GradientAggregation<Replace>{Replace{}, {.grad_steps = 2}}, model.variables, {.clip_norm = 1.5}};
    const auto values = feed(trainer, model.w, {k_infinity, 1, 1, 1, 4, 4});
    CHECK(values[3] == -1);
    CHECK(values[5] == -1.5);
  }
}

TEMPLATE_TEST_CASE("BR-033: a skipped update leaves everything as it was", "[reports][BR-033]", float,
                   double) {
  const Watchdog watchdog;
  constexpr double epsilon = std::is_same_v<TestType, float> ? 1e-6 : 1e-15;
  const auto check = [&](const char* form, auto make, int k) {
    INFO(form);
    for (const double bad : {k_nan, k_infinity, -k_infinity}) {
      Model<TestType> model(0, 37);
      std::atomic<int> calls = 0;
      auto trainer = make(Momentum{.learning_rate = counting(calls, 0.1), .momentum = 0.9}, model.variables);
      calls = 0;
      std::vector<TestType> w, velocity;
      std::vector<StepResult> results;
      trainer.run([&](auto& replica) {
        for (const double gradient : {1.0, bad, 1.0}) {
          StepResult result;
          for (int micro = 0; micro < k; ++micro) {
            replica.gradient(model.w).setOnes();
            // One bad element in the last of 37.
            if (!std::isfinite(gradient) && replica.index() == 0)
              replica.gradient(model.w)[36] = static_cast<TestType>(gradient);
            result = replica.apply_gradients();
          }
          if (replica.index() != 0) continue;
          results.push_back(result);
          w.push_back(replica.value(model.w)[36]);
          velocity.push_back(replica.slot("momentum", model.w)[36]);
        }
      });
      CHECK(static_cast<double>(w[0]) == Approx(-0.1).epsilon(epsilon));
      CHECK(bits(w[1]) == bits(w[0]));
      CHECK(static_cast<double>(w[2]) == Approx(-0.29).epsilon(epsilon));
      CHECK(velocity[0] == 1);
      CHECK(bits(velocity[1]) == bits(velocity[0]));
      CHECK(static_cast<double>(velocity[2]) == Approx(1.9).epsilon(epsilon));
      CHECK(results[0].status == Status::accepted);
      CHECK(results[1].status == Status::skipped);
      CHECK(results[1].global_step == 1);
      CHECK(results[1].culprit == 0);
      CHECK(results[2].status == Status::accepted);
      CHECK(results[2].global_step == 2);
      CHECK(calls == 2);
    }
  };
  check(
      "Local",
      [](const Momentum& rule, auto& variables) {
        return Local{rule, variables, {.non_finite = NonFinite::skip_update}};
      },
      1);
  for (const int n : {1, 2, 3})
    check(
        "SyncReplicas",
        [n](const Momentum& rule, auto& variables) {
          return SyncReplicas{
              rule, variables, {.replicas_to_aggregate = n, .non_finite = NonFinite::skip_update}};
        },
        1);
}

TEST_CASE("BR-033: a bad micro-batch is left out of its window", "[reports][BR-033]") {
  const auto check = [](const char* form, auto make) {
    INFO(form);
    Model<> model;
    auto trainer = make(model.variables);
    std::vector<Status> statuses;
    trainer.run([&](auto& replica) {
      for (const double gradient : {1.0, k_nan, 3.0})
        statuses.push_back(step(replica, model.w, gradient).status);
    });
    CHECK(statuses == std::vector{Status::accumulated, Status::skipped, Status::accepted});
    CHECK(model.value() == -2);
  };
  const AggregationOptions options{.grad_steps = 2, .non_finite = NonFinite::skip_contribution};
  check("Local<GradientAggregation>", [&](auto& variables) {
    return Local{GradientAggregation<Sgd>{Sgd{1.0}, options}, variables};
  });
  check("GradientAggregation<Local>", [&](auto& variables) {
    return GradientAggregation{Local{Sgd{1.0}, variables}, options};
  });
  check("GradientAggregation<SyncReplicas>", [&](auto& variables) {
    return GradientAggregation{SyncReplicas{Sgd{1.0}, variables, {.replicas_to_aggregate = 1}}, options};
  });
}

TEST_CASE("BR-034: both nestings have one boundary and one normalisation", "[reports][BR-034]") {
  const Watchdog watchdog;

  SECTION("every combination of mean and sum") {
    constexpr std::array<std::array<double, 2>, 2> gradient{{{1, 3}, {5, 7}}};
    for (const auto over_time : {Reduction::mean, Reduction::sum})
      for (const auto over_replicas : {Reduction::mean, Reduction::sum}) {
        const double expected =
            16.0 / (over_time == Reduction::mean ? 2 : 1) / (over_replicas == Reduction::mean ? 2 : 1);
        with_both_nestings(Sgd{1.0}, {.grad_steps = 2, .reduction = over_time},
                           {.replicas_to_aggregate = 2, .reduction = over_replicas},
                           [&](const char* form, auto make) {
                             INFO(form << ", " << to_string(over_time) << " over time, "
                                       << to_string(over_replicas) << " over replicas");
                             Model<> model;
                             auto trainer = make(model.variables);
                             trainer.run([&](auto& replica) {
                               for (const double g : gradient[at(replica.index())]) step(replica, model.w, g);
                             });
                             CHECK(model.value() == -expected);
                             CHECK(trainer.global_step() == 1);
                           });
      }
  }
  SECTION("other sizes") {
    for (const auto& [n, k] : {std::array{4, 3}, {1, 4}, {3, 1}, {2, 5}})
      with_both_nestings(Sgd{1.0}, {.grad_steps = k}, {.replicas_to_aggregate = n},
                         [&, n = n, k = k](const char* form, auto make) {
                           INFO(form << ", N " << n << ", k " << k);
                           Model<> model;
                           auto trainer = make(model.variables);
                           trainer.run([&](auto& replica) {
                             for (int i = 0; i < 2 * k; ++i) step(replica, model.w, replica.index() + i);
                           });
                           // Two windows; the mean over both is (N - 1) / 2 + (2k - 1) / 2.
                           CHECK(model.value() == Approx(-(n - 1 + 2 * k - 1)).epsilon(1e-14));
                           CHECK(trainer.global_step() == 2);
                         });
  }
  SECTION("weights: the gradient of the big batch") {
    with_both_nestings(
        Sgd{1.0}, {.grad_steps = 2}, {.replicas_to_aggregate = 2}, [&](const char* form, auto make) {
          INFO(form);
          Model<> model;
          auto trainer = make(model.variables);
          // 4 samples of 1, 1 of 6; 2 of 9, 3 of 4: (4 + 6 + 18 + 12) / 10
          constexpr std::array<std::array<double, 2>, 2> g{{{1, 6}, {9, 4}}}, weight{{{4, 1}, {2, 3}}};
          trainer.run([&](auto& replica) {
            const std::size_t i = at(replica.index());
            for (const std::size_t m : {0U, 1U}) step(replica, model.w, g[i][m], {.weight = weight[i][m]});
          });
          CHECK(model.value() == Approx(-4).epsilon(1e-15));
        });
  }
  SECTION("exchanges: one per window, or one per micro-batch") {
    Model<> inside, outside;
    SyncReplicas per_micro_batch{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 2}},
                                 inside.variables,
                                 {.replicas_to_aggregate = 2}};
    GradientAggregation per_window{SyncReplicas{Sgd{1.0}, outside.variables, {.replicas_to_aggregate = 2}},
                                   {.grad_steps = 2}};
    const auto run = [](auto& trainer, const auto& w) {
      trainer.run([&](auto& replica) {
        for (int i = 0; i < 2; ++i) step(replica, w, 1);
      });
    };
    run(per_micro_batch, inside.w);
    run(per_window, outside.w);
    for (const int i : {0, 1}) {
      CHECK(per_micro_batch.stats(i).accepted == 2);
      CHECK(per_window.inner.stats(i).accepted == 1);
    }
  }
}

TEST_CASE("BR-035: exchanges happen at boundaries only, clipping included", "[reports][BR-035]") {
  const Watchdog watchdog;
  for (const auto& sizes : {std::array{2, 40, 2}, {3, 7, 3}, {1, 40, 2}}) {
    const int n = sizes[0], k = sizes[1], windows = sizes[2];
    INFO("N " << n << ", k " << k);
    Model<> model(0, 2);
    std::atomic<int> updates = 0;
    GradientAggregation trainer{
        SyncReplicas{
            Sgd{1.0},
            model.variables,
            {.replicas_to_aggregate = n,
             .clip_norm = 1,
             .hooks = {.after_update = [&](const UpdateInfo& info) { updates += info.contributions; }}}},
        {.grad_steps = k}};
    std::vector<std::int64_t> submits(at(n));
    trainer.run([&](auto& replica) {
      for (int i = 0; i < windows * k; ++i) {
        replica.set_gradient(model.w, Eigen::Vector2d(3, 4));
        replica.apply_gradients();
      }
      submits[at(replica.index())] = replica.sequence();
    });
    CHECK(trainer.global_step() == windows);
    CHECK(updates == windows * n);
    for (int i = 0; i < n; ++i) {
      CHECK(submits[at(i)] == windows * k);
      CHECK(trainer.inner.stats(i).accepted == windows);  // exchanges
    }
    CHECK(model.variables.value(model.w)[0] == Approx(-0.6 * windows).epsilon(1e-14));
    CHECK(model.variables.value(model.w)[1] == Approx(-0.8 * windows).epsilon(1e-14));
  }
}

TEST_CASE("BR-036: row-sparse gradients accumulate as rows", "[reports][BR-036]") {
  const Watchdog watchdog;
  using Table = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const auto rows = [](double a, double b) {
    Table table(2, 2);
    table << a, a, b, b;
    return table;
  };
  for (const double initial : {0.0, 0.1})
    with_each_aggregation(Momentum{.learning_rate = 1.0, .momentum = 0.9}, {.grad_steps = 2},
                          [&](const char* form, auto make) {
                            INFO(form << ", initial " << initial);
                            Variables<double> variables;
                            const auto table = variables.add("table", Table::Constant(5, 2, initial));
                            auto trainer = make(variables);
                            Table momentum;
                            trainer.run([&](auto& replica) {
                              replica.set_rows(table, std::vector{0, 2}, rows(1, 2));
                              replica.apply_gradients();
                              replica.set_rows(table, std::vector{2, 4}, rows(3, 4));
                              replica.apply_gradients();
                              momentum = replica.slot("momentum", table);
                            });
                            const auto value = variables.value(table);
                            constexpr std::array update{0.5, 0.0, 2.5, 0.0, 2.0};
                            for (const int row : {0, 1, 2, 3, 4})
                              for (const int column : {0, 1}) {
                                CHECK(value(row, column) == initial - update[at(row)]);
                                CHECK(bits(momentum(row, column)) == bits(update[at(row)]));
                              }
                            for (const int row : {1, 3}) CHECK(bits(value(row, 0)) == bits(initial));

                            // The next window moves only its own rows, although others have momentum now.
                            trainer.run([&](auto& replica) {
                              replica.set_rows(table, std::vector{2}, Table::Ones(1, 2));
                              replica.apply_gradients();
                              replica.set_rows(table, std::vector{2}, Table::Ones(1, 2));
                              replica.apply_gradients();
                            });
                            CHECK(value(0, 0) == initial - 0.5);
                            CHECK(value(2, 1) == Approx(initial - 2.5 - (0.9 * 2.5 + 1)).epsilon(1e-15));
                            CHECK(value(4, 1) == initial - 2.0);
                          });
}

TEST_CASE("BR-041: the mean of the micro-batches by default, their sum on request", "[reports][BR-041]") {
  for (const auto& [k, gradient] : {std::pair{8, 0.5}, {1, 0.5}, {3, 2.0}, {100, -0.25}})
    for (const auto reduction : {Reduction::mean, Reduction::sum})
      with_each_aggregation(
          Sgd{0.1}, {.grad_steps = k, .reduction = reduction},
          [&, k = k, gradient = gradient](const char* form, auto make) {
            INFO(form << ", k " << k << ", " << to_string(reduction));
            Model<> model;
            auto trainer = make(model.variables);
            feed(trainer, model.w, std::vector(static_cast<std::size_t>(k), gradient));
            CHECK(model.value() ==
                  Approx(-0.1 * gradient * (reduction == Reduction::sum ? k : 1)).epsilon(1e-14));
          });
}

TEST_CASE("BR-042: the limit of the norm acts once, on the aggregated gradient", "[reports][BR-042]") {
  const Watchdog watchdog;
  const auto feed_both = [](auto& trainer, const auto& w) {
    trainer.run([&](auto& replica) {
      replica.set_gradient(w, Eigen::Vector2d(3, 0));
      replica.apply_gradients();
      replica.set_gradient(w, Eigen::Vector2d(0, 4));
      replica.apply_gradients();
    });
  };
  const auto check = [&](const char* form, double x, double y, auto make) {
    INFO(form);
    Model<> model(0, 2);
    auto trainer = make(model.variables);
    feed_both(trainer, model.w);
    const auto w = model.variables.value(model.w);
    CHECK(w[0] == Approx(-x).epsilon(1e-14));
    CHECK(w[1] == Approx(-y).epsilon(1e-14));
  };
  const AggregationOptions two{.grad_steps = 2};
  const auto recipe = GradientAggregation<Sgd>{Sgd{1.0}, two};
  check("Local<GradientAggregation>", 0.6, 0.8, [&](auto& v) { return Local{recipe, v, {.clip_norm = 1}}; });
  check("GradientAggregation<Local>", 0.6, 0.8, [&](auto& v) {
    return GradientAggregation{Local{Sgd{1.0}, v, {.clip_norm = 1}}, two};
  });
  for (const int n : {1, 2}) {
    const SyncOptions sync{.replicas_to_aggregate = n, .clip_norm = 1};
    check("SyncReplicas<GradientAggregation>", 0.6, 0.8, [&](auto& v) {
      return SyncReplicas{recipe, v, sync};
    });
    check("GradientAggregation<SyncReplicas>", 0.6, 0.8, [&](auto& v) {
      return GradientAggregation{SyncReplicas{Sgd{1.0}, v, sync}, two};
    });
  }
  check("below the limit", 1.5, 2.0, [&](auto& v) { return Local{recipe, v, {.clip_norm = 2.5}}; });
  check("each contribution, by an option of its own", 0.5, 0.5, [&](auto& v) {
    return SyncReplicas{recipe, v, {.replicas_to_aggregate = 1, .clip_contribution_norm = 1}};
  });
  check("both limits", 0.3, 0.4, [&](auto& v) {
    return GradientAggregation{
        SyncReplicas{
            Sgd{1.0}, v, {.replicas_to_aggregate = 1, .clip_norm = 0.5, .clip_contribution_norm = 2}},
        two};
  });
}

namespace {

/// Bytes in use: of the heap and, where replicas are threads over a segment, of its files.
std::int64_t bytes_in_use() {
  std::int64_t bytes = 0;
#if defined(LOCKSTEP_TEST_OVER_SHARED_MEMORY)
  bytes = InSegment::bytes_of_files();
#endif
#if defined(LOCKSTEP_TEST_SANITIZED)
  return bytes + static_cast<std::int64_t>(__sanitizer_get_current_allocated_bytes());
#elif defined(__GLIBC__)
  const struct mallinfo2 info = mallinfo2();
  return bytes + static_cast<std::int64_t>(info.uordblks + info.hblkhd);
#else
  return bytes;
#endif
}

/// Memory of a trainer at work: after construction and `steps` steps of one parameter of a million floats.
template <class Make>
std::int64_t memory_of(const Eigen::MatrixXf& initial, Make make, int steps) {
  Variables<float> variables;
  const auto w = variables.add("w", initial);
  const std::int64_t before = bytes_in_use();
  auto trainer = make(variables);
  std::int64_t after = 0;
  trainer.run([&](auto& replica) {
    for (int i = 0; i < steps; ++i) step(replica, w, 1);
    after = bytes_in_use();
  });
  return after - before;
}

}  // namespace

TEST_CASE("BR-044: k = 1 needs no accumulator, k > 1 exactly one", "[reports][BR-044]") {
  constexpr std::int64_t buffer = 4'000'000, slack = 65'536;
  for (const Index rows : {1'000, 1'000'000}) {
    const Eigen::MatrixXf initial = Eigen::MatrixXf::Zero(rows, 1'000'000 / rows);
    // A mark for each row, in case gradients come as rows. It is never touched by dense ones.
    const std::int64_t marks = rows / 8;
    const SyncOptions one{.replicas_to_aggregate = 1};
    const auto local = memory_of(
        initial,
        [](auto& v) {
          return Local{Sgd{}, v};
        },
        8);
    const auto sync = memory_of(
        initial,
        [&](auto& v) {
          return SyncReplicas{Sgd{}, v, one};
        },
        8);
    const auto extra = [&](int k, bool outside, bool replicas) {
      const AggregationOptions options{.grad_steps = k};
      const auto recipe = GradientAggregation<Sgd>{Sgd{}, options};
      const int steps = 2 * k;
      if (outside && replicas)
        return memory_of(
                   initial,
                   [&](auto& v) {
                     return GradientAggregation{SyncReplicas{Sgd{}, v, one}, options};
                   },
                   steps) -
               sync;
      if (outside)
        return memory_of(
                   initial,
                   [&](auto& v) {
                     return GradientAggregation{Local{Sgd{}, v}, options};
                   },
                   steps) -
               local;
      if (replicas)
        return memory_of(
                   initial,
                   [&](auto& v) {
                     return SyncReplicas{recipe, v, one};
                   },
                   steps) -
               sync;
      return memory_of(
                 initial,
                 [&](auto& v) {
                   return Local{recipe, v};
                 },
                 steps) -
             local;
    };
    for (const bool outside : {false, true})
      for (const bool replicas : {false, true}) {
        INFO((outside ? "around the trainer" : "around the rule")
             << (replicas ? ", with replicas, " : ", ") << rows << " rows");
        CHECK(std::abs(extra(1, outside, replicas)) < slack);
        for (const int k : {2, 4, 9}) CHECK(std::abs(extra(k, outside, replicas) - buffer - marks) < slack);
      }
  }
}

TEST_CASE("BR-044: no step allocates", "[reports][BR-044]") {
  with_each_aggregation(Sgd{}, {.grad_steps = 4}, [](const char* form, auto make) {
    INFO(form);
    Model<float> model(0, 1000);
    auto trainer = make(model.variables);
    std::uint64_t allocated = 0;
    trainer.run([&](auto& replica) {
      for (int i = 0; i < 8; ++i) step(replica, model.w, 1);
      const std::uint64_t before = allocations();
      for (int i = 0; i < 40; ++i) step(replica, model.w, 1);
      allocated = allocations() - before;
    });
    CHECK(allocated == 0);
  });
}

TEST_CASE("BR-045: k may follow a schedule", "[reports][BR-045]") {
  const WindowLength two_then_four([](std::int64_t updates) { return updates == 0 ? 2 : 4; });

  SECTION("a function of the updates") {
    with_each_aggregation(Sgd{1.0}, {.grad_steps = two_then_four}, [](const char* form, auto make) {
      INFO(form);
      Model<> model;
      auto trainer = make(model.variables);
      CHECK(feed(trainer, model.w, {1, 2, 3, 4, 5, 6}) == std::vector<double>{0, -1.5, -1.5, -1.5, -1.5, -6});
    });
  }
  SECTION("with weights the divisor is what was really added") {
    with_each_aggregation(Sgd{1.0}, {.grad_steps = two_then_four}, [](const char* form, auto make) {
      INFO(form);
      Model<> model;
      auto trainer = make(model.variables);
      // (1 + 3 * 5) / 4 = 4, then (2 * 4 + 1 * 2 + 4 * 1 + 1 * 2) / 8 = 2
      const auto values = feed(trainer, model.w, {1, 5, 4, 2, 1, 2}, {1, 3, 2, 1, 4, 1});
      CHECK(values == std::vector<double>{0, -4, -4, -4, -4, -6});
    });
  }
  SECTION("changed inside a window, which then closes at the new length") {
    struct Case {
      int k, before, changed;
      std::vector<double> gradients;
      std::size_t closes_after;
      double update;
    };
    for (const Case& one : {Case{4, 1, 3, {2, 4, 6}, 3, 4}, Case{4, 3, 2, {2, 4, 6, 8}, 4, 5},
                            Case{2, 1, 3, {3, 6, 9}, 3, 6}, Case{4, 0, 1, {7}, 1, 7}}) {
      const auto& gradients = one.gradients;
      const int k = one.k, before = one.before, changed = one.changed;
      const auto check = [&](const char* form, auto make) {
        INFO(form << ", k " << k << " to " << changed);
        Model<> model;
        auto trainer = make(model.variables);
        trainer.run([&](auto& replica) {
          for (std::size_t i = 0; i < gradients.size(); ++i) {
            if (i == at(before)) replica.set_grad_steps(changed);
            const StepResult result = step(replica, model.w, gradients[i]);
            if ((result.status == Status::accepted) != (i + 1 == one.closes_after))
              throw Error("closed elsewhere");
          }
        });
        CHECK(model.value() == -one.update);
      };
      check("Local<GradientAggregation>", [&](auto& v) {
        return Local{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = k}}, v};
      });
      check("GradientAggregation<Local>", [&](auto& v) {
        return GradientAggregation{Local{Sgd{1.0}, v}, {.grad_steps = k}};
      });
      check("GradientAggregation<SyncReplicas>", [&](auto& v) {
        return GradientAggregation{SyncReplicas{Sgd{1.0}, v, {.replicas_to_aggregate = 1}},
                                   {.grad_steps = k}};
      });
    }
  }
}

TEST_CASE("BR-046: the wrapped optimizer runs once per window", "[reports][BR-046]") {
  for (const auto& sizes : {std::array{3, 9}, {4, 11}, {1, 5}, {10, 9}}) {
    const int k = sizes[0], steps = sizes[1];
    std::atomic<int> calls = 0;
    with_each_aggregation(Momentum{.learning_rate = counting(calls, 0.1), .momentum = 0.9}, {.grad_steps = k},
                          [&](const char* form, auto make) {
                            INFO(form << ", k " << k);
                            Model<> model;
                            auto trainer = make(model.variables);
                            calls = 0;
                            std::vector<double> velocity;
                            trainer.run([&](auto& replica) {
                              for (int i = 0; i < steps; ++i) {
                                step(replica, model.w, 3);
                                velocity.push_back(replica.slot("momentum", model.w)[0]);
                              }
                            });
                            CHECK(calls == steps / k);
                            CHECK(trainer.global_step() == steps / k);
                            // Velocity 3, 5.7, 8.13, ... moves at the boundaries only.
                            double v = 0, w = 0;
                            for (int i = 0; i < steps; ++i) {
                              if (i % k == k - 1) {
                                v = 0.9 * v + 3;
                                w -= 0.1 * v;
                              }
                              CHECK(velocity[at(i)] == Approx(v).epsilon(1e-14));
                            }
                            CHECK(model.value() == Approx(w).epsilon(1e-14));
                            if (k == 3) {
                              CHECK(velocity[8] == Approx(8.13).epsilon(1e-14));
                              CHECK(model.value() == Approx(-1.683).epsilon(1e-14));
                            }
                          });
  }
}
