// SPDX-License-Identifier: MIT
// Processes that train as one: results, departures, replacements, saved state.
#include "processes/scenario.hpp"

#include <algorithm>
#include <array>
#include <pthread.h>
#include <sched.h>

using namespace lockstep;
using namespace lockstep::test;

namespace {

template <class F>
std::vector<int> run_processes(int count, F&& body) {
  std::vector<Process> processes;
  for (int i = 0; i < count; ++i) processes.emplace_back([&, i] { return body(i); });
  std::vector<int> codes;
  for (Process& process : processes) codes.push_back(process.wait());
  return codes;
}

}  // namespace

TEST_CASE("BR-003: a replica leaves; with shrink the others go on, strictly they learn who is missing",
          "[processes][BR-003]") {
  const Watchdog watchdog;
  // The longest step of those who stay.
  const auto leave_after_round_4 = [](Departure departure, std::chrono::milliseconds deadline) {
    const SessionFolder folder;
    const Shared<FoundByAll<3>> all;
    const Plan plan{{.replicas_to_aggregate = 3, .departure = departure, .deadline = 30s}, folder.path()};
    const std::array gradients{1.0, 2.0, 9.0};
    (void)run_processes(3, [&](int i) {
      return train(plan, i, all->replica[i], [&, i](auto& replica, const auto& w, Found& found) {
        try {
          for (; replica.global_step() < (i == 2 ? 4 : 10); ++found.rounds) {
            replica.gradient(w).setConstant(gradients[static_cast<std::size_t>(i)]);
            const StepTimer timer(found);
            replica.apply_gradients({.timeout = replica.global_step() < 4 ? 30s : deadline});
          }
        } catch (const TimeoutError& error) {
          if (error.missing().size() == 1) found.missing = error.missing().front().replica;
          std::strncpy(found.error, error.what(), sizeof(found.error) - 1);
          ++all->gate;
          wait_until([&] { return all->gate == 2; });  // leaving earlier would be news for the other one
        }
      });
    });
    for (const int i : {0, 1}) {
      const Found& found = all->replica[i];
      if (departure == Departure::shrink) {
        CHECK(found.text() == "");
        CHECK(found.value == -25);
      } else {
        if (departure == Departure::wait) {
          CHECK(has(found.text(), "replica 2 has left"));
          CHECK(found.missing == 2);
          CHECK(found.longest_ms >= deadline.count());
        } else {
          CHECK(has(found.text(), "replica 2"));
          CHECK(found.blamed == 2);
        }
        CHECK(found.rounds == 4);
        CHECK(found.value == -16);
      }
    }
    CHECK(folder.files().empty());
    return std::chrono::milliseconds(std::max(all->replica[0].longest_ms, all->replica[1].longest_ms));
  };
  (void)leave_after_round_4(Departure::shrink, 30s);
  CHECK(is_within(1s, [&] { return leave_after_round_4(Departure::fail, 30s); }));
  CHECK(is_within(1s, [&] { return leave_after_round_4(Departure::wait, 500ms); }));
}

TEST_CASE("BR-004: processes end by themselves after their last round", "[processes][BR-004]") {
  const Watchdog watchdog(120s);
  // From the end of round 10 to that of the last process.
  const auto train_and_end = [] {
    const SessionFolder folder;
    const Shared<FoundByAll<2>> all;
    const Shared<std::array<std::ptrdiff_t, 2>> threads;
    const Plan plan{{.replicas_to_aggregate = 2, .deadline = 30s}, folder.path()};
    CHECK(run_processes(2, [&](int i) {
            const int code = train(plan, i, all->replica[i], steps(1, 10));
            (*threads)[static_cast<std::size_t>(i)] = threads_of_process();
            return code;
          }) == std::vector{0, 0});
    const auto ended = Clock::now();
    CHECK(all->replica[0].value == -10);
    CHECK(all->replica[1].value == -10);
    CHECK(*threads == std::array<std::ptrdiff_t, 2>{1, 1});
    CHECK(folder.files().empty());
    return ended - std::min(all->replica[0].ended_at, all->replica[1].ended_at);
  };
  for (int repeat = 0; repeat < 50; ++repeat) CHECK(is_within(1s, train_and_end));
}

TEST_CASE("BR-050: replicas with fewer batches leave, or end training for all", "[processes][BR-050]") {
  const Watchdog watchdog;
  for (const Departure departure : {Departure::shrink, Departure::stop}) {
    const SessionFolder folder;
    const Shared<FoundByAll<4>> all;
    const Plan plan{{.replicas_to_aggregate = 4, .departure = departure, .deadline = 30s}, folder.path()};
    const auto codes = run_processes(4, [&](int i) {
      return train(plan, i, all->replica[i], [i, &all](auto& replica, const auto& w, Found& found) {
        for (int batch = 0; batch < (i == 3 ? 3 : 5); ++batch) {
          replica.gradient(w).setConstant(1);
          const StepResult result = replica.apply_gradients();
          found.last = result.status;
          found.blamed = result.culprit;
          if (found.last == Status::stopped) break;
          ++found.rounds;
        }
        if (i != 3) {
          ++all->gate;
          return;
        }
        // It has no more data, stays until the others have ended, and sees what they have trained.
        replica.leave();
        wait_until([&] { return all->gate == 3; });
      });
    });
    CHECK(codes == std::vector{0, 0, 0, 0});
    for (const int i : {0, 1, 2, 3}) {
      INFO("replica " << i);
      const Found& found = all->replica[i];
      CHECK(found.value == (departure == Departure::shrink ? -5 : -3));
      CHECK(found.rounds == (departure == Departure::shrink && i != 3 ? 5 : 3));
      if (i == 3) continue;
      CHECK(found.last == (departure == Departure::shrink ? Status::accepted : Status::stopped));
      if (departure == Departure::stop) {
        CHECK(found.blamed == 3);
      }
    }
  }
}

TEST_CASE("BR-055: processes with different variables all get the error", "[processes][BR-055]") {
  const Watchdog watchdog;
  for (const int late : {0, 1}) {
    const SessionFolder folder;
    const Shared<FoundByAll<2>> all;
    const Shared<std::atomic<bool>> first_is_in;
    (void)run_processes(2, [&](int i) {
      if (i == late) wait_until([&] { return first_is_in->load(); });
      Found& found = all->replica[i];
      try {
        Variables<double> variables;
        const auto w = variables.add("w", Eigen::VectorXd::Zero(3));
        (void)variables.add("b", Eigen::VectorXd::Zero(2));
        if (i == 0) (void)variables.add("c", Eigen::VectorXd::Zero(1));
        SyncReplicas trainer{Sgd{1.0},
                             variables,
                             {.replicas_to_aggregate = 2, .deadline = 30s},
                             SharedMemory{.name = "test", .replica = i, .directory = folder.path()}};
        *first_is_in = true;
        trainer.run([&](auto& replica) {
          replica.gradient(w).setConstant(1);
          replica.apply_gradients();
        });
      } catch (const Error& error) {
        std::strncpy(found.error, error.what(), sizeof(found.error) - 1);
      }
      return 0;
    });
    for (const Found& found : all->replica) {
      INFO(found.text());
      CHECK(has(found.text(), "variables: 2"));
      CHECK(has(found.text(), "variables: 3"));
      CHECK(has(found.text(), "replica " + std::to_string(late)));
    }
    CHECK(folder.files().empty());
  }
}

TEST_CASE("processes with another rule, parameter or option are told what differs", "[processes]") {
  const Watchdog watchdog;
  const auto refused = [](auto&& second, const char* part) {
    const SessionFolder folder;
    const SharedMemory net{.name = "test", .directory = folder.path()};
    Variables<float> first, other;
    (void)first.add("w", Eigen::VectorXf::Zero(3));
    (void)other.add("w", Eigen::VectorXf::Zero(3));
    const SyncReplicas trainer{Adam{}, first, {.replicas_to_aggregate = 2}, net};
    try {
      second(other, net);
      FAIL("accepted");
    } catch (const LayoutMismatch& error) {
      INFO(error.what());
      CHECK(has(error.what(), part));
      CHECK(has(error.what(), folder.path()));
    }
  };
  refused(
      [](auto& v, const auto& net) {
        SyncReplicas{Adam{.beta1 = 0.8}, v, {.replicas_to_aggregate = 2}, net};
      },
      "rule parameters");
  refused(
      [](auto& v, const auto& net) {
        SyncReplicas{AdamW{}, v, {.replicas_to_aggregate = 2}, net};
      },
      "rule: adamw");
  refused(
      [](auto& v, const auto& net) {
        SyncReplicas{Adam{}, v, {.replicas_to_aggregate = 3}, net};
      },
      "replicas_to_aggregate: 3");
}

TEST_CASE("BR-057: all start from the values of replica 0, even if it comes last", "[processes][BR-057]") {
  const Watchdog watchdog(120s);
  for (int repeat = 0; repeat < 100; ++repeat) {
    const SessionFolder folder;
    const Shared<std::array<std::atomic<int>, 3>> equal;
    const Shared<std::atomic<int>> waiting;
    const auto codes = run_processes(3, [&](int i) {
      if (i == 0) wait_until([&] { return waiting->load() == 2; });
      Variables<double> variables;
      const auto w = variables.add("w", Eigen::VectorXd::Constant(10'000, 1 + 4 * i));
      // State of the optimizer that starts as a copy of the variable.
      SyncReplicas trainer{MovingAverage{Sgd{1.0}, 0.5},
                           variables,
                           {.replicas_to_aggregate = 3, .deadline = 30s},
                           SharedMemory{.name = "test", .replica = i, .directory = folder.path()}};
      ++*waiting;
      trainer.run([&](auto& replica) {
        const auto are_all = [&](double value, double average) {
          return (replica.value(w).array() == value).all() &&
                 (replica.slot("average", w).array() == average).all();
        };
        const bool all_one = are_all(1, 1);
        replica.gradient(w).setConstant(1);
        replica.apply_gradients();
        (*equal)[static_cast<std::size_t>(i)] = all_one && are_all(0, 0.5);
      });
      return 0;
    });
    CHECK(codes == std::vector{0, 0, 0});
    for (const auto& one : *equal) CHECK(one == 1);
  }
}

TEST_CASE("BR-064: what 4 threads have saved 2 processes go on with", "[processes][BR-064]") {
  const Watchdog watchdog;
  const Momentum rule{0.1, 0.9};
  const auto with = [&](auto&& use) {
    Variables<double> variables;
    const auto w = variables.add("w", Eigen::VectorXd::Zero(7));
    return use(variables, w);
  };
  Snapshot<double> saved;
  std::vector<double> uninterrupted;
  with([&](auto& variables, const auto& w) {
    SyncReplicas trainer{rule, variables, {.replicas_to_aggregate = 4, .deadline = 30s}};
    trainer.run([&](auto& replica) {
      for (int round = 0; round < 3; ++round) {
        replica.gradient(w).setConstant(1 + replica.index());
        replica.apply_gradients();
      }
    });
    saved = trainer.snapshot();
  });
  with([&](auto& variables, const auto& w) {
    Local local{rule, variables};
    for (int round = 0; round < 5; ++round) {
      local.gradient(w).setConstant(2.5);
      local.apply_gradients();
    }
    for (const auto& array : local.snapshot().arrays)
      uninterrupted.insert(uninterrupted.end(), array.values.begin(), array.values.end());
  });
  const SessionFolder folder;
  const Shared<std::array<std::array<double, 14>, 2>> got;
  const Shared<std::atomic<int>> ready;
  const auto codes = run_processes(2, [&](int i) {
    return with([&](auto& variables, const auto& w) {
      SyncReplicas trainer{rule,
                           variables,
                           {.replicas_to_aggregate = 2, .deadline = 30s},
                           SharedMemory{.name = "test", .replica = i, .directory = folder.path()}};
      if (i == 0) trainer.restore(saved);
      ++*ready;
      wait_until([&] { return ready->load() == 2; });
      trainer.run([&](auto& replica) {
        for (int round = 0; round < 2; ++round) {
          replica.gradient(w).setConstant(2 + i);
          replica.apply_gradients();
        }
      });
      double* to = (*got)[static_cast<std::size_t>(i)].data();
      for (const auto& array : trainer.snapshot().arrays)
        to = std::copy(array.values.begin(), array.values.end(), to);
      return trainer.global_step() == 5 ? 0 : 1;
    });
  });
  CHECK(codes == std::vector{0, 0});
  for (const auto& values : *got)
    for (std::size_t i = 0; i < values.size(); ++i)
      CHECK(std::bit_cast<std::uint64_t>(values[i]) == std::bit_cast<std::uint64_t>(uninterrupted[i]));
}

TEST_CASE("BR-067: arrival order and transport change no bit", "[processes][BR-067]") {
  const Watchdog watchdog(120s);
  const std::array gradients{1e8F, 1.0F, -1e8F, 1.0F};
  const auto train_with = [&](auto& trainer, const auto& w) {
    trainer.run([&](auto& replica) {
      replica.gradient(w).setConstant(gradients[static_cast<std::size_t>(replica.index())]);
      replica.apply_gradients();
    });
  };
  Variables<float> in_process;
  const auto in_process_w = in_process.add("w", Eigen::VectorXf::Zero(1));
  {
    SyncReplicas trainer{Sgd{1.0}, in_process, {.replicas_to_aggregate = 4, .deadline = 30s}};
    train_with(trainer, in_process_w);
  }
  std::array order{0, 1, 2, 3};
  do {
    const SessionFolder folder;
    const Shared<std::array<float, 4>> values;
    const auto codes = run_processes(4, [&](int i) {
      Variables<float> variables;
      const auto w = variables.add("w", Eigen::VectorXf::Zero(1));
      SyncReplicas trainer{Sgd{1.0},
                           variables,
                           {.replicas_to_aggregate = 4, .deadline = 30s},
                           SharedMemory{.name = "test", .replica = i, .directory = folder.path()}};
      trainer.run([&](auto& replica) {
        const auto mine = std::find(order.begin(), order.end(), i);
        if (mine != order.begin()) wait_until([&] { return trainer.stats(*(mine - 1)).accepted == 1; });
        replica.gradient(w).setConstant(gradients[static_cast<std::size_t>(i)]);
        replica.apply_gradients();
      });
      (*values)[static_cast<std::size_t>(i)] = variables.value(w)[0];
      return 0;
    });
    CHECK(codes == std::vector{0, 0, 0, 0});
    for (const float value : *values) {
      CHECK(value == -0.25F);  // ((1e8 + 1) - 1e8) + 1 = 1 in float
      CHECK(bits(value) == bits(in_process.value(in_process_w)[0]));
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("several sessions in one folder do not meet", "[processes]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const Shared<FoundByAll<4>> all;
  const auto codes = run_processes(4, [&](int i) {
    const Plan plan{{.replicas_to_aggregate = 2, .deadline = 30s}, folder.path(), i < 2 ? "one" : "two"};
    return train(plan, i % 2, all->replica[i], steps(i < 2 ? 1 : 2, 20));
  });
  CHECK(codes == std::vector{0, 0, 0, 0});
  for (int i = 0; i < 4; ++i) CHECK(all->replica[i].value == (i < 2 ? -20 : -40));
}

TEST_CASE("threads of several processes train as one", "[processes]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const Shared<std::array<double, 2>> values;
  const auto codes = run_processes(2, [&](int i) {
    Variables<double> variables;
    const auto w = variables.add("w", Eigen::VectorXd::Zero(5));
    SyncReplicas trainer{
        Sgd{1.0},
        variables,
        {.replicas_to_aggregate = 4, .deadline = 30s},
        SharedMemory{.name = "test", .replica = 2 * i, .replicas_here = 2, .directory = folder.path()}};
    trainer.run([&](auto& replica) {
      while (replica.global_step() < 10) {
        replica.gradient(w).setConstant(replica.index());
        replica.apply_gradients();
      }
    });
    (*values)[static_cast<std::size_t>(i)] = variables.value(w)[4];
    return 0;
  });
  CHECK(codes == std::vector{0, 0});
  for (const double value : *values) CHECK(value == -15);
}

namespace {

/// How long as many processes take to do nothing but meet, round after round: what a machine with other work
/// leaves them.
std::chrono::nanoseconds time_of_meetings(int n, int rounds) {
  const Shared<pthread_barrier_t> meeting;
  pthread_barrierattr_t attributes;
  REQUIRE(::pthread_barrierattr_init(&attributes) == 0);
  REQUIRE(::pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
  REQUIRE(::pthread_barrier_init(&*meeting, &attributes, static_cast<unsigned>(n)) == 0);
  const auto begin = Clock::now();
  const auto codes = run_processes(n, [&](int) {
    for (int round = 0; round < rounds; ++round) ::pthread_barrier_wait(&*meeting);
    return 0;
  });
  CHECK(codes == std::vector<int>(static_cast<std::size_t>(n), 0));
  return Clock::now() - begin;
}

}  // namespace

TEST_CASE("BR-087: more processes than cores, and no hidden threads", "[processes][BR-087]") {
  const Watchdog watchdog(300s);
  constexpr int n = 8, rounds = 1000;
  const auto train_on = [](bool one_core) {
    const SessionFolder folder;
    const Shared<std::array<float, n>> values;
    const Shared<std::array<std::ptrdiff_t, n>> threads;
    const auto begin = Clock::now();
    const auto codes = run_processes(n, [&](int i) {
      if (one_core) {
        cpu_set_t all{}, one{};
        ::sched_getaffinity(0, sizeof(all), &all);
        std::size_t first = 0;
        while (!CPU_ISSET(first, &all)) ++first;
        CPU_SET(first, &one);
        ::sched_setaffinity(0, sizeof(one), &one);
      }
      Variables<float> variables;
      const auto w = variables.add("w", Eigen::VectorXf::Zero(256));  // 1 KiB
      SyncReplicas trainer{Sgd{1.0},
                           variables,
                           {.replicas_to_aggregate = n, .deadline = 60s},
                           SharedMemory{.name = "test", .replica = i, .directory = folder.path()}};
      std::ptrdiff_t& most = (*threads)[static_cast<std::size_t>(i)];
      trainer.run([&](auto& replica) {
        for (int round = 0; round < rounds; ++round) {
          replica.gradient(w).setConstant(static_cast<float>(i));  // mean 3.5
          replica.apply_gradients();
          if (round % 100 == 0) most = std::max(most, threads_of_process());
        }
      });
      (*values)[static_cast<std::size_t>(i)] = variables.value(w).minCoeff();
      return variables.value(w).maxCoeff() == variables.value(w).minCoeff() ? 0 : 1;
    });
    CHECK(codes == std::vector<int>(n, 0));
    for (const float value : *values) CHECK(value == -3500.0F);
    for (const std::ptrdiff_t count : *threads) CHECK(count == 1);
    return Clock::now() - begin;
  };
  CHECK(is_within(10s, [&] {
    const auto load = time_of_meetings(n, rounds);
    return train_on(false) - 4 * load;
  }));
  CHECK(train_on(true) < 60s);
}
