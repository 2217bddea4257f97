// SPDX-License-Identifier: MIT
// Section A of the reports: synchronous rounds.
#include "reports/scenario.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>

using namespace lockstep;
using namespace lockstep::test;

TEMPLATE_TEST_CASE("BR-001: replicas are in lock-step by default", "[reports][BR-001]", float, double) {
  const Watchdog watchdog;
  for (const int replicas : {1, 2, 3, 5, 8})
    for (const int slow : {0, replicas - 1}) {
      INFO("replicas " << replicas << ", slow " << slow);
      Model<TestType> model;
      SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = replicas}};
      std::vector<std::vector<double>> seen(at(replicas));
      std::vector<std::int64_t> rounds(at(replicas));
      trainer.run([&](auto& replica) {
        for (int round = 0; round < 5; ++round) {
          seen[at(replica.index())].push_back(static_cast<double>(replica.value(model.w)[0]));
          if (replica.index() == slow) std::this_thread::sleep_for(20ms);
          step(replica, model.w, 2 * replica.index() + 1);  // 1, 3, 5, ...: the mean is N
          rounds[at(replica.index())] = replica.global_step();
        }
      });
      const double n = replicas;
      for (const auto& values : seen) CHECK(values == std::vector<double>{0, -n, -2 * n, -3 * n, -4 * n});
      CHECK(rounds == std::vector<std::int64_t>(at(replicas), 5));
      CHECK(static_cast<double>(model.value()) == -5 * n);
      for (int i = 0; i < replicas; ++i) CHECK(trainer.stats(i).accepted == 5);
    }
}

namespace {

/// Gradients of the replicas of BR-003; the last one leaves cleanly after 4 rounds.
constexpr std::array k_gradients{1.0, 2.0, 9.0};

struct Departed {
  std::vector<std::exception_ptr> thrown;
  std::array<double, 3> last_seen{};
};

template <class Trainer, class W>
Departed leave_after_round_4(Trainer& trainer, const W& w, bool explicitly) {
  Departed result;
  std::barrier survivors(2);
  result.thrown = run_replicas(3, [&](int i) {
    auto replica = trainer.join(i);
    std::exception_ptr failure;
    try {
      while (replica.global_step() < (i == 2 ? 4 : 10)) step(replica, w, k_gradients[at(i)]);
    } catch (...) {
      failure = std::current_exception();
    }
    result.last_seen[at(i)] = replica.value(w)[0];
    if (i == 2 && explicitly) replica.leave();
    // A survivor that gives up must not look like another departure to the other one.
    if (i != 2) survivors.arrive_and_wait();
    if (failure) std::rethrow_exception(failure);
  });
  return result;
}

}  // namespace

TEST_CASE("BR-003: after a clean departure the others go on, or learn who has left", "[reports][BR-003]") {
  const Watchdog watchdog;
  const bool explicitly = GENERATE(true, false);
  Model<> model;

  SECTION("shrink: the mean is over those who are left") {
    SyncReplicas trainer{
        Sgd{1.0}, model.variables, {.replicas_to_aggregate = 3, .departure = Departure::shrink}};
    CHECK(messages(leave_after_round_4(trainer, model.w, explicitly).thrown) == "");
    CHECK(model.value() == -16 - 9);
    CHECK(trainer.global_step() == 10);
    CHECK(trainer.stats(2).accepted == 4);
    CHECK(trainer.stats(0).accepted == 10);
  }
  SECTION("redistribute: the lowest number contributes for it, so R stays") {
    SyncReplicas trainer{
        Sgd{3.0}, model.variables, {.replicas_to_aggregate = 3, .departure = Departure::redistribute}};
    CHECK(messages(leave_after_round_4(trainer, model.w, explicitly).thrown) == "");
    // (1 + 2 + 9) / 3 = 4 four times, then (1 + 1 + 2) / 3 six times, at rate 3.
    CHECK(model.value() == Approx(-3 * 16 - 6 * 4).epsilon(1e-14));
    CHECK(trainer.stats(0).accepted == 4 + 12);
    CHECK(trainer.stats(1).accepted == 10);
  }
  SECTION("fail: an error that names the replica, at once") {
    SyncReplicas trainer{Sgd{1.0},
                         model.variables,
                         {.replicas_to_aggregate = 3, .departure = Departure::fail, .deadline = 100s}};
    const auto departed = leave_after_round_4(trainer, model.w, explicitly);
    CHECK(!departed.thrown[2]);
    for (const int survivor : {0, 1}) {
      const auto error = caught<PeerFailed>(departed.thrown[at(survivor)]);
      REQUIRE(error);
      CHECK(error->replica() == 2);
      CHECK(has(error->what(), "replica 2"));
      CHECK(departed.last_seen[at(survivor)] == -16);
    }
    CHECK(model.value() == -16);
    CHECK(trainer.global_step() == 4);
  }
  SECTION("wait: its place is kept until the deadline, then an error that names it") {
    SyncReplicas trainer{Sgd{1.0},
                         model.variables,
                         {.replicas_to_aggregate = 3, .departure = Departure::wait, .deadline = 500ms}};
    const auto begin = Clock::now();
    const auto departed = leave_after_round_4(trainer, model.w, explicitly);
    CHECK(Clock::now() - begin >= 500ms);
    for (const int survivor : {0, 1}) {
      const auto error = caught<TimeoutError>(departed.thrown[at(survivor)]);
      REQUIRE(error);
      CHECK(error->missing() == std::vector{Missing{2, Missing::Why::left}});
      CHECK(has(error->what(), "replica 2 has left"));
      CHECK(departed.last_seen[at(survivor)] == -16);
    }
    CHECK(model.value() == -16);
  }
}

TEST_CASE("BR-006: any number of trainers may live side by side", "[reports][BR-006]") {
  const Watchdog watchdog;
  Model<> a, b;
  SyncReplicas first{
      Sgd{0.1}, a.variables, {.name = "generator", .replicas_to_aggregate = 2, .deadline = 300ms}};
  SyncReplicas second{
      Sgd{0.01}, b.variables, {.name = "critic", .replicas_to_aggregate = 2, .deadline = 300ms}};

  SECTION("in the same order on all replicas") {
    const auto thrown = run_replicas(2, [&](int i) {
      auto generator = first.join(i);
      auto critic = second.join(i);
      for (int round = 0; round < 5; ++round) {
        step(generator, a.w, i == 0 ? 1 : 3, {.timeout = 50s});
        step(critic, b.w, i == 0 ? 10 : 30, {.timeout = 50s});
      }
    });
    CHECK(messages(thrown) == "");
    CHECK(a.value() == Approx(-1.0).epsilon(1e-15));
    CHECK(b.value() == Approx(-1.0).epsilon(1e-15));
  }
  SECTION("crossed: an error on all, and both can be brought to an end") {
    std::array<std::exception_ptr, 2> crossed;
    std::barrier both(2);
    const auto thrown = run_replicas(2, [&](int i) {
      auto generator = first.join(i);
      auto critic = second.join(i);
      both.arrive_and_wait();
      crossed[at(i)] = thrown_by([&] {
        if (i == 0)
          step(generator, a.w, 1);
        else
          step(critic, b.w, 30);
      });
      both.arrive_and_wait();
      // What was contributed still stands, so the other order works now.
      if (i == 0) {
        step(critic, b.w, 10, {.timeout = 50s});
        generator.resume({.timeout = 50s});
      } else {
        step(generator, a.w, 3, {.timeout = 50s});
        critic.resume({.timeout = 50s});
      }
    });
    for (const int i : {0, 1}) {
      const auto error = caught<TimeoutError>(crossed[at(i)]);
      REQUIRE(error);
      CHECK(error->missing() == std::vector{Missing{1 - i, Missing::Why::slow}});
      CHECK(has(error->what(), i == 0 ? "generator" : "critic"));
      CHECK(has(error->what(), detail::text(": replica ", i, " waited")));
    }
    CHECK(messages(thrown) == "");
    CHECK(a.value() == Approx(-0.2).epsilon(1e-15));
    CHECK(b.value() == Approx(-0.2).epsilon(1e-15));
  }
}

TEST_CASE("BR-007: a constructed trainer is ready, and a replica that never comes is named",
          "[reports][BR-007]") {
  const Watchdog watchdog;

  SECTION("a late replica takes part in round 1") {
    for (const int replicas : {2, 3, 4}) {
      Model<> model;
      SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = replicas}};
      const auto thrown = run_replicas(replicas, [&](int i) {
        if (i == replicas - 1) {
          // The others have contributed, so they are waiting.
          wait_until([&] { return trainer.stats(0).accepted == 1; });
          std::this_thread::sleep_for(300ms);
        }
        auto replica = trainer.join(i);
        step(replica, model.w, 2 * i + 1);
      });
      CHECK(messages(thrown) == "");
      CHECK(model.value() == -replicas);
      CHECK(trainer.global_step() == 1);
    }
  }
  SECTION("the last of several is never made") {
    for (const int replicas : {2, 4}) {
      Model<> model;
      SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = replicas, .deadline = 500ms}};
      const auto begin = Clock::now();
      std::barrier done(replicas - 1);
      const auto thrown = run_replicas(replicas - 1, [&](int i) {
        auto replica = trainer.join(i);
        const auto error = thrown_by([&] { step(replica, model.w, 1); });
        done.arrive_and_wait();
        if (error) std::rethrow_exception(error);
      });
      CHECK(Clock::now() - begin >= 500ms);
      for (const auto& one : thrown) {
        const auto error = caught<TimeoutError>(one);
        REQUIRE(error);
        CHECK(error->missing() == std::vector{Missing{replicas - 1, Missing::Why::not_joined}});
        CHECK(has(error->what(), "replica " + std::to_string(replicas - 1) + " has not joined"));
      }
      CHECK(model.value() == 0);
    }
  }
}

TEST_CASE("BR-008: a gradient that is not used is reported and counted", "[reports][BR-008]") {
  const Watchdog watchdog;

  SECTION("stale: the round it was made for has been closed") {
    Model<> model;
    SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 2, .total_num_replicas = 3}};
    std::array<StepResult, 3> results;
    double seen_by_late = 0;
    std::barrier joined(3);
    const auto thrown = run_replicas(3, [&](int i) {
      auto replica = trainer.join(i);
      joined.arrive_and_wait();
      if (i == 2) wait_until([&] { return trainer.global_step() == 1; });
      results[at(i)] = step(replica, model.w, i == 2 ? 100 : i + 1);
      if (i == 2) seen_by_late = replica.value(model.w)[0];
      joined.arrive_and_wait();  // nobody leaves before all have been told
    });
    CHECK(messages(thrown) == "");
    CHECK(model.value() == -1.5);
    CHECK(results[0].status == Status::accepted);
    CHECK(results[1].status == Status::accepted);
    CHECK(results[2].status == Status::stale);
    CHECK(results[2].computed_at == 0);
    CHECK(results[2].global_step == 1);
    CHECK(results[2].contributions == 0);
    CHECK(seen_by_late == -1.5);  // it has caught up
    for (const int i : {0, 1, 2}) {
      CHECK(trainer.stats(i).stale == (i == 2 ? 1 : 0));
      CHECK(trainer.stats(i).not_needed == 0);
      CHECK(trainer.stats(i).accepted == (i == 2 ? 0 : 1));
    }
  }
  SECTION("not needed: the round was full, its update not yet made") {
    Model<> model;
    SyncReplicas trainer{Sgd{1.0},
                         model.variables,
                         {.replicas_to_aggregate = 2, .total_num_replicas = 3, .driver = Driver::chief}};
    std::array<StepResult, 3> results;
    std::vector<std::exception_ptr> thrown;
    std::barrier all(3);
    std::jthread replicas([&] {
      thrown = run_replicas(3, [&](int i) {
        auto replica = trainer.join(i);
        all.arrive_and_wait();
        if (i == 2) wait_until([&] { return trainer.stats(0).accepted + trainer.stats(1).accepted == 2; });
        results[at(i)] = step(replica, model.w, i == 2 ? 100 : i + 1);
        all.arrive_and_wait();
      });
    });
    wait_until([&] { return trainer.stats(2).not_needed == 1; });
    CHECK(trainer.chief_step() == 1);
    replicas.join();
    CHECK(messages(thrown) == "");
    CHECK(model.value() == -1.5);
    CHECK(results[2].status == Status::not_needed);
    CHECK(results[2].contributions == 0);
    CHECK(results[2].global_step == 1);
    CHECK(trainer.stats(2).accepted == 0);
    CHECK(trainer.stats(2).stale == 0);
    CHECK(trainer.stats(0).not_needed == 0);
  }
}

TEST_CASE("BR-009: all variables of an update average the same replicas", "[reports][BR-009]") {
  const Watchdog watchdog;
  constexpr std::array gradient{1.0, 2.0, 4.0};
  std::array<int, 3> order{0, 1, 2};
  do {
    INFO("arrival " << order[0] << order[1] << order[2]);
    Variables<double> variables;
    const auto a = variables.add("a", VectorOf<double>::Zero(1));
    const auto b = variables.add("b", VectorOf<double>::Zero(1));
    SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 2, .total_num_replicas = 3}};
    std::barrier written(3), done(3);
    std::atomic<int> b_turn{2};
    const auto thrown = run_replicas(3, [&](int i) {
      auto replica = trainer.join(i);
      const auto position = std::find(order.begin(), order.end(), i) - order.begin();
      // Tensor b is written in the opposite order.
      replica.gradient(a)[0] = gradient[at(i)];
      wait_until([&] { return b_turn == position; });
      replica.gradient(b)[0] = gradient[at(i)];
      --b_turn;
      written.arrive_and_wait();
      if (position > 0)
        wait_until(
            [&] { return trainer.stats(order[static_cast<std::size_t>(position - 1)]).accepted == 1; });
      replica.apply_gradients();
      done.arrive_and_wait();
    });
    CHECK(messages(thrown) == "");
    CHECK(trainer.global_step() == 1);
    CHECK(variables.value(a)[0] == -(gradient[at(order[0])] + gradient[at(order[1])]) / 2);
    CHECK(bits(variables.value(a)[0]) == bits(variables.value(b)[0]));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("BR-009: that holds without any order, round after round", "[reports][BR-009]") {
  const Watchdog watchdog;
  Variables<double> variables;
  const auto a = variables.add("a", VectorOf<double>::Zero(1));
  const auto b = variables.add("b", VectorOf<double>::Zero(5000));  // tiles of its own
  SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 2, .total_num_replicas = 4}};
  bool equal = true;
  trainer.run([&](auto& replica) {
    while (replica.global_step() < 50) {
      if (replica.index() == 3) equal = equal && replica.value(a)[0] == replica.value(b)[4999];
      step(replica, a, 0);  // a mark that is overwritten below
    }
  });
  CHECK(equal);
  CHECK(variables.value(a)[0] == 0);
  trainer.run([&](auto& replica) {
    while (replica.global_step() < 100) {
      if (replica.index() == 3) equal = equal && replica.value(a)[0] == replica.value(b)[4999];
      replica.gradient(a).setConstant(1 << replica.index());
      replica.gradient(b).setConstant(1 << replica.index());
      replica.apply_gradients();
    }
  });
  CHECK(equal);
  CHECK(variables.value(a)[0] < 0);
  CHECK((variables.value(b).array() == variables.value(a)[0]).all());
}

TEST_CASE("BR-014: one update of the wrapped optimizer per round, with the mean", "[reports][BR-014]") {
  const Watchdog watchdog;
  for (const int replicas : {2, 4, 6}) {
    INFO("replicas " << replicas);
    Model<> model;
    std::atomic<int> updates = 0;  // a schedule is asked once per update, and before by who compares rules
    const Schedule rate([&](std::int64_t) {
      ++updates;
      return 0.1;
    });
    SyncReplicas trainer{Momentum{.learning_rate = rate, .momentum = 0.9},
                         model.variables,
                         {.replicas_to_aggregate = replicas}};
    updates = 0;
    std::vector<double> velocity, w;
    trainer.run([&](auto& replica) {
      for (int round = 0; round < 2; ++round) {
        step(replica, model.w, replica.index() % 2 == 0 ? 1 : 3);
        if (replica.index() != 0) continue;
        velocity.push_back(replica.slot("momentum", model.w)[0]);
        w.push_back(replica.value(model.w)[0]);
      }
    });
    REQUIRE(velocity.size() == 2);
    CHECK(velocity[0] == 2.0);
    CHECK(velocity[1] == Approx(3.8).epsilon(1e-15));
    CHECK(w[0] == Approx(-0.2).epsilon(1e-15));
    CHECK(w[1] == Approx(-0.58).epsilon(1e-15));
    CHECK(updates == 2);
    CHECK(trainer.slot("momentum", model.w)[0] == velocity[1]);
  }
}

TEST_CASE("BR-016: more contributions than replicas need no extra arguments", "[reports][BR-016]") {
  const Watchdog watchdog;

  SECTION("a multiple of N: the same number from each") {
    Model<> model;
    SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 4, .total_num_replicas = 2}};
    constexpr std::array<std::array<double, 2>, 2> gradient{{{1, 2}, {3, 6}}};
    std::array<std::array<StepResult, 2>, 2> results;
    trainer.run([&](auto& replica) {
      for (const std::size_t k : {0U, 1U})
        results[at(replica.index())][k] = step(replica, model.w, gradient[at(replica.index())][k]);
    });
    CHECK(model.value() == -3);
    CHECK(trainer.global_step() == 1);
    for (const auto& result : results) {
      CHECK(result[0].status == Status::accepted);
      CHECK(result[0].round_open);
      CHECK(result[0].global_step == 0);
      CHECK(!result[1].round_open);
      CHECK(result[1].global_step == 1);
      CHECK(result[1].contributions == 4);
    }
  }
  SECTION("other multiples") {
    for (const auto& sizes : {std::array{1, 5}, {3, 6}, {2, 8}, {4, 12}}) {
      const int n = sizes[0], r = sizes[1];
      INFO("N " << n << ", R " << r);
      Model<> model;
      SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = r, .total_num_replicas = n}};
      trainer.run([&](auto& replica) {
        // Each gives number + 1, number + 2, ... so the mean is (N - 1) / 2 + (R / N + 1) / 2 in every round.
        while (replica.global_step() < 3)
          step(replica, model.w, replica.index() + static_cast<double>(replica.sequence() % (r / n)) + 1);
      });
      CHECK(model.value() == Approx(-3 * ((n - 1) / 2.0 + (r / n + 1) / 2.0)).epsilon(1e-14));
      CHECK(trainer.global_step() == 3);
      for (int i = 0; i < n; ++i) CHECK(trainer.stats(i).accepted == 3 * r / n);
    }
  }
  SECTION("no multiple: the first R mod N replicas give one more") {
    for (const auto& sizes : {std::array{2, 3}, {3, 4}, {3, 5}, {4, 7}}) {
      const int n = sizes[0], r = sizes[1];
      INFO("N " << n << ", R " << r);
      Model<> model;
      SyncReplicas trainer{Sgd{static_cast<double>(r)},
                           model.variables,
                           {.replicas_to_aggregate = r, .total_num_replicas = n}};
      trainer.run([&](auto& replica) {
        while (replica.global_step() < 2) step(replica, model.w, replica.index() + 1);
      });
      double sum = 0;
      for (int i = 0; i < n; ++i) {
        const int share = r / n + (i < r % n ? 1 : 0);
        CHECK(trainer.stats(i).accepted == 2 * share);
        sum += (i + 1) * share;
      }
      CHECK(model.value() == Approx(-2 * sum).epsilon(1e-14));  // rate R makes the sum of it
    }
  }
  SECTION("fewer start tokens than that needs are refused") {
    Model<> model;
    const auto make = [&](int tokens) {
      SyncReplicas trainer{Sgd{},
                           model.variables,
                           {.replicas_to_aggregate = 4, .total_num_replicas = 2, .init_tokens = tokens}};
    };
    CHECK_THROWS_AS(make(1), InvalidArgument);
    CHECK_NOTHROW(make(2));
    CHECK_NOTHROW(make(-1));
  }
}

TEST_CASE("BR-017: moving averages move once per update, never with a micro-batch", "[reports][BR-017]") {
  const Watchdog watchdog;
  const MovingAverage rule{Sgd{1.0}, 0.5};

  SECTION("aggregation in one replica") {
    with_each_aggregation(rule, {.grad_steps = 2}, [&](const char* form, auto make) {
      INFO(form);
      Model<> model;
      auto trainer = make(model.variables);
      std::vector<double> averages;
      trainer.run([&](auto& replica) {
        for (int i = 0; i < 6; ++i) {
          step(replica, model.w, 1);
          averages.push_back(replica.slot("average", model.w)[0]);
        }
      });
      CHECK(averages == std::vector<double>{0, -0.5, -0.5, -1.25, -1.25, -2.125});
      CHECK(model.value() == -3);
    });
  }
  SECTION("several replicas, both nestings") {
    with_both_nestings(rule, {.grad_steps = 2}, {.replicas_to_aggregate = 3},
                       [&](const char* form, auto make) {
                         INFO(form);
                         Model<> model;
                         auto trainer = make(model.variables);
                         trainer.run([&](auto& replica) {
                           for (int i = 0; i < 6; ++i) step(replica, model.w, replica.index());
                         });
                         CHECK(model.value() == -3);
                         CHECK(trainer.slot("average", model.w)[0] == -2.125);
                       });
  }
  SECTION("rounds that are skipped do not move it") {
    Model<> model;
    SyncReplicas trainer{
        rule, model.variables, {.replicas_to_aggregate = 2, .non_finite = NonFinite::skip_update}};
    trainer.run([&](auto& replica) {
      for (const double gradient : {1.0, std::numeric_limits<double>::infinity(), 1.0, 1.0})
        step(replica, model.w, replica.index() == 0 ? gradient : 1);
    });
    CHECK(model.value() == -3);
    CHECK(trainer.slot("average", model.w)[0] == -2.125);
  }
}
