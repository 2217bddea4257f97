// SPDX-License-Identifier: MIT
#include "support/allocations.hpp"
#include "unit/sync/scene.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <map>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

namespace {

/// Different for each replica and step.
double gradient_of(int replica, std::int64_t step) {
  return (replica + 1) * 3 + static_cast<double>(step) * 0.5;
}

/// Lets the allocations of `trainer.run` on this thread fail one after the other, until one of them is for
/// the thread of the second replica. @return what `run` threw then; null if none is.
template <class Trainer, class H>
std::exception_ptr run_without_second_thread(Trainer& trainer, const H& w) {
  for (std::uint64_t n = 1;; ++n) {
    const std::exception_ptr thrown = thrown_by([&] {
      const FailingAllocation fails(n);
      trainer.run([&](auto& replica) { step(replica, w, 1); });
    });
    if (!thrown || message_of(thrown).find("cannot start thread 2 of 3: ") != std::string::npos)
      return thrown;
  }
}

}  // namespace

TEST_CASE("replicas: the update is the mean of all contributions", "[sync][replicas][thread]") {
  const Watchdog watchdog;
  for (const Index size : {1, 17, 9000})
    for (int n = 1; n <= 8; ++n) {
      INFO(n << " replicas, " << size << " elements");
      Net<> net(size);
      SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = n}};
      std::vector<std::vector<StepResult>> results(at(n));
      trainer.run([&](auto& replica) {
        while (replica.global_step() < 4)
          results[at(replica.index())].push_back(
              step(replica, net.w, gradient_of(replica.index(), replica.global_step())));
      });
      double expected = 0;
      for (int t = 0; t < 4; ++t) {
        double sum = 0;
        for (int i = 0; i < n; ++i) {
          sum += gradient_of(i, t);
          const StepResult& result = results[at(i)][at(t)];
          CHECK(result.status == Status::accepted);
          CHECK(result.global_step == t + 1);
          CHECK(result.contributions == n);
          CHECK(result.computed_at == t);
          CHECK_FALSE(result.round_open);
        }
        expected -= sum / n;
      }
      CHECK(net.value() == Approx(expected).epsilon(1e-14));
      CHECK(net.value(size - 1) == net.value());
      CHECK(trainer.global_step() == 4);
      CHECK(trainer.replicas() == n);
    }
}

TEST_CASE("replicas: weights weigh, and a sum does not divide", "[sync][replicas][thread]") {
  const Watchdog watchdog;
  const std::array weights{2.0, 1.0, 5.0};
  for (const Reduction reduction : {Reduction::mean, Reduction::sum})
    for (const bool weighted : {false, true}) {
      Net<> net;
      SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 3, .reduction = reduction}};
      trainer.run([&](auto& replica) {
        step(replica, net.w, gradient_of(replica.index(), 0),
             {.weight = weighted ? weights[at(replica.index())] : 1});
      });
      double sum = 0, total = 0;
      for (int i = 0; i < 3; ++i) {
        const double weight = weighted ? weights[at(i)] : 1;
        sum += weight * gradient_of(i, 0);
        total += weight;
      }
      CHECK(-net.value() == Approx(reduction == Reduction::sum ? sum : sum / total).epsilon(1e-14));
    }
}

TEMPLATE_TEST_CASE("replicas: one replica gives the bits of Local", "[sync][replicas]", float, double) {
  using T = TestType;
  const auto train = [](auto& optimizer, const auto& w, const auto& rows) {
    for (int t = 0; t < 4; ++t) {
      optimizer.set_gradient(w, VectorOf<T>::LinSpaced(20011, T(-1.3), static_cast<T>(0.7 + t)));
      if (t % 2 == 0)
        optimizer.set_rows(rows, std::vector{1, 64, 69}, VectorOf<T>::LinSpaced(3, T(0.1), T(0.7)));
      optimizer.apply_gradients({.weight = 1 + 0.3 * t});
    }
  };
  const auto check = [&](const auto& rule, double clip) {
    Variables<T> a, b;
    const auto wa = a.add("w", VectorOf<T>::Ones(20011)), wb = b.add("w", VectorOf<T>::Ones(20011));
    const auto ra = a.add("rows", VectorOf<T>::Ones(70)), rb = b.add("rows", VectorOf<T>::Ones(70));
    Local local{rule, a, LocalOptions{.clip_norm = clip}};
    train(local, wa, ra);
    SyncReplicas trainer{rule, b, {.replicas_to_aggregate = 1, .clip_norm = clip}};
    {
      auto replica = trainer.join();
      train(replica, wb, rb);
    }
    CHECK(a.value(wa) == b.value(wb));
    CHECK(a.value(ra) == b.value(rb));
  };
  for (const double clip : {0.0, 3.0, 2.7, 1.1}) {
    INFO("clip " << clip);
    check(Sgd{}, clip);
    check(Adam{}, clip);
    check(Lamb{}, clip);
    check(MovingAverage{Momentum{}, 0.9}, clip);
    check(PerVariable{AdamW{},
                      [](AdamW& r, const VariableInfo& v) { r.weight_decay = v.name == "w" ? 0.5 : 0; }},
          clip);
    check(GradientAggregation<Adam>{Adam{}, {.grad_steps = 2}}, clip);
  }
}

TEST_CASE("replicas: runs of tiles have the bits of one range", "[sync][replicas][thread]") {
  const Watchdog watchdog;
  constexpr Index size = 400'003;  // some hundred tiles
  const auto gradient = [](int step, int number) {
    return Eigen::VectorXf::LinSpaced(size, -1.3F, 0.7F + static_cast<float>(2 * step + number));
  };
  const auto train = [&](int replicas) {
    Variables<> variables;
    const auto w = variables.add("w", Eigen::VectorXf::LinSpaced(size, 1, 2));
    SyncReplicas trainer{
        Adam{}, variables, {.replicas_to_aggregate = 2, .total_num_replicas = replicas, .clip_norm = 3}};
    trainer.run([&](auto& replica) {
      for (int step = 0; step < 3; ++step)
        for (int k = 0; k < 2 / replicas; ++k) {
          replica.set_gradient(w, gradient(step, replica.index() + k));
          replica.apply_gradients();
        }
    });
    return Eigen::VectorXf(variables.value(w));
  };
  const bool same_values = train(1) == train(2);
  CHECK(same_values);
}

TEST_CASE("replicas: a late backup replica is told that it was stale", "[sync][replicas]") {
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 1, .total_num_replicas = 2}};
  auto fast = trainer.join(0), slow = trainer.join(1);
  CHECK(step(fast, net.w, 1).contributions == 1);
  CHECK(step(fast, net.w, 2).global_step == 2);
  const StepResult late = step(slow, net.w, 100);
  CHECK(late.status == Status::stale);
  CHECK(late.global_step == 2);  // it catches up at once
  CHECK(late.computed_at == 0);
  CHECK(late.contributions == 0);
  CHECK(slow.value(net.w)[0] == -3);
  CHECK(net.value() == -3);
  CHECK(step(slow, net.w, 4).status == Status::accepted);
  CHECK(net.value() == -7);
  CHECK(trainer.stats(1).stale == 1);
  CHECK(trainer.stats(1).accepted == 1);
  CHECK(trainer.stats(0).accepted == 2);
  CHECK(slow.sequence() == 1);  // only accepted ones count
}

TEST_CASE("replicas: who comes after the round is full is told that it was not needed",
          "[sync][replicas][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0},
                       net.variables,
                       {.replicas_to_aggregate = 2, .total_num_replicas = 3, .driver = Driver::chief}};
  auto last = trainer.join(2);
  std::atomic<int> contributed{0};
  const auto thrown = run_replicas(4, [&](int i) {
    if (i == 3) {
      // The round is full, its update waits for the chief.
      wait_until([&] { return trainer.stats(2).not_needed == 1; });
      trainer.chief_step();
    } else if (i == 2) {
      wait_until([&] { return trainer.stats(0).accepted + trainer.stats(1).accepted == 2; });
      const StepResult result = step(last, net.w, 100);
      if (result.status != Status::not_needed || result.global_step != 1 || result.contributions != 0)
        throw Error("not needed: " + std::string(to_string(result.status)));
    } else {
      auto replica = trainer.join(i);
      if (step(replica, net.w, i + 1).status != Status::accepted) throw Error("accepted");
      ++contributed;
    }
  });
  for (const auto& error : thrown) CHECK(message_of(error) == "");
  CHECK(net.value() == -1.5);
  CHECK(last.value(net.w)[0] == -1.5);
  CHECK(last.sequence() == 0);
}

TEST_CASE("replicas: with fewer replicas than contributions each gives several to a round",
          "[sync][replicas]") {
  for (const bool weighted : {false, true}) {
    Net<> net(20);
    SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 4, .total_num_replicas = 1}};
    auto replica = trainer.join();
    double sum = 0, total = 0;
    for (int i = 1; i <= 4; ++i) {
      const double weight = weighted ? i : 1;
      sum += weight * i * i;
      total += weight;
      CHECK(net.value() == 0);
      const StepResult result = step(replica, net.w, i * i, {.weight = weight});
      CHECK(result.status == Status::accepted);
      CHECK(result.round_open == (i < 4));
      CHECK(result.global_step == (i == 4));
      CHECK(result.contributions == (i == 4 ? 4 : 0));
    }
    CHECK(-net.value(19) == Approx(sum / total).epsilon(1e-14));
    CHECK(replica.sequence() == 4);
  }
}

TEST_CASE("replicas: an uneven share of contributions goes to the lower numbers",
          "[sync][replicas][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 5, .total_num_replicas = 2}};
  std::array<int, 2> calls{};
  trainer.run([&](auto& replica) {
    while (replica.global_step() < 3) {
      step(replica, net.w, replica.index() == 0 ? 1 : 10);
      ++calls[at(replica.index())];
    }
  });
  CHECK(calls == std::array{9, 6});
  CHECK(-net.value() == Approx(3 * (3 * 1 + 2 * 10) / 5.0).epsilon(1e-14));
}

TEST_CASE("replicas: contributions of one replica to a round may have different variables",
          "[sync][replicas]") {
  Variables<double> variables;
  const auto a = variables.add("a", Eigen::VectorXd::Zero(20));
  const auto b = variables.add("b", Eigen::VectorXd::Zero(70));
  SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 3, .total_num_replicas = 1}};
  auto replica = trainer.join();
  for (int round = 1; round <= 2; ++round) {
    replica.set_gradient(a, Eigen::VectorXd::Constant(20, 3));
    replica.apply_gradients();
    replica.set_rows(b, std::vector{0, 69}, Eigen::VectorXd::Constant(2, 6));
    replica.apply_gradients();
    replica.set_rows(b, std::vector{64, 69}, Eigen::VectorXd::Constant(2, 9));
    replica.apply_gradients();
    CHECK(variables.value(a)[19] == -1 * round);
    for (int i = 0; i < 70; ++i)
      CHECK(variables.value(b)[i] == -round * (i == 0 ? 2 : i == 64 ? 3 : i == 69 ? 5 : 0));
  }
}

TEST_CASE("replicas: a spare token lets a replica go on early", "[sync][replicas]") {
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .init_tokens = 1}};
  auto first = trainer.join(0), second = trainer.join(1);
  CHECK(step(first, net.w, 1).round_open);
  CHECK(step(first, net.w, 5).contributions == 2);
  CHECK(net.value() == -3);
  CHECK(step(second, net.w, 100).status == Status::stale);
  // The token is used up: now both are needed.
  std::vector<std::jthread> threads;
  threads.emplace_back([&] { step(first, net.w, 2); });
  const StepResult result = step(second, net.w, 4);
  threads.clear();
  CHECK(result.contributions == 2);
  CHECK(net.value() == -6);
}

TEST_CASE("replicas: numbers are taken lowest first, and once", "[sync][replicas]") {
  Net<> net;
  SyncReplicas trainer{Sgd{}, net.variables, {.replicas_to_aggregate = 3}};
  auto a = trainer.join();
  auto c = trainer.join(2);
  CHECK(a.index() == 0);
  CHECK(c.index() == 2);
  CHECK_THROWS_AS(trainer.join(2), UsageError);
  CHECK_THROWS_AS(trainer.join(3), InvalidArgument);
  CHECK_THROWS_AS(trainer.join(-1), InvalidArgument);
  auto b = trainer.join();
  CHECK(b.index() == 1);
  CHECK_THROWS_WITH(trainer.join(), ContainsSubstring("3"));
  CHECK_THROWS_AS(trainer.start_over(), UsageError);
  auto moved = std::move(b);
  CHECK(moved.index() == 1);
  moved.leave();
  CHECK_THROWS_AS(moved.gradient(net.w), UsageError);
  CHECK_THROWS_AS(moved.value(net.w), UsageError);
  CHECK_THROWS_AS(moved.apply_gradients(), UsageError);
  CHECK_NOTHROW(moved.leave());
}

TEST_CASE("replicas: refused calls do not take part in the round", "[sync][replicas]") {
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 1}};
  auto replica = trainer.join();
  CHECK_THROWS_AS(replica.apply_gradients(), NoGradients);
  CHECK_THROWS_AS(step(replica, net.w, 1, {.weight = 0}), InvalidArgument);
  CHECK_THROWS_AS(step(replica, net.w, 1, {.weight = std::nan("")}), InvalidArgument);
  CHECK_THROWS_AS(step(replica, net.w, 1, {.timeout = -1ms}), InvalidArgument);
  CHECK_THROWS_AS(replica.resume(), UsageError);
  CHECK_THROWS_AS(replica.withdraw(), UsageError);
  CHECK(trainer.stats(0).accepted == 0);
  CHECK(net.value() == 0);
  CHECK(step(replica, net.w, 1).global_step == 1);
  CHECK_THROWS_AS(replica.apply_gradients(), NoGradients);
}

TEST_CASE("replicas: run goes on where the last run ended", "[sync][replicas][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Momentum{.learning_rate = 1, .momentum = 0.5},
                       net.variables,
                       {.replicas_to_aggregate = 2, .global_step = 10}};
  for (int run = 1; run <= 3; ++run) {
    std::array<std::int64_t, 2> sequences{};
    trainer.run([&](auto& replica) {
      sequences[at(replica.index())] = replica.sequence();
      step(replica, net.w, 1);
    });
    CHECK(sequences == std::array<std::int64_t, 2>{run - 1, run - 1});
    CHECK(trainer.global_step() == 10 + run);
  }
  CHECK(net.value() == -(1 + 1.5 + 1.75));
  CHECK(trainer.slot_names() == std::vector<std::string>{"momentum"});
  CHECK(trainer.slot("momentum", net.w)[0] == 1.75);
  CHECK_THROWS_AS(trainer.slot("m", net.w), UnknownVariable);
  CHECK(trainer.stats(0).incarnation == 3);
}

TEST_CASE("replicas: an exception in a loop is rethrown, and the others are told",
          "[sync][replicas][thread]") {
  const Watchdog watchdog;
  for (const int culprit : {0, 1, 2}) {
    Net<> net;
    SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 3}};
    std::array<std::exception_ptr, 3> told;
    const auto thrown = thrown_by([&] {
      trainer.run([&](auto& replica) {
        told[at(replica.index())] = thrown_by([&] {
          for (int t = 0; t < 5; ++t) {
            if (t == 2 && replica.index() == culprit) throw std::out_of_range("no more batches");
            step(replica, net.w, 1);
          }
        });
        if (told[at(replica.index())]) std::rethrow_exception(told[at(replica.index())]);
      });
    });
    CHECK(caught<std::out_of_range>(thrown));
    for (int i = 0; i < 3; ++i)
      if (i != culprit) {
        const auto failed = caught<PeerFailed>(told[at(i)]);
        REQUIRE(failed);
        CHECK(failed->replica() == culprit);
      }
    CHECK(net.value() == -2);
    trainer.run([&](auto& replica) { step(replica, net.w, 1); });  // and the trainer is usable again
    CHECK(net.value() == -3);
  }
}

TEST_CASE("replicas: the aggregated gradient is clipped, over all tiles and variables",
          "[sync][replicas][thread]") {
  const Watchdog watchdog;
  Variables<double> variables;
  const auto a = variables.add("a", Eigen::VectorXd::Zero(10000));
  const auto b = variables.add("b", Eigen::VectorXd::Zero(1));
  SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 2, .clip_norm = 5}};
  std::array<int, 2> contributions{};
  trainer.run([&](auto& replica) {
    replica.gradient(a).setZero();
    replica.gradient(a)[9999] = replica.index() == 0 ? 4 : 8;  // mean 6
    replica.gradient(b)[0] = 8;
    contributions[at(replica.index())] = replica.apply_gradients().contributions;
  });
  CHECK(contributions == std::array{2, 2});
  CHECK(variables.value(a)[9999] == Approx(-3).epsilon(1e-14));
  CHECK(variables.value(b)[0] == Approx(-4).epsilon(1e-14));
}

TEST_CASE("replicas: each contribution is clipped on its own", "[sync][replicas][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .clip_contribution_norm = 2}};
  trainer.run([&](auto& replica) { step(replica, net.w, replica.index() == 0 ? 10 : 1); });
  CHECK(net.value() == Approx(-1.5).epsilon(1e-14));
}

TEST_CASE("replicas: a gradient that is not finite is handled as asked, by all", "[sync][replicas][thread]") {
  const Watchdog watchdog;
  for (const NonFinite policy :
       {NonFinite::propagate, NonFinite::skip_contribution, NonFinite::skip_update}) {
    INFO("policy " << static_cast<int>(policy));
    Net<> net(9000);
    SyncReplicas trainer{
        Adam{.learning_rate = 1}, net.variables, {.replicas_to_aggregate = 3, .non_finite = policy}};
    std::array<StepResult, 3> results, later;
    trainer.run([&](auto& replica) {
      replica.gradient(net.w).setConstant(replica.index() + 1);
      if (replica.index() == 1) replica.gradient(net.w)[8999] = std::numeric_limits<double>::infinity();
      results[at(replica.index())] = replica.apply_gradients();
      later[at(replica.index())] = step(replica, net.w, 4);
    });
    for (int i = 0; i < 3; ++i) {
      const StepResult& result = results[at(i)];
      switch (policy) {
        case NonFinite::propagate:
          CHECK(result.status == Status::accepted);
          break;
        case NonFinite::skip_contribution:
          CHECK(result.status == (i == 1 ? Status::skipped : Status::accepted));
          CHECK(result.global_step == 1);
          break;
        case NonFinite::skip_update:
          CHECK(result.status == Status::skipped);
          CHECK(result.culprit == 1);
          CHECK(result.global_step == 0);
          break;
      }
      CHECK(later[at(i)].status == Status::accepted);
    }
    const double m = trainer.slot("m", net.w)[0];
    if (policy == NonFinite::skip_contribution)
      CHECK(m == Approx(0.1 * 2 * 0.9 + 0.1 * 4).epsilon(1e-12));  // the mean of two
    if (policy == NonFinite::skip_update) {
      CHECK(m == Approx(0.1 * 4).epsilon(1e-12));
      CHECK(trainer.stats(0).skipped == 1);
      CHECK(net.value(8999) == Approx(-1).epsilon(1e-6));  // the bias correction counts one update
    }
    if (policy != NonFinite::propagate) CHECK(std::isfinite(net.value(8999)));
  }
}

TEST_CASE("replicas: a round in which nobody has a finite gradient changes nothing",
          "[sync][replicas][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{
      Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .non_finite = NonFinite::skip_contribution}};
  std::array<StepResult, 2> results;
  trainer.run([&](auto& replica) { results[at(replica.index())] = step(replica, net.w, std::nan("")); });
  for (const StepResult& result : results) CHECK(result.status == Status::skipped);
  CHECK(net.value() == 0);
  CHECK(trainer.global_step() == 0);
}

TEST_CASE("replicas: what some replicas lack counts as zero, or not at all", "[sync][replicas][thread]") {
  const Watchdog watchdog;
  for (const Absent absent : {Absent::zero, Absent::excluded}) {
    Variables<double> variables;
    const auto w = variables.add("w", Eigen::VectorXd::Zero(3));
    const auto rows = variables.add("rows", Eigen::VectorXd::Zero(4100));
    SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 3, .absent = absent}};
    trainer.run([&](auto& replica) {
      const int i = replica.index();
      if (i == 1) replica.set_gradient(w, Eigen::VectorXd::Constant(3, 6));
      if (i != 1)
        replica.set_rows(rows, std::vector{4099, 64 * i}, Eigen::VectorXd::Constant(2, 3 * (i + 1)));
      replica.apply_gradients({.weight = 1.0 + i});
    });
    const bool zero = absent == Absent::zero;
    CHECK(variables.value(w)[0] == Approx(zero ? -2 * 6 / 6.0 : -6).epsilon(1e-14));
    CHECK(variables.value(rows)[0] == Approx(zero ? -1 * 3 / 6.0 : -3).epsilon(1e-14));
    CHECK(variables.value(rows)[128] == Approx(zero ? -3 * 9 / 6.0 : -9).epsilon(1e-14));
    CHECK(variables.value(rows)[4099] == Approx(-(1 * 3 + 3 * 9) / (zero ? 6.0 : 4.0)).epsilon(1e-14));
    CHECK(variables.value(rows)[1] == 0);
  }
}

TEST_CASE("replicas: several trainers work side by side", "[sync][replicas][thread]") {
  const Watchdog watchdog;
  Net<> a, b;
  Net<float> c(5000);
  SyncReplicas first{Sgd{1.0}, a.variables, {.replicas_to_aggregate = 3}};
  SyncReplicas second{
      Momentum{.learning_rate = 1}, b.variables, {.replicas_to_aggregate = 2, .total_num_replicas = 3}};
  SyncReplicas third{Adam{}, c.variables, {.replicas_to_aggregate = 6, .total_num_replicas = 3}};
  const auto thrown = run_replicas(3, [&](int i) {
    auto x = first.join(i);
    auto y = second.join(i);
    auto z = third.join(i);
    for (int t = 0; t < 10; ++t) {
      step(x, a.w, i);
      step(y, b.w, 1);
      step(z, c.w, 1);
      step(z, c.w, 1);
    }
  });
  for (const auto& error : thrown) CHECK(message_of(error) == "");
  CHECK(a.value() == -10);
  CHECK(first.global_step() == 10);
  CHECK(second.global_step() >= 10);
  CHECK(third.global_step() == 10);
}

TEST_CASE("replicas: a steady step allocates nothing in any thread", "[sync][replicas][thread]") {
  const Watchdog watchdog;
  const auto count = [](const auto& recipe, const SyncOptions& options) {
    Variables<float> variables;
    const auto w = variables.add("w", Eigen::VectorXf::Ones(9000));
    const auto rows = variables.add("rows", Eigen::VectorXf::Ones(70));
    SyncReplicas trainer{recipe, variables, options};
    std::vector<std::uint64_t> made(at(trainer.replicas()));
    trainer.run([&](auto& replica) {
      const std::vector<int> indices{3, 64};
      const Eigen::VectorXf values = Eigen::VectorXf::Ones(2);
      std::uint64_t before = 0;
      for (int t = 0; t < 24; ++t) {
        if (t == 12) before = allocations();
        replica.gradient(w).setConstant(1);
        if (t % 3 != 0) replica.set_rows(rows, indices, values);
        replica.apply_gradients();
      }
      made[at(replica.index())] = allocations() - before;
    });
    std::uint64_t sum = 0;
    for (const std::uint64_t n : made) sum += n;
    return sum;
  };
  CHECK(count(Sgd{}, {.replicas_to_aggregate = 3}) == 0);
  CHECK(count(Adam{}, {.replicas_to_aggregate = 2, .non_finite = NonFinite::skip_update, .clip_norm = 1}) ==
        0);
  CHECK(count(Lamb{}, {.replicas_to_aggregate = 2}) == 0);
  CHECK(count(Sgd{}, {.replicas_to_aggregate = 4, .total_num_replicas = 2}) == 0);
  CHECK(count(GradientAggregation<Sgd>{Sgd{}, {.grad_steps = 3}}, {.replicas_to_aggregate = 2}) == 0);
}

TEST_CASE("replicas: statistics tell who did what", "[sync][replicas][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2}};
  trainer.run([&](auto& replica) {
    for (int t = 0; t < 5; ++t) {
      if (replica.index() == 1) wait_until([&] { return trainer.stats(0).accepted == t + 1; });
      step(replica, net.w, 1);
    }
  });
  CHECK(trainer.stats(0).accepted == 5);
  CHECK(trainer.stats(0).last_arrivals == 0);
  CHECK(trainer.stats(1).last_arrivals == 5);
  CHECK(trainer.stats(0).waiting > 0ns);
  CHECK(trainer.stats(0).waiting > trainer.stats(1).waiting);
  CHECK(trainer.stats(0).incarnation == 1);
  CHECK(trainer.stats(0).stale + trainer.stats(0).not_needed + trainer.stats(0).skipped == 0);
  CHECK(trainer.stats(1).local_step == 4);  // of its last contribution
}

TEST_CASE("replicas: if a thread cannot be started the others end at once", "[sync][replicas][thread]") {
  const Watchdog watchdog;
  if (!are_allocations_counted()) return;
  Net<> net, by_variable;
  SyncReplicas trainer{Sgd{1.0},
                       net.variables,
                       {.name = "nets", .replicas_to_aggregate = 4, .deadline = std::chrono::hours(1)}};
  const std::exception_ptr thrown = run_without_second_thread(trainer, net.w);
  CHECK(caught<SystemError>(thrown));
  CHECK_THAT(message_of(thrown),
             StartsWith("nets") && ContainsSubstring("run: cannot start thread 2 of 3: "));
  trainer.run([&](auto& replica) { step(replica, net.w, 1); });
  CHECK(trainer.global_step() == 1);

  VariableReplicas trainer_by_variable{
      Sgd{1.0}, by_variable.variables, {.replicas_to_aggregate = 4, .deadline = std::chrono::hours(1)}};
  const std::exception_ptr thrown_too = run_without_second_thread(trainer_by_variable, by_variable.w);
  CHECK(caught<SystemError>(thrown_too));
  CHECK_THAT(message_of(thrown_too), StartsWith("run: cannot start thread 2 of 3: "));
}

TEST_CASE("replicas: one replica may give many contributions to an update", "[sync][replicas]") {
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 70'000, .total_num_replicas = 1}};
  auto replica = trainer.join();
  StepResult result = step(replica, net.w, 1);
  while (result.round_open) result = step(replica, net.w, 1);
  CHECK(result.status == Status::accepted);
  CHECK(result.contributions == 70'000);
  CHECK(result.culprit == -1);
  CHECK(net.value() == -1);
  Net<> other;
  CHECK_THROWS_WITH((SyncReplicas{Sgd{1.0}, other.variables, {.replicas_to_aggregate = 500'001}}),
                    ContainsSubstring("replicas_to_aggregate: at most 500000, got 500001"));
}

TEST_CASE("replicas: the largest outcome of a round fits its word", "[sync][replicas]") {
  const detail::Outcome most{.contributions = 2 * k_max_contributions + k_max_replicas,
                             .culprit = k_max_replicas - 1,
                             .applied = false,
                             .skipped = true,
                             .restored = true};
  const std::int64_t round = 0xFFFFFFFE;
  const auto found = detail::Outcome::unpacked(most.packed(round), round);
  CHECK(found.contributions == most.contributions);
  CHECK(found.culprit == most.culprit);
  CHECK_FALSE(found.applied);
  CHECK(found.skipped);
  CHECK(found.restored);
}
