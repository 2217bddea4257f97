// SPDX-License-Identifier: MIT
// A replica is killed at each step of each operation, once. The others go on as the departure policy says,
// and the variables get the bits that a textbook loop over the accepted gradients gives.
#include "kill/fault_points.hpp"
#include "support/catch.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include <lockstep/lockstep.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

constexpr int k_most = 3;
constexpr int k_rounds = 4;
constexpr Index k_size = 4096 + 300;  // two items of an update

/// Gradient number `sequence` of a replica, the same whoever sits there.
float gradient_of(int place, std::int64_t sequence, Index element) {
  return static_cast<float>(place + 1) * 0.7F + static_cast<float>(sequence) * 0.31F +
         static_cast<float>(element % 13) * 0.11F;
}

/// What a replica found.
struct Report {
  bool finished = false;
  std::int64_t global_step = -1;
  std::int64_t accepted[k_most] = {};  // of all that sat at each place
  float values[k_size];
  int failed_because_of = -2;
  char text[300] = {};
};

struct Scene {
  Report reports[k_most];
  FaultLog log;
  Clock::duration took{};  ///< from the end of the victim to that of the others
};

struct Case {
  int replicas;
  Departure departure;
  int victim;
};

SyncOptions options_of(const Case& c) {
  return {.replicas_to_aggregate = c.replicas, .departure = c.departure, .deadline = 10s};
}

auto trainer_of(const Case& c, const std::string& folder, int place, Variables<float>& variables) {
  return SyncReplicas(Momentum{0.1, 0.9}, variables, options_of(c),
                      SharedMemory{.name = "kill", .replica = place, .directory = folder, .patience = 10s});
}

/// One replica, in the calling process.
/// @param begin is called when it has joined.
template <class Begin>
int train(const Case& c, const std::string& folder, int place, Report& report, Begin&& begin) {
  Variables<float> variables;
  const auto w = variables.add("w", Eigen::VectorXf::Zero(k_size));
  auto trainer = trainer_of(c, folder, place, variables);
  try {
    trainer.run([&](auto& replica) {
      begin();
      while (replica.global_step() < k_rounds) {
        auto gradient = replica.gradient(w);
        for (Index i = 0; i < k_size; ++i) gradient[i] = gradient_of(place, replica.sequence(), i);
        if (replica.apply_gradients().status == Status::stopped) break;
      }
    });
  } catch (const PeerFailed& error) {
    report.failed_because_of = error.replica();
    std::strncpy(report.text, error.what(), sizeof(report.text) - 1);
  } catch (const std::exception& error) {
    std::strncpy(report.text, error.what(), sizeof(report.text) - 1);
    return 1;
  }
  report.global_step = trainer.global_step();
  for (int i = 0; i < c.replicas; ++i) report.accepted[i] = trainer.stats(i).accepted;
  const auto snapshot = trainer.snapshot();
  std::copy(snapshot.arrays[0].values.begin(), snapshot.arrays[0].values.end(), report.values);
  report.finished = true;
  return 0;
}

/// The variables after `rounds` updates, by a textbook loop. @param of_victim gradients that the victim gave.
std::vector<float> textbook(const Case& c, std::int64_t rounds, std::int64_t of_victim) {
  std::vector<float> w(k_size, 0.0F), momentum(k_size, 0.0F);
  std::array<std::int64_t, k_most> sequence{};
  const auto at = [](int place) { return static_cast<std::size_t>(place); };
  for (std::int64_t round = 0; round < rounds; ++round) {
    std::array<int, k_most> gives{};
    for (int place = 0; place < c.replicas; ++place)
      gives[at(place)] = place != c.victim || sequence[at(place)] < of_victim ? 1 : 0;
    // The lowest numbers make up for the missing one.
    int total = 0;
    for (int place = 0; place < c.replicas; ++place) total += gives[at(place)];
    if (c.departure == Departure::redistribute)
      for (int place = 0; total < c.replicas; ++place)
        if (gives[at(place)] > 0) {
          ++gives[at(place)];
          ++total;
        }
    const auto scale = static_cast<float>(1.0 / total);
    for (Index i = 0; i < k_size; ++i) {
      float sum = 0;
      bool first = true;
      for (int place = 0; place < c.replicas; ++place) {
        if (gives[at(place)] == 0) continue;
        float own = gradient_of(place, sequence[at(place)], i);
        for (int more = 1; more < gives[at(place)]; ++more)
          own += gradient_of(place, sequence[at(place)] + more, i);
        sum = first ? own : sum + own;
        first = false;
      }
      const auto e = static_cast<std::size_t>(i);
      momentum[e] = 0.9F * momentum[e] + sum * scale;
      w[e] -= 0.1F * momentum[e];
    }
    for (int place = 0; place < c.replicas; ++place) sequence[at(place)] += gives[at(place)];
  }
  return w;
}

/// Runs the replicas; the victim dies at point `at` (0: nobody dies). @return points that the victim passed.
std::int64_t play(const Case& c, std::int64_t at, Scene& scene, bool from_the_start, std::string& problem) {
  for (Report& report : scene.reports) report = Report{};
  scene.log.passed = 0;
  std::memset(scene.log.last, 0, sizeof(scene.log.last));
  const SessionFolder folder;
  const Shared<std::atomic<bool>> attached, end;
  std::vector<Process> others;
  const auto victim = [&] {
    return Process([&] {
      if (from_the_start) arm(scene.log, at);
      return train(c, folder.path(), c.victim, scene.reports[c.victim], [&] {
        if (from_the_start) return;
        wait_until([&] { return attached->load(); });  // or it would die alone, with its session
        arm(scene.log, at);
      });
    });
  };
  const auto survivor = [&](int place) {
    others.emplace_back([&, place] { return train(c, folder.path(), place, scene.reports[place], [] {}); });
  };
  // The victim is the first to come, so that it makes the session. Another process, which does not train,
  // keeps it for a replacement.
  Process doomed = victim();
  Process keeper([&] {
    Variables<float> variables;
    (void)variables.add("w", Eigen::VectorXf::Zero(k_size));
    const auto trainer = trainer_of(c, folder.path(), -1, variables);
    *attached = true;
    wait_until([&] { return end->load(); });
    return 0;
  });
  wait_until([&] { return attached->load(); });
  for (int place = 0; place < c.replicas; ++place)
    if (place != c.victim) survivor(place);
  const int code = doomed.wait();
  const auto died = Clock::now();
  if (at > 0 && code != 128 + SIGKILL && code != 0)
    problem += "the victim ended with " + std::to_string(code) + "; ";
  if (code != 0 && c.departure == Departure::wait) survivor(c.victim);  // its replacement
  for (Process& other : others)
    if (const int ended = other.wait(); ended != 0)
      problem += "a replica ended with " + std::to_string(ended) + "; ";
  scene.took = Clock::now() - died;
  *end = true;
  if (keeper.wait() != 0) problem += "the keeper failed; ";
  if (!folder.files().empty()) problem += "left in the folder: " + folder.files().front() + "; ";
  return scene.log.passed;
}

void check(const Case& c, const Scene& scene, std::string& problem) {
  const Report* some = nullptr;
  for (int place = 0; place < c.replicas; ++place) {
    const Report& report = scene.reports[place];
    if (!report.finished) {
      if (place != c.victim || report.text[0] != '\0')
        problem += "replica " + std::to_string(place) + ": " + report.text + "; ";
      continue;
    }
    if (place == c.victim && c.departure != Departure::wait) continue;  // it may have ended before the others
    const bool is_early = report.global_step < k_rounds;
    const bool may_be_early = c.departure == Departure::stop && !scene.reports[c.victim].finished;
    if (c.departure == Departure::fail && report.failed_because_of == -2 && is_early)
      problem += "replica " + std::to_string(place) + " stopped early; ";
    if (c.departure != Departure::fail &&
        (report.failed_because_of != -2 || report.global_step > k_rounds || (is_early && !may_be_early)))
      problem += "replica " + std::to_string(place) + " ended in step " + std::to_string(report.global_step) +
                 ": " + report.text + "; ";
    if (report.failed_because_of >= 0 && report.failed_because_of != c.victim)
      problem +=
          "replica " + std::to_string(place) + " blames " + std::to_string(report.failed_because_of) + "; ";
    some = &report;
  }
  if (!some) return;
  // Of a round that was given up nothing is in the variables, however much of it had been accepted.
  const bool gives_up = c.departure == Departure::fail || c.departure == Departure::stop;
  const std::int64_t of_victim = gives_up ? some->global_step : some->accepted[c.victim];
  const std::vector<float> expected = textbook(c, some->global_step, of_victim);
  const auto bytes = expected.size() * sizeof(float);
  if (std::memcmp(expected.data(), some->values, bytes) != 0) {
    Index differ = 0;
    while (expected[static_cast<std::size_t>(differ)] == some->values[differ]) ++differ;
    problem += "element " + std::to_string(differ) + " is " + std::to_string(some->values[differ]) +
               ", must be " + std::to_string(expected[static_cast<std::size_t>(differ)]) + " after " +
               std::to_string(some->global_step) + " updates with " + std::to_string(of_victim) +
               " of the victim; ";
  }
}

/// Kills at every point, or at every `stride`-th. @return points tried.
std::int64_t enumerate(const Case& c, bool from_the_start) {
  const Shared<Scene> scene;
  std::string problem;
  std::int64_t points = play(c, 0, *scene, from_the_start, problem);
  check(c, *scene, problem);
  CHECK(problem == "");
  REQUIRE(points > 20);
  std::int64_t tried = 0;
  for (std::int64_t at = 1; at <= points; ++at) {
    problem.clear();
    const bool in_time = is_within(1s, [&] {
      (void)play(c, at, *scene, from_the_start, problem);
      return scene->took;
    });
    check(c, *scene, problem);
    if (!in_time) problem += "the others went on for more than a second; ";
    ++tried;
    if (problem.empty()) continue;
    INFO(c.replicas << " replicas, " << to_string(c.departure) << ", replica " << c.victim
                    << " killed at point " << at << " ('" << scene->log.last << "')");
    CHECK(problem == "");
  }
  std::cout << "killed at " << tried << " points: " << c.replicas << " replicas, " << to_string(c.departure)
            << ", replica " << c.victim << std::endl;
  return tried;
}

}  // namespace

TEST_CASE("BR-100: killed at each point from the creation of the session on, and replaced",
          "[kill][BR-100][BR-105]") {
  const Watchdog watchdog(900s);
  enumerate({2, Departure::wait, 0}, true);
  enumerate({3, Departure::wait, 2}, true);
}

TEST_CASE("BR-100: killed at each point of an update and after it; the others go on", "[kill][BR-100]") {
  const Watchdog watchdog(900s);
  for (const Departure departure :
       {Departure::redistribute, Departure::shrink, Departure::fail, Departure::stop}) {
    enumerate({2, departure, 1}, false);
    enumerate({3, departure, 0}, false);
  }
}
