// SPDX-License-Identifier: MIT
// Section C of the reports: correctness across replicas.
#include "reports/scenario.hpp"
#include <lockstep/extra_state.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Momentum with coupled decay whose velocity starts at 1, so that an update without a gradient would show.
struct MovingMomentum {
  double rate = 0.1, momentum = 0.9, decay = 0.01;
  static constexpr std::array slots{Slot{"velocity", 1}};
  void update(const StepInfo&, auto& w, auto g, auto& velocity) const {
    velocity = momentum * velocity + (g + decay * w);
    w -= rate * velocity;
  }
};

using DoubleTable = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

TEST_CASE("BR-050: replicas may run out of data at different times", "[reports][BR-050]") {
  const Watchdog watchdog;

  SECTION("continue: the divisor is what was contributed") {
    for (const auto& batches : {std::array{5, 5, 5, 3}, {3, 5, 5, 5}, {1, 2, 3, 4}, {5, 0, 0, 0}}) {
      INFO("batches " << batches[0] << batches[1] << batches[2] << batches[3]);
      Model<> ones, squares;
      const auto run = [&](Model<>& model, auto gradient) {
        SyncReplicas trainer{
            Sgd{1.0}, model.variables, {.replicas_to_aggregate = 4, .departure = Departure::shrink}};
        std::array<std::vector<int>, 4> contributions;
        trainer.run([&](auto& replica) {
          for (int i = 0; i < batches[at(replica.index())]; ++i)
            contributions[at(replica.index())].push_back(
                step(replica, model.w, gradient(replica.index())).contributions);
        });
        const int longest = *std::max_element(batches.begin(), batches.end());
        double expected = 0;
        for (int round = 0; round < longest; ++round) {
          double sum = 0;
          int count = 0;
          for (int i = 0; i < 4; ++i)
            if (batches[at(i)] > round) {
              sum += gradient(i);
              ++count;
            }
          expected -= sum / count;
          for (int i = 0; i < 4; ++i)
            if (batches[at(i)] > round) {
              CHECK(contributions[at(i)][at(round)] == count);
            }
        }
        CHECK(trainer.global_step() == longest);
        CHECK(model.value() == Approx(expected).epsilon(1e-14));
      };
      run(ones, [](int) { return 1; });
      run(squares, [](int i) { return (i + 1) * (i + 1); });
    }
  }
  SECTION("continue, with weights: the divisor is the weight that is there") {
    Model<> model;
    SyncReplicas trainer{
        Sgd{1.0}, model.variables, {.replicas_to_aggregate = 3, .departure = Departure::shrink}};
    trainer.run([&](auto& replica) {
      for (int i = 0; i < (replica.index() == 0 ? 1 : 2); ++i)
        step(replica, model.w, std::array{8, 2, 6}[at(replica.index())],
             {.weight = std::array{2.0, 1.0, 3.0}[at(replica.index())]});
    });
    CHECK(model.value() == Approx(-(16 + 2 + 18) / 6.0 - (2 + 18) / 4.0).epsilon(1e-14));
  }
  SECTION("stop: all end with the same status, and nothing is half done") {
    for (const int early : {0, 1, 3}) {
      INFO("replica " << early << " has 3 batches");
      Model<> model;
      SyncReplicas trainer{
          Sgd{1.0}, model.variables, {.replicas_to_aggregate = 4, .departure = Departure::stop}};
      std::array<StepResult, 4> last;
      std::array<double, 4> seen{};
      std::array<int, 4> updates{};
      trainer.run([&](auto& replica) {
        const std::size_t i = at(replica.index());
        for (int batch = 0; batch < (replica.index() == early ? 3 : 5); ++batch) {
          last[i] = step(replica, model.w, 1);
          if (last[i].status == Status::stopped) break;
          ++updates[i];
        }
        seen[i] = replica.value(model.w)[0];
      });
      CHECK(model.value() == -3);
      for (int i = 0; i < 4; ++i) {
        CHECK(updates[at(i)] == 3);
        CHECK(seen[at(i)] == -3);
        if (i == early) continue;
        CHECK(last[at(i)].status == Status::stopped);
        CHECK(last[at(i)].culprit == early);
        CHECK(last[at(i)].global_step == 3);
      }
    }
  }
}

TEST_CASE("BR-052: a variable without a gradient is not touched", "[reports][BR-052]") {
  const Watchdog watchdog;
  const auto check = [](const char* form, auto make) {
    INFO(form);
    Variables<double> variables;
    const auto a = variables.add("a", VectorOf<double>::Ones(1));
    const auto b = variables.add("b", VectorOf<double>::Ones(7));
    auto trainer = make(variables);
    VectorOf<double> velocity_a, velocity_b;
    trainer.run([&](auto& replica) {
      step(replica, a, 1);
      if (replica.index() != 0) return;
      velocity_a = replica.slot("velocity", a);
      velocity_b = replica.slot("velocity", b);
    });
    CHECK(velocity_a[0] == Approx(1.91).epsilon(1e-15));
    CHECK(variables.value(a)[0] == Approx(0.809).epsilon(1e-15));
    for (int i = 0; i < 7; ++i) {
      CHECK(bits(variables.value(b)[i]) == bits(1.0));
      CHECK(bits(velocity_b[i]) == bits(1.0));
    }
  };
  const MovingMomentum rule;
  check("Local", [&](auto& v) { return Local{rule, v}; });
  for (const int n : {1, 2, 3})
    check("SyncReplicas", [&](auto& v) { return SyncReplicas{rule, v, {.replicas_to_aggregate = n}}; });
  check("with a limit of the norm", [&](auto& v) {
    return SyncReplicas{rule, v, {.replicas_to_aggregate = 2, .clip_norm = 1}};
  });
  for (const int n : {1, 2}) with_both_nestings(rule, {.grad_steps = 1}, {.replicas_to_aggregate = n}, check);

  SECTION("the gradient of the step before does not linger") {
    Variables<double> variables;
    const auto a = variables.add("a", VectorOf<double>::Zero(1));
    const auto b = variables.add("b", VectorOf<double>::Zero(1));
    SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 2}};
    trainer.run([&](auto& replica) {
      for (int i = 0; i < 6; ++i) {
        replica.gradient(a)[0] = 1;
        if (i == 0) replica.gradient(b)[0] = 5;
        replica.apply_gradients();
      }
    });
    CHECK(variables.value(a)[0] == -6);
    CHECK(variables.value(b)[0] == -5);
  }
}

TEMPLATE_TEST_CASE("BR-053: contributions are weighted", "[reports][BR-053]", float, double) {
  const Watchdog watchdog;
  struct Case {
    std::vector<double> gradients, weights;
    double mean;
  };
  for (const Case& one : {Case{{4, 0}, {1, 3}, 1}, Case{{4, 0}, {1, 1}, 2}, Case{{4, 0}, {3, 1}, 3},
                          Case{{0, 4}, {1, 3}, 3}, Case{{4, 0}, {0.25, 0.75}, 1},
                          Case{{2, 4, 8}, {4, 2, 2}, 4}, Case{{1, 2, 4, 8}, {8, 4, 2, 2}, 2.5}}) {
    Model<TestType> model;
    const auto n = static_cast<int>(one.gradients.size());
    SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = n}};
    trainer.run([&](auto& replica) {
      const std::size_t i = at(replica.index());
      step(replica, model.w, one.gradients[i], {.weight = one.weights[i]});
    });
    CHECK(static_cast<double>(model.value()) == -one.mean);
  }
  SECTION("equal weights of any size give the bits of no weights") {
    TestType expected = 0;
    for (const double weight : {1.0, 3.0, 0.1, 1e-9, 12345.678}) {
      Model<TestType> model;
      SyncReplicas trainer{Sgd{0.1}, model.variables, {.replicas_to_aggregate = 3}};
      trainer.run([&](auto& replica) {
        for (const double g : {0.1, 0.7, 1.0 / 3})
          step(replica, model.w, g * (replica.index() + 1), {.weight = weight});
      });
      if (weight == 1) expected = model.value();
      CHECK(bits(model.value()) == bits(expected));
    }
  }
}

TEST_CASE("BR-054: a variable that only some replicas have", "[reports][BR-054]") {
  const Watchdog watchdog;
  const auto absent = GENERATE(Absent::zero, Absent::excluded);
  INFO((absent == Absent::zero ? "missing counts as zero" : "missing is left out"));
  Variables<double> variables;
  const auto a = variables.add("a", VectorOf<double>::Zero(1));
  const auto b = variables.add("b", VectorOf<double>::Zero(1));
  const auto table = variables.add("table", DoubleTable::Zero(4, 2));

  SECTION("two replicas") {
    {
      SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 2, .absent = absent}};
      std::array<std::array<double, 2>, 2> seen{};
      trainer.run([&](auto& replica) {
        replica.gradient(a)[0] = replica.index() == 0 ? 2 : 4;
        if (replica.index() == 1) replica.gradient(b)[0] = 4;
        replica.apply_gradients();
        seen[at(replica.index())] = {replica.value(a)[0], replica.value(b)[0]};
      });
      for (const auto& values : seen) CHECK(values == std::array{-3.0, absent == Absent::zero ? -2.0 : -4.0});
    }
    CHECK(variables.value(table).isZero());
  }
  SECTION("the other replica has it, and they have nothing in common") {
    SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 2, .absent = absent}};
    trainer.run([&](auto& replica) { step(replica, replica.index() == 0 ? b : a, 4); });
    CHECK(variables.value(a)[0] == (absent == Absent::zero ? -2 : -4));
    CHECK(variables.value(b)[0] == (absent == Absent::zero ? -2 : -4));
  }
  SECTION("with weights") {
    SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 3, .absent = absent}};
    trainer.run([&](auto& replica) {
      replica.gradient(a)[0] = 1;
      if (replica.index() == 1) replica.gradient(b)[0] = 4;
      if (replica.index() == 2) replica.gradient(b)[0] = 8;
      replica.apply_gradients({.weight = replica.index() == 2 ? 3.0 : 1.0});
    });
    CHECK(variables.value(a)[0] == -1);
    CHECK(variables.value(b)[0] == Approx(absent == Absent::zero ? -28.0 / 5 : -7).epsilon(1e-15));
  }
  SECTION("row by row") {
    SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 2, .absent = absent}};
    trainer.run([&](auto& replica) {
      if (replica.index() == 0)
        replica.set_rows(table, std::vector{0, 1}, DoubleTable::Constant(2, 2, 2));
      else
        replica.set_rows(table, std::vector{1, 3}, DoubleTable::Constant(2, 2, 4));
      replica.apply_gradients();
    });
    const double half = absent == Absent::zero ? 0.5 : 1;
    const auto value = variables.value(table);
    CHECK(value(0, 0) == -2 * half);
    CHECK(value(1, 1) == -3);
    CHECK(value(2, 0) == 0);
    CHECK(value(3, 1) == -4 * half);
  }
  SECTION("with a limit of the norm, which is that of the mean") {
    SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 2, .absent = absent, .clip_norm = 1}};
    trainer.run([&](auto& replica) {
      replica.gradient(a)[0] = 3;
      if (replica.index() == 1) replica.gradient(b)[0] = absent == Absent::zero ? 8 : 4;
      replica.apply_gradients();
    });
    CHECK(variables.value(a)[0] == Approx(-0.6).epsilon(1e-15));
    CHECK(variables.value(b)[0] == Approx(-0.8).epsilon(1e-15));
  }
}

TEST_CASE("BR-055: threads cannot disagree about the variables", "[reports][BR-055]") {
  const Watchdog watchdog;
  Variables<double> three, two;
  const auto a = three.add("a", VectorOf<double>::Zero(1));
  three.add("b", VectorOf<double>::Zero(2));
  three.add("c", VectorOf<double>::Zero(3));
  const auto other = two.add("a", VectorOf<double>::Zero(1));
  two.add("b", VectorOf<double>::Zero(2));
  SyncReplicas trainer{Sgd{1.0}, three, {.replicas_to_aggregate = 2, .deadline = 50s}};

  SECTION("the set that they share is closed") {
    CHECK_THROWS_AS(three.add("d", VectorOf<double>::Zero(1)), UsageError);
    CHECK_THROWS_AS((SyncReplicas{Sgd{1.0}, three, {.replicas_to_aggregate = 1}}), UsageError);
    CHECK(three.infos().size() == 3);
  }
  SECTION("a replica that uses another set fails, and the others with it") {
    const auto thrown = run_replicas(2, [&](int i) {
      auto replica = trainer.join(i);
      if (i == 1)
        step(replica, other, 1);
      else
        step(replica, a, 1);
    });
    CHECK(caught<UnknownVariable>(thrown[1]));
    const auto error = caught<PeerFailed>(thrown[0]);
    REQUIRE(error);
    CHECK(error->replica() == 1);
    CHECK(has(error->what(), "replica 1"));
    CHECK(three.value(a)[0] == 0);
  }
}

TEST_CASE("BR-058: one place applies the update, so replicas cannot drift apart", "[reports][BR-058]") {
  const Watchdog watchdog;
  for (const int n : {2, 3, 7}) {
    Model<> model(0, 10'000);  // several tiles: all replicas help
    std::atomic<int> calls = 0;
    // Another rate at each call: 0.1, 0.2, ...; were it asked by each replica, they would differ.
    const Schedule rate([&](std::int64_t) { return 0.1 * ++calls; });
    SyncReplicas trainer{Sgd{rate}, model.variables, {.replicas_to_aggregate = n}};
    calls = 0;  // over a segment rules are compared when a trainer is made
    std::vector<std::vector<double>> seen(at(n));
    std::vector<int> uniform(at(n), 1);
    trainer.run([&](auto& replica) {
      const std::size_t i = at(replica.index());
      for (int round = 0; round < 2; ++round) {
        step(replica, model.w, 1);
        const auto value = replica.value(model.w);
        seen[i].push_back(value[0]);
        uniform[i] = uniform[i] && (value.array() == value[0]).all();
      }
    });
    CHECK(calls == 2);
    for (int i = 0; i < n; ++i) {
      CHECK(seen[at(i)][0] == Approx(-0.1).epsilon(1e-15));
      CHECK(seen[at(i)][1] == Approx(-0.3).epsilon(1e-15));
      CHECK(bits(seen[at(i)][1]) == bits(seen[0][1]));
      CHECK(uniform[at(i)]);
    }
  }
}

TEST_CASE("BR-060: whether a round is skipped is decided once, from all contributions", "[reports][BR-060]") {
  const Watchdog watchdog;
  for (const int n : {2, 3, 5})
    for (const int bad : {0, 1, n - 1})
      for (const double value :
           {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()})
        for (const auto policy : {NonFinite::skip_update, NonFinite::skip_contribution}) {
          INFO("N " << n << ", bad replica " << bad << ", value " << value);
          const bool all = policy == NonFinite::skip_update;
          Model<> model;
          SyncReplicas trainer{Momentum{.learning_rate = 1.0, .momentum = 0.5},
                               model.variables,
                               {.replicas_to_aggregate = n, .non_finite = policy}};
          struct Seen {
            StepResult result;
            double w, momentum;
          };
          std::vector<std::array<Seen, 2>> seen(at(n));
          trainer.run([&](auto& replica) {
            const int i = replica.index();
            for (const int round : {0, 1}) {
              const auto result = step(replica, model.w, round == 0 && i == bad ? value : i + 1);
              seen[at(i)][at(round)] = {result, replica.value(model.w)[0],
                                        replica.slot("momentum", model.w)[0]};
            }
          });
          const double others = (n * (n + 1) / 2.0 - (bad + 1)) / (n - 1), everybody = (n + 1) / 2.0;
          for (int i = 0; i < n; ++i) {
            const auto& [first, second] = seen[at(i)];
            const bool skipped = all || i == bad;
            CHECK(first.result.status == (skipped ? Status::skipped : Status::accepted));
            CHECK(first.result.global_step == (all ? 0 : 1));
            if (all) {
              CHECK(first.result.culprit == bad);
              CHECK(bits(first.w) == bits(0.0));
              CHECK(bits(first.momentum) == bits(0.0));
              CHECK(second.w == Approx(-everybody).epsilon(1e-15));
            } else {
              CHECK(first.result.contributions == n - 1);
              CHECK(first.w == Approx(-others).epsilon(1e-15));
              CHECK(second.momentum == Approx(everybody + 0.5 * others).epsilon(1e-15));
            }
            CHECK(second.result.status == Status::accepted);
            CHECK(second.result.contributions == n);
            CHECK(trainer.stats(i).skipped == (skipped ? 1 : 0));
          }
          CHECK(trainer.global_step() == (all ? 1 : 2));
        }
}

TEST_CASE("BR-060: if nobody has a finite gradient the round changes nothing", "[reports][BR-060]") {
  const Watchdog watchdog;
  for (const auto policy : {NonFinite::skip_update, NonFinite::skip_contribution}) {
    Model<> model(3);
    SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 2, .non_finite = policy}};
    std::array<Status, 2> first{}, second{};
    trainer.run([&](auto& replica) {
      first[at(replica.index())] = step(replica, model.w, std::numeric_limits<double>::infinity()).status;
      second[at(replica.index())] = step(replica, model.w, 1).status;
    });
    CHECK(first == std::array{Status::skipped, Status::skipped});
    CHECK(second == std::array{Status::accepted, Status::accepted});
    CHECK(model.value() == 2);
    CHECK(trainer.global_step() == 1);
  }
}

TEST_CASE("BR-062: every window is exchanged", "[reports][BR-062]") {
  const Watchdog watchdog;
  for (const auto& [n, k] : {std::array{2, 2}, {3, 3}, {2, 5}, {4, 1}})
    with_both_nestings(Sgd{1.0}, {.grad_steps = k}, {.replicas_to_aggregate = n},
                       [&, n = n, k = k](const char* form, auto make) {
                         INFO(form << ", N " << n << ", k " << k);
                         Model<> model;
                         auto trainer = make(model.variables);
                         std::vector<std::vector<double>> seen(at(n));
                         trainer.run([&](auto& replica) {
                           for (int window = 0; window < 5; ++window) {
                             for (int i = 0; i < k; ++i)
                               step(replica, model.w, 2 * replica.index() + 1);  // 1, 3, ...: mean N
                             seen[at(replica.index())].push_back(replica.value(model.w)[0]);
                           }
                         });
                         for (const auto& values : seen) {
                           REQUIRE(values.size() == 5);
                           for (int window = 0; window < 5; ++window)
                             CHECK(values[at(window)] == Approx(-n * (window + 1)).epsilon(1e-14));
                           CHECK(values == seen[0]);
                         }
                         CHECK(trainer.global_step() == 5);
                       });
}

TEST_CASE("BR-063: large windows between replicas, every element", "[reports][BR-063]") {
  const Watchdog watchdog;
  constexpr std::array<std::array<float, 2>, 2> gradient{{{1, 3}, {5, 7}}};
  with_both_nestings(
      Sgd{1.0}, {.grad_steps = 2}, {.replicas_to_aggregate = 2}, [&](const char* form, auto make) {
        INFO(form);
        Model<float> model(0, 1'000'000);
        auto trainer = make(model.variables);
        std::array<int, 2> right{};
        trainer.run([&](auto& replica) {
          const std::size_t i = at(replica.index());
          for (int window = 1; window <= 3; ++window) {
            for (const float g : gradient[i]) {
              replica.gradient(model.w).setConstant(g);
              replica.apply_gradients();
            }
            right[i] += (replica.value(model.w).array() == -4.0F * static_cast<float>(window)).all() ? 1 : 0;
          }
        });
        CHECK(right == std::array{3, 3});
      });
}

namespace {

/// One round in which the replicas arrive in the given order; minus the mean of their gradients.
template <class T, class G>
T mean_in_order(const std::array<double, 4>& gradients, const std::array<int, 4>& order) {
  Model<T, G> model;
  SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 4}};
  const auto thrown = run_replicas(4, [&](int i) {
    auto replica = trainer.join(i);
    const auto position = static_cast<std::size_t>(std::find(order.begin(), order.end(), i) - order.begin());
    if (position > 0) wait_until([&] { return trainer.stats(order[position - 1]).accepted == 1; });
    step(replica, model.w, gradients[at(i)]);
  });
  CHECK(messages(thrown) == "");
  return -model.value();
}

}  // namespace

TEST_CASE("BR-067: sums are formed in the scalar of the variables, in the order of replica numbers",
          "[reports][BR-067]") {
  const Watchdog watchdog;
  constexpr std::array large{1e8, 1.0, -1e8, 1.0};
  constexpr std::array small{256.0, 1.0, -256.0, 1.0};
  std::array order{0, 1, 2, 3};
  do {
    INFO("arrival " << order[0] << order[1] << order[2] << order[3]);
    CHECK(bits(mean_in_order<float, float>(large, order)) ==
          bits(0.25F));  // ((1e8 + 1) - 1e8) + 1 = 1 in float
    CHECK(bits(mean_in_order<double, double>(large, order)) == bits(0.5));
    CHECK(bits(mean_in_order<float, Eigen::bfloat16>(small, order)) == bits(0.5F));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("BR-067: the bits do not depend on thread scheduling or on how the work is split",
          "[reports][BR-067]") {
  const Watchdog watchdog;
  constexpr Index size = 20'000;
  std::array<Eigen::VectorXf, 5> gradients;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    gradients[i].resize(size);
    for (Index e = 0; e < size; ++e)
      gradients[i][e] = static_cast<float>((e * 7919 + static_cast<Index>(i) * 104729) % 1000 - 500) * 1e-3F;
  }
  Eigen::VectorXf expected;
  for (int repeat = 0; repeat < 8; ++repeat) {
    Model<float> model(0.5, size);
    SyncReplicas trainer{
        Adam{.learning_rate = 0.1}, model.variables, {.replicas_to_aggregate = 5, .clip_norm = 3}};
    trainer.run([&](auto& replica) {
      for (int round = 0; round < 4; ++round) {
        if ((replica.index() + repeat) % 5 == 0) std::this_thread::sleep_for(1ms);
        replica.set_gradient(model.w, gradients[at((replica.index() + round) % 5)]);
        replica.apply_gradients();
      }
    });
    if (repeat == 0) expected = model.variables.value(model.w);
    CHECK((model.variables.value(model.w).array() == expected.array()).all());
  }
}

TEST_CASE("BR-069: strided gradients and initial values are read as what they are", "[reports][BR-069]") {
  const Watchdog watchdog;
  using Matrix2 = Eigen::Matrix<float, 2, 2, Eigen::RowMajor>;
  std::array<Matrix2, 2> matrices;
  matrices[0] << 1, 9, 2, 9;
  matrices[1] << 3, 9, 4, 9;

  SECTION("a column of a row-major matrix") {
    Variables<float> variables;
    const auto w = variables.add("w", Eigen::Vector2f::Zero());
    SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 2}};
    trainer.run([&](auto& replica) {
      replica.set_gradient(w, matrices[at(replica.index())].col(0));
      replica.apply_gradients();
    });
    CHECK(variables.value(w) == Eigen::Vector2f(-2, -3));
    for (const auto& matrix : matrices) CHECK(matrix.col(1) == Eigen::Vector2f(9, 9));
  }
  SECTION("maps with strides, blocks, transposes, reversed, as gradients and as initial values") {
    Eigen::MatrixXf big(4, 6);
    for (int i = 0; i < 24; ++i) big(i / 6, i % 6) = static_cast<float>(i);
    const Eigen::MatrixXf copy = big;
    const Eigen::Map<const Eigen::VectorXf, 0, Eigen::InnerStride<>> every_third(big.data(), 8,
                                                                                 Eigen::InnerStride<>(3));
    Variables<float> variables;
    const auto v = variables.add("v", every_third);
    const auto block = variables.add("block", big.block(1, 2, 2, 3));
    const auto turned = variables.add("turned", big.transpose());
    const auto reversed = variables.add("reversed", big.row(2).reverse());
    Local trainer{Sgd{1.0}, variables};
    trainer.set_gradient(v, 2 * every_third);
    trainer.set_gradient(block, big.block(0, 0, 2, 3));
    trainer.set_gradient(turned, big.transpose());
    trainer.set_gradient(reversed, big.row(0));
    trainer.apply_gradients();
    CHECK(trainer.value(v) == Eigen::VectorXf(-every_third));
    CHECK(trainer.value(block) == Eigen::MatrixXf(big.block(1, 2, 2, 3) - big.block(0, 0, 2, 3)));
    CHECK(trainer.value(turned).isZero());
    CHECK(trainer.value(reversed) == Eigen::RowVectorXf(big.row(2).reverse() - big.row(0)));
    CHECK(big == copy);
  }
  SECTION("strided rows") {
    using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    Variables<float> variables;
    const auto table = variables.add("table", Rows::Zero(3, 2));
    Local trainer{Sgd{1.0}, variables};
    Eigen::MatrixXf rows(4, 3);
    rows << 1, 9, 2, 9, 9, 9, 3, 9, 4, 9, 9, 9;
    const Eigen::Map<const Eigen::MatrixXf, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>> strided(
        rows.data(), 2, 2, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(8, 2));
    trainer.set_rows(table, std::vector{2, 0}, strided);
    trainer.apply_gradients();
    Rows expected(3, 2);
    expected << -3, -4, 0, 0, -1, -2;
    CHECK(trainer.value(table) == expected);
  }
}

TEST_CASE("BR-071: statistics show who slows the others down", "[reports][BR-071]") {
  const Watchdog watchdog;
  for (const int slow : {2, 0}) {
    constexpr int n = 4, rounds = 100;
    INFO("slow replica " << slow);
    Model<> model;
    SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = n}};
    trainer.run([&](auto& replica) {
      for (int round = 0; round < rounds; ++round) {
        if (replica.index() == slow) {
          for (int i = 0; i < n; ++i)
            if (i != slow) wait_until([&] { return trainer.stats(i).accepted == round + 1; });
          std::this_thread::sleep_for(5ms);
        }
        step(replica, model.w, 1);
      }
    });
    const auto mean_wait = [&](int i) {
      return std::chrono::duration<double, std::milli>(trainer.stats(i).waiting).count() / rounds;
    };
    for (int i = 0; i < n; ++i) {
      CHECK(trainer.stats(i).last_arrivals == (i == slow ? rounds : 0));
      if (i != slow) {
        CHECK(mean_wait(i) >= 4);
        CHECK(mean_wait(slow) < mean_wait(i) / 4);
      }
    }
  }
}

TEST_CASE("BR-072: extra state has a stated rule", "[reports][BR-072]") {
  const Watchdog watchdog;
  using Seen = std::vector<std::vector<double>>;

  SECTION("one rule for all") {
    const auto agree = [](StateRule rule, const std::vector<double>& own,
                          const std::vector<double>& weights) {
      Model<> statistics(-7, 3);
      const auto n = static_cast<int>(own.size());
      ExtraState extra{rule, statistics.variables, {.replicas = n}};
      Seen seen(own.size());
      const auto thrown = run_replicas(n, [&](int i) {
        auto state = extra.join(i);
        seen[at(i)].push_back(state.value(statistics.w)[2]);
        state.value(statistics.w).setConstant(own[at(i)]);
        for (int round = 0; round < 3; ++round) {  // agreed: the next rounds change nothing
          state.synchronise({.weight = weights.empty() ? 1 : weights[at(i)]});
          seen[at(i)].push_back(state.value(statistics.w)[2]);
        }
      });
      CHECK(messages(thrown) == "");
      for (const auto& values : seen) {
        REQUIRE(values.size() == 4);
        CHECK(values[0] == -7);
        for (const double value : {values[2], values[3]}) CHECK(bits(value) == bits(values[1]));
      }
      std::vector<double> agreed;
      for (const auto& values : seen) agreed.push_back(values[1]);
      return agreed;
    };
    using Values = std::vector<double>;
    CHECK(agree(StateRule::mean, {1, 3}, {}) == Values{2, 2});
    CHECK(agree(StateRule::first, {1, 3}, {}) == Values{1, 1});
    CHECK(agree(StateRule::own, {1, 3}, {}) == Values{1, 3});
    CHECK(agree(StateRule::mean, {1, 3}, {2, 6}) == Values{2.5, 2.5});
    CHECK(agree(StateRule::first, {0.1, 3, 5}, {0.7, 1, 9}) == Values{0.1, 0.1, 0.1});
    CHECK(agree(StateRule::mean, {1, 2, 4, 9}, {}) == Values{4, 4, 4, 4});
    CHECK(agree(StateRule::mean, {0.1}, {}) == Values{0.1});
  }
  SECTION("a rule for each, beside training") {
    Model<> model;
    Variables<double> statistics;
    const auto mean = statistics.add("mean", VectorOf<double>::Zero(2));
    const auto seed = statistics.add("seed", VectorOf<double>::Zero(1));
    const auto count = statistics.add("count", VectorOf<double>::Zero(1));
    ExtraState extra{[](const VariableInfo& info) {
                       return info.name == "mean"   ? StateRule::mean
                              : info.name == "seed" ? StateRule::first
                                                    : StateRule::own;
                     },
                     statistics,
                     {.replicas = 3}};
    SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 3}};
    Seen seen(3);
    for (int epoch = 0; epoch < 2; ++epoch) {
      extra.start_over();
      trainer.run([&](auto& replica) {
        const int i = replica.index();
        auto state = extra.join(i);
        for (int round = 0; round < 4; ++round) {
          state.value(mean)[1] += i;  // mean 1
          state.value(seed)[0] = 10 * i + round + 5;
          state.value(count)[0] += i + 1;
          step(replica, model.w, 1);
          if (round % 2 == 1) state.synchronise();
        }
        seen[at(i)] = {state.value(mean)[1], state.value(seed)[0], state.value(count)[0]};
      });
      for (int i = 0; i < 3; ++i)
        CHECK(seen[at(i)] == std::vector<double>{4.0 * (epoch + 1), 8, 4.0 * (i + 1)});
    }
    CHECK(model.value() == -8);
  }
  SECTION("a replica that has left is not in the mean; one that never comes is named") {
    Model<> statistics;
    ExtraState extra{StateRule::mean, statistics.variables, {.replicas = 3, .deadline = 300ms}};
    std::array<double, 2> agreed{};
    std::array<double, 2> late{};
    std::array<std::exception_ptr, 2> missed;
    std::barrier all(3), both(2);
    const auto thrown = run_replicas(3, [&](int i) {
      auto state = extra.join(i);
      state.value(statistics.w)[0] = i + 1;
      all.arrive_and_wait();
      if (i == 2) return;
      state.synchronise();
      agreed[at(i)] = state.value(statistics.w)[0];
      both.arrive_and_wait();
      if (i == 0) {
        state.value(statistics.w)[0] = 5;
        missed[0] = thrown_by([&] { state.synchronise(); });
        agreed[1] += state.value(statistics.w)[0];
      }
      both.arrive_and_wait();
      if (i == 0)
        state.resume({.timeout = 50s});  // the other one calls after all
      else
        state.synchronise({.timeout = 50s});
      late[at(i)] = state.value(statistics.w)[0];
    });
    CHECK(messages(thrown) == "");
    CHECK(agreed == std::array{1.5, 1.5 + 5});
    CHECK(late == std::array{3.25, 3.25});  // of 5 and 1.5
    const auto error = caught<TimeoutError>(missed[0]);
    REQUIRE(error);
    CHECK(error->missing() == std::vector{Missing{1, Missing::Why::slow}});
  }
  SECTION("options without meaning") {
    Model<> statistics;
    CHECK_THROWS_AS((ExtraState{StateRule::mean, statistics.variables, {.replicas = 0}}), InvalidArgument);
    CHECK_THROWS_AS((ExtraState{StateRule::mean, statistics.variables, {.deadline = 0ms}}), InvalidArgument);
    ExtraState extra{StateRule::mean, statistics.variables, {}};
    CHECK_THROWS_AS(extra.join(1), InvalidArgument);
    auto state = extra.join(0);
    CHECK_THROWS_AS(state.synchronise({.weight = 0}), InvalidArgument);
    CHECK_NOTHROW(state.synchronise());
  }
}
