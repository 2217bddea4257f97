// SPDX-License-Identifier: MIT
// Deaths at the moments that are hard to mend: of one who settles another's death, of one who has left
// already, in the middle of writing rows, and of one who restores.
#include "kill/fault_points.hpp"
#include "support/catch.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include <lockstep/lockstep.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <Eigen/Core>

#include <atomic>
#include <chrono>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

constexpr Index k_size = 2 * 4096 + 100;  // three items of an update

struct Scene {
  FaultLog log[3];
  std::atomic<double> value[3] = {};  // at the end
  std::atomic<int> flag{0};
};

/// A trainer in the calling process, and its variable.
struct Model {
  Model(const std::string& folder, int place, const SyncOptions& options)
      : w(variables.add("w", Eigen::VectorXd::Zero(k_size))),
        trainer(Sgd{1.0}, variables, options,
                SharedMemory{.name = "kill", .replica = place, .directory = folder, .patience = 10s}) {}
  Variables<double> variables;
  Handle<Eigen::VectorXd, double> w;
  SyncReplicas<Sgd, SharedMemory, double> trainer;
};

/// Steps with the gradient place + 1 until `rounds` updates.
void steps(auto& replica, const auto& w, int rounds) {
  while (replica.global_step() < rounds) {
    replica.gradient(w).setConstant(replica.index() + 1);
    replica.apply_gradients();
  }
}

}  // namespace

TEST_CASE("BR-105: whoever comes after a creator that was killed takes over", "[kill][BR-105]") {
  const Watchdog watchdog(300s);
  for (const char* point : {"create: named", "create: reserved", "create: mapped", "create: half filled",
                            "create: filled", "attach: settled"}) {
    INFO("the creator is killed at '" << point << "'");
    // What the second one takes.
    const auto start_again = [&] {
      const SessionFolder folder;
      const Shared<Scene> scene;
      const auto start = [&](bool is_killed) {
        scene->value[0] = 0;
        Process process([&] {
          if (is_killed) arm(scene->log[0], 1, point);
          Model model(folder.path(), 0, {.replicas_to_aggregate = 1, .deadline = 30s});
          model.trainer.run([&](auto& replica) { steps(replica, model.w, 2); });
          scene->value[0] = model.variables.value(model.w)[k_size - 1];
          return 0;
        });
        return process.wait();
      };
      CHECK(start(true) == 128 + SIGKILL);
      CHECK(scene->log[0].last == std::string(point));
      const auto begin = Clock::now();
      CHECK(start(false) == 0);
      const auto took = Clock::now() - begin;
      CHECK(scene->value[0] == -2);
      CHECK(folder.files().empty());
      CHECK(start(false) == 0);
      CHECK(scene->value[0] == -2);
      CHECK(folder.files().empty());
      return took;
    };
    CHECK(is_within(2s, start_again));
  }
}

TEST_CASE("a replica that settles the death of another is killed as well", "[kill]") {
  const Watchdog watchdog(300s);
  int kills = 0, second_kills = 0, problem = 0;
  const SyncOptions options{.replicas_to_aggregate = 3, .departure = Departure::wait, .deadline = 30s};
  for (const int first_at : {1, 2, 3, 6})
    for (int second_at = 1; second_at <= 10; ++second_at) {
      INFO("first killed at point " << first_at << " of an item, second at point " << second_at
                                    << " of settling it");
      const SessionFolder folder;
      const Shared<Scene> scene;
      const auto start = [&](int place, int at, const char* after) {
        return Process([&, place, at, after] {
          arm(scene->log[place], at, after);
          Model model(folder.path(), place, options);
          model.trainer.run([&](auto& replica) { steps(replica, model.w, 4); });
          scene->value[place] = model.variables.value(model.w)[k_size - 1];
          return 0;
        });
      };
      // Keeps the session when all three are dead for a moment.
      Process keeper([&] {
        const Model model(folder.path(), -1, options);
        scene->flag = 1;
        wait_until([&] { return scene->flag == 2; });
        return 0;
      });
      wait_until([&] { return scene->flag == 1; });
      std::vector<std::optional<Process>> replicas(3);
      replicas[0].emplace(start(0, first_at, "item"));
      for (const int place : {1, 2})
        replicas[static_cast<std::size_t>(place)].emplace(start(place, second_at, "bury: begun"));
      for (std::size_t ended = 0; ended < 3; std::this_thread::sleep_for(1ms)) {
        ended = 0;
        for (int place = 0; place < 3; ++place) {
          auto& replica = replicas[static_cast<std::size_t>(place)];
          if (!replica->has_ended()) continue;
          const int code = replica->wait();
          if (code == 128 + SIGKILL) {
            ++kills;
            second_kills += place > 0 ? 1 : 0;
            std::this_thread::sleep_for(150ms);  // so that those who wait settle it, not the replacement
            replica.emplace(start(place, 0, ""));
          } else {
            if (code != 0) problem = code;
            ++ended;
          }
        }
      }
      CHECK(problem == 0);
      scene->flag = 2;
      CHECK(keeper.wait() == 0);
      for (const auto& value : scene->value) CHECK(value == -8);
      CHECK(folder.files().empty());
    }
  std::cout << "killed " << kills << " times, of these " << second_kills << " while settling a death"
            << std::endl;
  CHECK(second_kills >= 10);
}

namespace {

constexpr Index k_many = 130 * 4096;  // so many items that up to four are claimed at once
constexpr int k_updates = 4;

double start_of(Index i) { return static_cast<double>(i % 31); }
double gradient_of(int place, Index i) { return static_cast<double>((place + 1) * (i % 13 + 1)); }

/// Elements that are not what updates with the gradients of two replicas make of them. All numbers are exact.
Index wrong_elements(const Eigen::VectorXd& w) {
  Index wrong = 0;
  for (Index i = 0; i < k_many; ++i) {
    double value = start_of(i), momentum = 0;
    for (int update = 0; update < k_updates; ++update) {
      momentum = 0.5 * momentum + 0.5 * (gradient_of(0, i) + gradient_of(1, i));
      value -= 0.25 * momentum;
    }
    wrong += w[i] != value ? 1 : 0;
  }
  return wrong;
}

/// One of two replicas in the calling process, which is killed at a point from its first item on.
int train_many(Scene& scene, const std::string& folder, int place, int at) {
  arm(scene.log[place], at, "item");
  Variables<double> variables;
  const auto w =
      variables.add("w", Eigen::VectorXd::NullaryExpr(k_many, [](Index i) { return start_of(i); }));
  SyncReplicas trainer(Momentum{0.25, 0.5}, variables,
                       {.replicas_to_aggregate = 2, .departure = Departure::wait, .deadline = 30s},
                       SharedMemory{.name = "kill", .replica = place, .directory = folder, .patience = 10s});
  trainer.run([&](auto& replica) {
    while (replica.global_step() < k_updates) {
      auto gradient = replica.gradient(w);
      for (Index i = 0; i < k_many; ++i) gradient[i] = gradient_of(place, i);
      replica.apply_gradients();
    }
  });
  scene.value[place] = static_cast<double>(wrong_elements(variables.value(w)));
  return 0;
}

}  // namespace

TEST_CASE("a replica is killed in the middle of a run of several items", "[kill]") {
  const Watchdog watchdog(300s);
  int kills = 0, tries = 0;
  const auto kill_at = [&](int victim, int at) {
    INFO("replica " << victim << " killed at point " << at << " from its first item on");
    const SessionFolder folder;
    const Shared<Scene> scene;
    for (auto& wrong : scene->value) wrong = -1;
    const auto start = [&](int place, int point) {
      return Process([&, place, point] { return train_many(*scene, folder.path(), place, point); });
    };
    Process doomed = start(victim, at), other = start(1 - victim, 0);
    ++tries;
    if (doomed.wait() == 128 + SIGKILL) {
      ++kills;
      Process replacement = start(victim, 0);
      CHECK(replacement.wait() == 0);
    }
    CHECK(other.wait() == 0);
    for (const int place : {0, 1}) CHECK(scene->value[place] == 0);
    CHECK(folder.files().empty());
  };
  // 67 points are of the first item, which is claimed alone; then the loop of a run, and marks of its items.
  for (int at = 60; at <= 345; at += at < 320 ? 29 : 1) kill_at(0, at);
  // Replica 1 begins in the middle, and goes on at the front after half of all.
  for (int at = 4300; at <= 4700; at += 29) kill_at(1, at);
  CHECK(kills > tries / 2);
}

TEST_CASE("a replica is killed in the update that its leaving has closed", "[kill]") {
  const Watchdog watchdog(300s);
  int kills = 0;
  for (int at = 1; at <= 40; ++at) {
    INFO("killed at point " << at << " of leaving");
    const SessionFolder folder;
    const Shared<Scene> scene;
    const SyncOptions options{.replicas_to_aggregate = 3, .departure = Departure::shrink, .deadline = 30s};
    std::vector<Process> replicas;
    for (const int place : {0, 1})
      replicas.emplace_back([&, place] {
        Model model(folder.path(), place, options);
        model.trainer.run([&](auto& replica) {
          while (replica.global_step() < 3) {
            replica.gradient(model.w).setConstant(1);
            replica.apply_gradients();
          }
        });
        scene->value[place] = model.variables.value(model.w)[0];
        return 0;
      });
    Process leaver([&] {
      Model model(folder.path(), 2, options);
      auto replica = model.trainer.join(2);
      replica.gradient(model.w).setConstant(1);
      replica.apply_gradients();
      wait_until(
          [&] { return model.trainer.stats(0).accepted == 2 && model.trainer.stats(1).accepted == 2; });
      arm(scene->log[2], at);
      replica.leave();
      return 0;
    });
    kills += leaver.wait() == 128 + SIGKILL ? 1 : 0;
    for (const std::size_t place : {0U, 1U}) {
      CHECK(replicas[place].wait() == 0);
      CHECK(scene->value[place] == -3);
    }
  }
  std::cout << "killed " << kills << " times while leaving" << std::endl;
  CHECK(kills > 20);
}

TEST_CASE("a replica is killed between two rows of its gradient", "[kill]") {
  using Table = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Watchdog watchdog(120s);
  const std::vector<int> rows{0, 99, 250};
  for (int number = 0; number < 12; ++number) {
    const bool in_place = number % 2 != 0;
    const int at = 1 + number / 2;
    INFO("killed at point " << at << " of " << (in_place ? "placing" : "writing") << " rows");
    const SessionFolder folder;
    const Shared<Scene> scene;
    const auto start = [&](int place, int dies_at) {
      return Process([&, place, dies_at] {
        Variables<double> variables;
        const auto table = variables.add("table", Table(Table::Zero(300, 4)));
        SyncReplicas trainer{Sgd{1.0},
                             variables,
                             {.replicas_to_aggregate = 2, .departure = Departure::wait, .deadline = 30s},
                             SharedMemory{.name = "kill", .replica = place, .directory = folder.path()}};
        arm(scene->log[place], dies_at, "rows");
        trainer.run([&](auto& replica) {
          while (replica.global_step() < 3) {
            if (in_place)
              for (const auto all = replica.row_gradients(table, rows); const int row : rows)
                all[row].setConstant(place + 1);
            else
              replica.set_rows(table, rows, Table(Table::Constant(3, 4, place + 1)));
            replica.apply_gradients();
          }
        });
        const Table& all = variables.value(table);
        scene->value[place] = all.sum() == 3 * 4 * -4.5 ? all(99, 3) : 1;
        return 0;
      });
    };
    Process zero = start(0, 0), one = start(1, at);
    CHECK(one.wait() == 128 + SIGKILL);
    Process again = start(1, 0);
    CHECK(zero.wait() == 0);
    CHECK(again.wait() == 0);
    CHECK(scene->value[0] == -4.5);
    CHECK(scene->value[1] == -4.5);
  }
}

TEST_CASE("variables that are half restored are not trained", "[kill]") {
  const Watchdog watchdog(120s);
  const SessionFolder folder;
  const Shared<Scene> scene;
  const SyncOptions options{.replicas_to_aggregate = 1, .deadline = 30s};
  Model keeper(folder.path(), -1, options);
  keeper.trainer.run([&](auto& replica) { steps(replica, keeper.w, 2); });
  const auto saved = keeper.trainer.snapshot();
  Process restorer([&] {
    Model model(folder.path(), -1, options);
    arm(scene->log[0], 1, "restore: written");
    model.trainer.restore(saved);
    return 0;
  });
  REQUIRE(restorer.wait() == 128 + SIGKILL);
  CHECK_THROWS_AS(keeper.trainer.run([&](auto& replica) { steps(replica, keeper.w, 3); }), UsageError);
  keeper.trainer.restore(saved);
  keeper.trainer.run([&](auto& replica) { steps(replica, keeper.w, 3); });
  CHECK(keeper.variables.value(keeper.w)[0] == -3);
}
