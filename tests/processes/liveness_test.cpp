// SPDX-License-Identifier: MIT
// Processes that are killed, stopped, replaced or forked.
#include "processes/scenario.hpp"

#include <array>
#include <functional>
#include <memory>
#include <sys/resource.h>

using namespace lockstep;
using namespace lockstep::test;

namespace {

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// As `steps`, but stands still once `rounds` are done, until it is killed or the gate opens.
auto steps_then_stand(double gradient, std::int64_t rounds) {
  return [=](auto& replica, const auto& w, Found& found) {
    steps(gradient, rounds)(replica, w, found);
    for (;;) ::pause();
  };
}

}  // namespace

TEST_CASE("BR-066: a killed replica is replaced under its number", "[processes][BR-066]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const Shared<FoundByAll<3>> all;
  const Plan plan{{.replicas_to_aggregate = 3, .departure = Departure::wait, .deadline = 30s}, folder.path()};
  const auto start = [&](int i) {
    return Process([&, i] { return train(plan, i, all->replica[i], steps(i + 1, 6)); });
  };
  Process zero = start(0), two = start(2);
  Process one([&] { return train(plan, 1, all->replica[1], steps_then_stand(2, 3)); });
  wait_until([&] { return all->replica[1].rounds == 3; });
  one.send(SIGKILL);
  CHECK(one.wait() == 128 + SIGKILL);
  Process again = start(1);
  CHECK(again.wait() == 0);
  CHECK(zero.wait() == 0);
  CHECK(two.wait() == 0);
  for (const Found& found : all->replica) CHECK(found.value == -12);
  CHECK(all->replica[1].step_at_join == 3);
  CHECK(all->replica[1].incarnation == 2);
  CHECK(folder.files().empty());
}

TEST_CASE("BR-080: a stopped replica is waited for, and named when the deadline passes",
          "[processes][BR-080]") {
  const Watchdog watchdog;
  // The longest step of the three that are not stopped.
  const auto stop_in_round_3 = [](bool goes_on) {
    const SessionFolder folder;
    const Shared<FoundByAll<4>> all;
    const Plan plan{{.replicas_to_aggregate = 4, .deadline = 30s}, folder.path()};
    std::vector<Process> replicas;
    for (int i = 0; i < 4; ++i)
      replicas.emplace_back([&, i] {
        return train(plan, i, all->replica[i], [i, &all](auto& replica, const auto& w, Found& found) {
          while (replica.global_step() < 6) {
            if (i == 2 && found.rounds == 2) {  // stands still with nothing given to round 3
              all->gate = 1;
              ::raise(SIGSTOP);
            }
            replica.gradient(w).setConstant(1);
            const double cpu = cpu_seconds();
            try {
              const StepTimer timer(found);
              replica.apply_gradients({.timeout = found.rounds < 2 ? 30s : 1s});
            } catch (const TimeoutError& error) {
              found.cpu_share = (cpu_seconds() - cpu) * 1000 / static_cast<double>(found.longest_ms);
              if (error.missing().size() == 1) found.missing = error.missing().front().replica;
              std::strncpy(found.error, error.what(), sizeof(found.error) - 1);
              ++all->gate;
              wait_until([&] { return all->gate >= 4; });  // leaving earlier would be news for the others
              return;
            }
            ++found.rounds;
          }
        });
      });
    wait_until([&] { return all->gate == 1; });
    std::int64_t longest_ms = 0;
    if (goes_on) {
      std::this_thread::sleep_for(200ms);
      all->gate = 4;  // whoever gives up all the same does not wait
      replicas[2].send(SIGCONT);
    }
    for (const int i : {0, 1, 3}) {
      CHECK(replicas[static_cast<std::size_t>(i)].wait() == 0);
      const Found& found = all->replica[i];
      longest_ms = std::max(longest_ms, found.longest_ms);
      if (goes_on) continue;
      CHECK(found.missing == 2);
      CHECK(has(found.text(), "replica 2 is alive but slow"));
      CHECK(found.longest_ms >= 1000);
      CHECK(found.cpu_share < 0.2);
    }
    if (!goes_on) {
      replicas[2].send(SIGKILL);
      return std::chrono::milliseconds(longest_ms);
    }
    CHECK(replicas[2].wait() == 0);
    if (longest_ms < 1000)
      for (const Found& found : all->replica) {
        CHECK(found.text() == "");
        CHECK(found.value == -6);
      }
    return std::chrono::milliseconds(longest_ms);
  };
  CHECK(is_within(1000ms, [&] { return stop_in_round_3(true); }));
  CHECK(is_within(1500ms, [&] { return stop_in_round_3(false); }));
}

TEST_CASE("BR-089: the death of replica 0 is like any other", "[processes][BR-089]") {
  const Watchdog watchdog;
  constexpr std::array gradients{1.0, 2.0, 9.0};
  // From the kill to the end of the other two.
  const auto kill_in_round_3 = [&](Departure departure, int victim) {
    const SessionFolder folder;
    const Shared<FoundByAll<3>> all;
    const Plan plan{{.replicas_to_aggregate = 3, .departure = departure, .deadline = 100s}, folder.path()};
    std::vector<Process> replicas;
    for (int i = 0; i < 3; ++i)
      replicas.emplace_back([&, i] {
        const double gradient = gradients[static_cast<std::size_t>(i)];
        return i == victim ? train(plan, i, all->replica[i], steps_then_stand(gradient, 2))
                           : train(plan, i, all->replica[i], steps(gradient, 5));
      });
    wait_until([&] { return all->replica[victim].rounds == 2; });
    const auto killed = Clock::now();
    auto ended = killed;
    replicas[static_cast<std::size_t>(victim)].send(SIGKILL);
    // Two rounds with mean 4, three with the mean of the other two: 5.5 without replica 0.
    const double value = -2 * 4.0 - 3 * (12 - gradients[static_cast<std::size_t>(victim)]) / 2;
    for (int i = 0; i < 3; ++i) {
      if (i == victim) continue;
      const int code = replicas[static_cast<std::size_t>(i)].wait();
      const Found& found = all->replica[i];
      INFO("victim " << victim << ", replica " << i << ": " << found.text());
      ended = std::max(ended, found.ended_at);
      CHECK(code == (departure == Departure::fail ? 1 : 0));
      if (departure == Departure::fail) {
        CHECK(found.blamed == victim);
        CHECK(has(found.text(), "replica " + std::to_string(victim)));
        CHECK(has(found.text(), "its process has died"));
        CHECK(found.value == -8);
      } else {
        CHECK(found.value == value);
      }
    }
    return ended - killed;
  };
  for (const Departure departure : {Departure::fail, Departure::shrink})
    for (const int victim : {0, 1, 2})
      CHECK(is_within(1s, [&] { return kill_in_round_3(departure, victim); }));
}

TEST_CASE("BR-101: half a contribution never counts", "[processes][BR-101]") {
  const Watchdog watchdog;
  constexpr Index size = 1'000'000;
  const SessionFolder folder;
  const Shared<FoundByAll<3>> all;
  const Shared<std::array<std::atomic<bool>, 3>> is_two;
  const Plan plan{{.replicas_to_aggregate = 3, .departure = Departure::shrink, .deadline = 30s},
                  folder.path(),
                  "test",
                  1,
                  0,
                  size};
  std::vector<Process> replicas;
  for (const int i : {0, 1, 2})
    replicas.emplace_back([&, i] {
      return train(plan, i, all->replica[i], [i, &all, &is_two](auto& replica, const auto& w, Found&) {
        auto gradient = replica.gradient(w);
        if (i == 1) {
          gradient.head(size / 2).setConstant(77);
          all->gate = 1;
          for (;;) ::pause();
        }
        gradient.setConstant(i == 0 ? 1 : 3);
        replica.apply_gradients();
        (*is_two)[static_cast<std::size_t>(i)] = (replica.value(w).array() == -2).all();
      });
    });
  wait_until([&] { return all->gate == 1; });
  replicas[1].send(SIGKILL);
  for (const std::size_t i : {0U, 2U}) {
    CHECK(replicas[i].wait() == 0);
    CHECK((*is_two)[i]);
  }
}

TEST_CASE("BR-103: a replica killed in its sleep disturbs nobody's", "[processes][BR-103]") {
  const Watchdog watchdog(120s);
  // The longest call of the two that live.
  const auto kill_in_sleep = [](std::chrono::milliseconds after) {
    const SessionFolder folder;
    const Shared<FoundByAll<3>> all;
    const Plan plan{{.replicas_to_aggregate = 3, .departure = Departure::shrink, .deadline = 30s},
                    folder.path()};
    std::vector<Process> replicas;
    for (const int i : {0, 1, 2})
      replicas.emplace_back([&, i] {
        return train(plan, i, all->replica[i], [i, &all](auto& replica, const auto& w, Found& found) {
          if (i != 2) wait_until([&] { return all->gate == 1; });
          found.rounds = 1;
          for (int round = 0; round < 100; ++round) {
            replica.gradient(w).setConstant(1);
            const StepTimer timer(found);
            replica.apply_gradients();
          }
        });
      });
    wait_until([&] { return all->replica[2].rounds == 1; });
    std::this_thread::sleep_for(after);
    replicas[2].send(SIGKILL);
    (void)replicas[2].wait();
    all->gate = 1;
    INFO(all->replica[0].text() << all->replica[1].text());
    CHECK(replicas[0].wait() == 0);
    CHECK(replicas[1].wait() == 0);
    CHECK(all->replica[0].value == -100);
    CHECK(all->replica[1].value == -100);
    return std::chrono::milliseconds(std::max(all->replica[0].longest_ms, all->replica[1].longest_ms));
  };
  for (int repeat = 0; repeat < 50; ++repeat)
    CHECK(is_within(1s, [&] { return kill_in_sleep(std::chrono::milliseconds(repeat / 2)); }));
}

TEST_CASE("BR-108: killed sessions leave at most one file, which the next one removes",
          "[processes][BR-108]") {
  const Watchdog watchdog(120s);
  const SessionFolder folder;
  std::uintmax_t size = 0;
  for (int repeat = 0; repeat < 100; ++repeat) {
    const Shared<FoundByAll<3>> all;
    // Under another name now and then: leftovers of other sessions are removed as well.
    const Plan plan{{.replicas_to_aggregate = 3, .deadline = 30s},
                    folder.path(),
                    "run" + std::to_string(repeat / 2 % 10)};
    std::vector<Process> replicas;
    for (const int i : {0, 1, 2})
      replicas.emplace_back([&, i] { return train(plan, i, all->replica[i], steps_then_stand(1, 3)); });
    for (const Found& found : all->replica) wait_until([&] { return found.rounds == 3; });
    for (const Process& replica : replicas) replica.send(SIGKILL);
    for (Process& replica : replicas) (void)replica.wait();
    const auto files = folder.files();
    REQUIRE(files.size() == 1);
    const auto left = std::filesystem::file_size(folder.path() + '/' + files.front());
    CHECK((size == 0 || left == size));
    size = left;
    if (repeat % 10 != 9) continue;
    // A run that nobody disturbs.
    const Shared<FoundByAll<1>> one;
    const Plan normal{{.replicas_to_aggregate = 1, .deadline = 30s}, folder.path(), "normal"};
    Process last([&] { return train(normal, 0, one->replica[0], steps(1, 2)); });
    CHECK(last.wait() == 0);
    CHECK(one->replica[0].value == -2);
    CHECK(folder.files().empty());
  }
}

TEST_CASE("BR-114: the name of a killed session serves for other variables", "[processes][BR-114]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const auto train_alone = [&](auto initial, bool ends) {
    const Shared<std::atomic<int>> updates;
    Process process([&] {
      using T = typename decltype(initial)::Scalar;
      Variables<T> variables;
      const auto w = variables.add("w", initial);
      SyncReplicas trainer{Sgd{1.0},
                           variables,
                           {.replicas_to_aggregate = 1, .deadline = 30s},
                           SharedMemory{.name = "x", .directory = folder.path()}};
      trainer.run([&](auto& replica) {
        for (int i = 0; i < 2; ++i, ++*updates) {
          replica.gradient(w).setConstant(1);
          replica.apply_gradients();
        }
        while (!ends) ::pause();
      });
      return (variables.value(w).array() == -2).all() ? 0 : 1;
    });
    if (!ends) {
      wait_until([&] { return *updates == 2; });
      process.send(SIGKILL);
    }
    return process.wait();
  };
  const Eigen::VectorXf ten = Eigen::VectorXf::Zero(10);
  const Eigen::VectorXd twenty = Eigen::VectorXd::Zero(20);
  CHECK(train_alone(ten, false) == 128 + SIGKILL);
  CHECK(folder.files().size() == 1);
  CHECK(train_alone(twenty, false) == 128 + SIGKILL);
  CHECK(folder.files().size() == 1);
  CHECK(train_alone(ten, true) == 0);
  CHECK(folder.files().empty());
}

TEST_CASE("BR-112: a replica is killed and restarted again and again", "[processes][BR-112]") {
  const Watchdog watchdog(120s);
  constexpr int deaths = 50, rounds = 500;
  const SessionFolder folder;
  const Shared<FoundByAll<3>> all;
  const Plan plan{{.replicas_to_aggregate = 3, .departure = Departure::wait, .deadline = 60s},
                  folder.path(),
                  "test",
                  1.0 / 4};
  const auto start = [&](int i) {
    return Process([&, i] { return train(plan, i, all->replica[i], steps(1, rounds)); });
  };
  Process zero = start(0), two = start(2);
  for (int death = 0; death < deaths; ++death) {
    const int goal = all->replica[1].rounds + 5;  // so that some rounds are left for the last one
    Process one([&] {
      return train(plan, 1, all->replica[1], [goal](auto& replica, const auto& w, Found& found) {
        for (;; ++found.rounds) {
          if (found.rounds >= goal) std::this_thread::sleep_for(1h);
          replica.gradient(w).setConstant(1);
          replica.apply_gradients();
        }
      });
    });
    wait_until([&] { return all->replica[1].rounds >= goal - 2; });
    one.send(SIGKILL);
    CHECK(one.wait() == 128 + SIGKILL);
  }
  Process last = start(1);
  CHECK(last.wait() == 0);
  CHECK(zero.wait() == 0);
  CHECK(two.wait() == 0);
  CHECK(all->replica[0].value == -rounds / 4.0);
  CHECK(all->replica[2].value == -rounds / 4.0);
  CHECK(all->replica[1].incarnation == deaths + 1);
}

TEST_CASE("BR-115: a forked child is refused, its parent goes on", "[processes][BR-115]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const Shared<FoundByAll<2>> all;
  const Shared<std::array<std::atomic<int>, 2>> child_code;
  const Plan plan{{.replicas_to_aggregate = 2, .deadline = 30s}, folder.path()};
  std::vector<Process> replicas;
  for (const int i : {0, 1})
    replicas.emplace_back([&, i] {
      return train(plan, i, all->replica[i], [i, &child_code](auto& replica, const auto& w, Found& found) {
        for (int round = 0; round < 5; ++round) {
          replica.gradient(w).setConstant(1);
          if (i == 0 && round == 2) {
            // The child writes into what is its parent's gradient, calls, and destroys the replica.
            Process child([&] {
              replica.gradient(w).setConstant(1000);
              const auto refuses = [](auto&& call) {
                try {
                  call();
                } catch (const UsageError& error) {
                  return has(error.what(), "fork");
                }
                return false;
              };
              bool all_refused = true;
              const bool at_once = is_within(100ms, [&] {
                const auto begin = Clock::now();
                all_refused = all_refused && refuses([&] { replica.apply_gradients(); });
                return Clock::now() - begin;
              });
              const auto mine = std::move(replica);
              return all_refused ? (at_once ? 7 : 6) : 8;
            });
            (*child_code)[0] = child.wait();
          }
          found.last = replica.apply_gradients().status;
        }
      });
    });
  CHECK(replicas[0].wait() == 0);
  CHECK(replicas[1].wait() == 0);
  CHECK((*child_code)[0] == 7);
  for (const Found& found : all->replica) CHECK(found.value == -5);
  CHECK(folder.files().empty());
}

TEST_CASE("BR-115: a forked child keeps the variables of a trainer that it destroys", "[processes][BR-115]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const SharedMemory net{.name = "test", .directory = folder.path()};
  Variables<double> variables;
  const auto w = variables.add("w", Eigen::VectorXd::Zero(3));
  const auto value_in_child = [&](auto trainer) {
    auto replica = trainer->join();
    replica.set_gradient(w, Eigen::VectorXd::Constant(3, 1));
    replica.apply_gradients();
    Process child([&] {
      trainer.reset();
      return static_cast<int>(-variables.value(w).sum());
    });
    return child.wait();
  };
  CHECK(value_in_child(std::make_unique<SyncReplicas<Sgd, SharedMemory, double>>(
            Sgd{1}, variables, SyncOptions{.replicas_to_aggregate = 1}, net)) == 3);
  CHECK(value_in_child(std::make_unique<VariableReplicas<Sgd, SharedMemory, double>>(
            Sgd{1}, variables, VariableOptions{.replicas_to_aggregate = 1}, net)) == 6);
  CHECK(folder.files().empty());
}

TEST_CASE("BR-115: a child that outlives its parent does not keep it alive", "[processes][BR-115]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const Shared<FoundByAll<2>> all;
  const Shared<std::atomic<pid_t>> child;
  const Plan plan{{.replicas_to_aggregate = 2, .departure = Departure::shrink, .deadline = 30s},
                  folder.path()};
  Process one([&] {
    return train(plan, 1, all->replica[1], [&child](auto& replica, const auto& w, Found& found) {
      steps(1, 2)(replica, w, found);
      if (const pid_t id = ::fork(); id > 0) *child = id;
      for (;;) ::pause();
    });
  });
  Process zero([&] { return train(plan, 0, all->replica[0], steps(1, 5)); });
  wait_until([&] { return child->load() > 0; });
  one.send(SIGKILL);
  CHECK(one.wait() == 128 + SIGKILL);
  CHECK(zero.wait() == 0);
  CHECK(all->replica[0].value == -5);
  ::kill(child->load(), SIGKILL);
}

TEST_CASE("a death is noticed although snapshots are taken all the time", "[processes]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const Shared<FoundByAll<2>> all;
  const Plan plan{{.replicas_to_aggregate = 2, .departure = Departure::shrink, .deadline = 500s},
                  folder.path()};
  Process one([&] { return train(plan, 1, all->replica[1], steps_then_stand(1, 2)); });
  Process zero([&] { return train(plan, 0, all->replica[0], steps(1, 5)); });
  Process reader([&] {
    Variables<double> variables;
    (void)variables.add("w", Eigen::VectorXd::Zero(plan.size));
    const SyncReplicas trainer{Sgd{plan.rate}, variables, plan.options, net_of(plan, -1)};
    while (all->gate == 0) (void)trainer.snapshot();  // each of them wakes those who wait
    return 0;
  });
  wait_until([&] { return all->replica[1].rounds == 2; });
  one.send(SIGKILL);
  CHECK(zero.wait() == 0);
  CHECK(all->replica[0].value == -5);
  all->gate = 1;
  CHECK(reader.wait() == 0);
}

TEST_CASE("a snapshot whose process is killed does not hold the others up", "[processes]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const Shared<FoundByAll<1>> all;
  const Plan plan{{.replicas_to_aggregate = 1, .deadline = 30s}, folder.path(), "test", 1, 0, 100'000};
  Process replica([&] {
    return train(plan, 0, all->replica[0], [&all](auto& r, const auto& w, Found& found) {
      while (all->gate == 0) {
        r.gradient(w).setConstant(1);
        r.apply_gradients();
        ++found.rounds;
      }
    });
  });
  wait_until([&] { return all->replica[0].rounds > 3; });
  for (int i = 0; i < 20; ++i) {
    Process reader([&] {
      Variables<double> variables;
      (void)variables.add("w", Eigen::VectorXd::Zero(plan.size));
      const SyncReplicas trainer{Sgd{plan.rate}, variables, plan.options, net_of(plan, -1)};
      for (;;) (void)trainer.snapshot();
      return 0;
    });
    const int before = all->replica[0].rounds;
    wait_until([&] { return all->replica[0].rounds > before + 3; });
    reader.send(SIGKILL);
    (void)reader.wait();
  }
  all->gate = 1;
  CHECK(replica.wait() == 0);
}
