// SPDX-License-Identifier: MIT
// The scenarios of sections A to C that save and restore.
#include "reports/scenario.hpp"

#include <array>
#include <atomic>
#include <barrier>
#include <functional>
#include <limits>

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("BR-012: what was computed before a restore is refused", "[reports][BR-012]") {
  const Watchdog watchdog;
  for (const int saved : {5, 0, 9, 10}) {
    INFO("snapshot after round " << saved);
    Model<> model;
    SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 2}};
    Snapshot<double> snapshot = trainer.snapshot();
    std::array<StepResult, 2> held;
    std::array<double, 2> seen{};
    std::barrier both(2);
    const auto thrown = run_replicas(2, [&](int i) {
      auto replica = trainer.join(i);
      while (replica.global_step() < 10) {
        step(replica, model.w, i == 0 ? 1 : 3);
        // The other one cannot go on without this one.
        if (i == 0 && replica.global_step() == saved) snapshot = trainer.snapshot();
      }
      replica.gradient(model.w)[0] = 1000;
      both.arrive_and_wait();
      if (i == 0) trainer.restore(snapshot);
      both.arrive_and_wait();
      held[at(i)] = replica.apply_gradients();
      seen[at(i)] = replica.value(model.w)[0];
      both.arrive_and_wait();
      while (replica.global_step() < saved + 5) step(replica, model.w, i == 0 ? 1 : 3);
    });
    CHECK(messages(thrown) == "");
    for (const int i : {0, 1}) {
      CHECK(held[at(i)].status == Status::old_generation);
      CHECK(to_string(held[at(i)].status) == std::string("old generation"));
      CHECK(held[at(i)].global_step == saved);
      CHECK(held[at(i)].contributions == 0);
      CHECK(seen[at(i)] == -2 * saved);
      CHECK(trainer.stats(i).stale == 1);
    }
    CHECK(model.value() == -2 * (saved + 5));
    CHECK(trainer.global_step() == saved + 5);
  }
}

TEST_CASE("BR-012: a contribution that waits in the open round is refused, too", "[reports][BR-012]") {
  const Watchdog watchdog;
  Model<> model;
  SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 2}};
  const auto initial = trainer.snapshot();
  StepResult waiting;
  std::vector<std::exception_ptr> thrown;
  std::barrier both(2);
  std::jthread replicas([&] {
    thrown = run_replicas(2, [&](int i) {
      auto replica = trainer.join(i);
      step(replica, model.w, 1);
      if (i == 0) waiting = step(replica, model.w, 1000);
      both.arrive_and_wait();
      while (replica.global_step() < 3) step(replica, model.w, 2);
    });
  });
  wait_until([&] { return trainer.stats(0).accepted == 2; });
  trainer.restore(initial);
  replicas.join();
  CHECK(messages(thrown) == "");
  CHECK(waiting.status == Status::old_generation);
  CHECK(waiting.global_step == 0);
  CHECK(model.value() == -6);
  CHECK(trainer.global_step() == 3);
}

TEST_CASE("BR-012: a snapshot waits for an update that is being prepared", "[reports][BR-012]") {
  const Watchdog watchdog;
  Model<> model(0, 20'000);
  std::jthread saver;
  std::atomic<bool> saved = false;
  bool saved_early = false;
  Snapshot<double> snapshot;
  std::function<Snapshot<double>()> take;
  // A schedule is asked when the round is closed and its update has not begun; over a segment also when the
  // trainer is made.
  const Schedule rate([&](std::int64_t) {
    if (!take) return 1.0;
    saver = std::jthread([&] {
      snapshot = take();
      saved = true;
    });
    std::this_thread::sleep_for(100ms);
    saved_early = saved;
    return 1.0;
  });
  SyncReplicas trainer{Sgd{rate}, model.variables, {.replicas_to_aggregate = 2}};
  take = [&] { return trainer.snapshot(); };
  trainer.run([&](auto& replica) { step(replica, model.w, 1); });
  saver.join();
  CHECK(!saved_early);
  CHECK(snapshot.counters.window.updates == 1);
  REQUIRE(snapshot.arrays.size() == 1);
  CHECK(snapshot.arrays[0].values == std::vector<double>(20'000, -1));
}

TEST_CASE("BR-030: after a restore by hand the next window is finite", "[reports][BR-030]") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Model<> model;
  Local trainer{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 2}}, model.variables};
  const auto initial = trainer.snapshot();
  for (const double gradient : {infinity, 1.0}) step(trainer, model.w, gradient);
  CHECK(trainer.value(model.w)[0] == -infinity);
  trainer.restore(initial);
  for (const double gradient : {1.0, 3.0}) step(trainer, model.w, gradient);
  CHECK(trainer.value(model.w)[0] == -2);
}

namespace {

struct Batch {
  double gradient, weight;
};

/// Trains with each batch; after `stop` of them goes on in another trainer of the same kind. Returns w and
/// its momentum.
template <class Make>
std::array<double, 2> train(Make make, const std::vector<Batch>& batches, std::size_t stop) {
  std::array<double, 2> result{};
  Snapshot<double> snapshot;
  const auto run = [&](std::size_t from, std::size_t to) {
    Model<> model(from == 0 ? 0.7 : -99);
    auto trainer = make(model.variables);
    if (from != 0) trainer.restore(snapshot);
    trainer.run([&](auto& replica) {
      for (std::size_t i = from; i < to; ++i)
        step(replica, model.w, batches[i].gradient * (replica.index() + 1), {.weight = batches[i].weight});
      if (replica.index() == 0) result = {replica.value(model.w)[0], replica.slot("momentum", model.w)[0]};
    });
    snapshot = trainer.snapshot();
  };
  if (stop > 0) run(0, stop);
  run(stop, batches.size());
  return result;
}

}  // namespace

TEST_CASE("BR-038: an open window survives a stop", "[reports][BR-038]") {
  const Watchdog watchdog;
  const Momentum rule{.learning_rate = 1.0, .momentum = 0.5};
  const auto check = [&](const char* form, auto make) {
    for (const auto& batches :
         {std::vector<Batch>{{1, 1}, {2, 1}, {3, 1}, {6, 1}},
          std::vector<Batch>{
              {0.1, 2}, {0.7, 0.3}, {1.0 / 3, 5}, {-0.9, 1}, {0.2, 3}, {0.6, 0.7}, {0.3, 1}, {1.1, 9}}}) {
      const auto expected = train(make, batches, 0);
      for (std::size_t stop = 1; stop < batches.size(); ++stop) {
        INFO(form << ", stopped after " << stop << " of " << batches.size());
        const auto found = train(make, batches, stop);
        CHECK(bits(found[0]) == bits(expected[0]));
        CHECK(bits(found[1]) == bits(expected[1]));
      }
    }
  };
  const auto recipe = GradientAggregation<Momentum>{rule, {.grad_steps = 4}};
  check("Local", [&](auto& variables) { return Local{recipe, variables}; });
  for (const int n : {1, 2})
    check("SyncReplicas", [&](auto& variables) {
      return SyncReplicas{recipe, variables, {.replicas_to_aggregate = n}};
    });

  SECTION("the numbers of the scenario") {
    Snapshot<double> snapshot;
    {
      Model<> model;
      Local trainer{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 4}}, model.variables};
      for (const double gradient : {1.0, 2.0}) step(trainer, model.w, gradient);
      snapshot = trainer.snapshot();
    }
    Model<> model(42);
    Local trainer{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 4}}, model.variables};
    trainer.restore(snapshot);
    CHECK(trainer.pending() == 2);
    CHECK(trainer.slot("grad_accum", model.w)[0] == 3);
    CHECK(step(trainer, model.w, 3).status == Status::accumulated);
    CHECK(trainer.value(model.w)[0] == 0);
    CHECK(step(trainer, model.w, 6).status == Status::accepted);
    CHECK(trainer.value(model.w)[0] == -3);
    CHECK(trainer.global_step() == 1);
  }
  SECTION("rows, and variables that are absent so far") {
    using Table = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const auto train_rows = [&](bool stops) {
      Snapshot<double> snapshot;
      Table result;
      for (const int half : {0, 1}) {
        Variables<double> variables;
        const auto table = variables.add("table", Table::Constant(5, 2, 0.3));
        const auto other = variables.add("other", VectorOf<double>::Constant(3, 0.1));
        Local trainer{GradientAggregation<Momentum>{rule, {.grad_steps = 2}}, variables};
        const auto first = [&] {
          trainer.set_rows(table, std::vector{4, 0}, Table::Constant(2, 2, 0.7));
          trainer.apply_gradients();
        };
        if (half == 0 || !stops) first();
        if (half == 0 && !stops) continue;
        if (half == 0) {
          snapshot = trainer.snapshot();
          continue;
        }
        if (stops) trainer.restore(snapshot);
        trainer.set_rows(table, std::vector{0, 2}, Table::Constant(2, 2, 0.9));
        trainer.set_gradient(other, VectorOf<double>::Constant(3, 0.11));
        trainer.apply_gradients();
        result = Table(6, 2);
        result.topRows(5) = trainer.value(table);
        result(5, 0) = trainer.value(other)[2];
        result(5, 1) = trainer.slot("momentum", other)[2];
      }
      return result;
    };
    CHECK(train_rows(true) == train_rows(false));
    CHECK(train_rows(true)(1, 0) == 0.3);
  }
}

TEST_CASE("BR-064: a snapshot does not depend on the number of replicas", "[reports][BR-064]") {
  const Watchdog watchdog;
  const Momentum rule{.learning_rate = 0.1, .momentum = 0.9};
  Model<> uninterrupted;
  std::array<double, 2> expected{};
  {
    Local trainer{rule, uninterrupted.variables};
    for (int round = 0; round < 5; ++round) step(trainer, uninterrupted.w, 2.5);
    expected = {trainer.value(uninterrupted.w)[0], trainer.slot("momentum", uninterrupted.w)[0]};
  }
  Snapshot<double> snapshot;
  {
    Model<> model;
    SyncReplicas trainer{rule, model.variables, {.replicas_to_aggregate = 4}};
    trainer.run([&](auto& replica) {
      for (int round = 0; round < 3; ++round) step(replica, model.w, replica.index() + 1);
    });
    snapshot = trainer.snapshot();
  }
  for (const int n : {2, 4, 8}) {
    INFO("N " << n);
    Model<> model(17);
    SyncReplicas trainer{rule, model.variables, {.replicas_to_aggregate = n}};
    trainer.restore(snapshot);
    CHECK(trainer.global_step() == 3);
    trainer.run([&](auto& replica) {
      for (int round = 0; round < 2; ++round) step(replica, model.w, replica.index() % 2 == 0 ? 2 : 3);
    });
    CHECK(trainer.global_step() == 5);
    CHECK(bits(model.value()) == bits(expected[0]));
    CHECK(bits(trainer.slot("momentum", model.w)[0]) == bits(expected[1]));
  }
  Model<> model;
  Local trainer{rule, model.variables};
  trainer.restore(snapshot);
  for (int round = 0; round < 2; ++round) step(trainer, model.w, 2.5);
  CHECK(trainer.global_step() == 5);
  CHECK(bits(trainer.value(model.w)[0]) == bits(expected[0]));
  CHECK(bits(trainer.slot("momentum", model.w)[0]) == bits(expected[1]));
}
