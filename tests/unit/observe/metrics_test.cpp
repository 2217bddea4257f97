// SPDX-License-Identifier: MIT
#include "support/allocations.hpp"
#include "unit/observe/recorder.hpp"
#include <lockstep/observe/metrics.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <limits>
#include <sstream>
#include <thread>

using namespace lockstep;
using namespace lockstep::test;
using nlohmann::json;

namespace {

std::vector<json> lines(const std::string& text) {
  std::vector<json> result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) result.push_back(json::parse(line));
  return result;
}
std::vector<json> finished(Metrics& metrics) {
  std::ostringstream out;
  metrics.finish(out);
  return lines(out.str());
}

void end_step(Metrics& metrics, int replica, std::int64_t step, Status status = Status::accepted) {
  metrics.on(StepEnd{replica, {.status = status, .global_step = step, .contributions = 2}});
}

}  // namespace

TEST_CASE("metrics: a line per update, with the mean loss and the share that each replica waited",
          "[observe][thread]") {
  const Watchdog watchdog;
  constexpr int k_replicas = 3, k_steps = 25;
  Net<> net(9000);
  Metrics metrics{{.replicas = k_replicas}};
  SyncReplicas trainer{
      Sgd{1.0}, net.variables, {.replicas_to_aggregate = k_replicas}, InProcess{}, ObservedBy{metrics}};
  std::ostringstream out;
  trainer.run([&](auto& replica) {
    while (replica.global_step() < k_steps) {
      metrics.note_loss(replica.index(), static_cast<double>(replica.global_step()) + replica.index());
      step(replica, net.w, 1);
      if (replica.index() == 0 && replica.global_step() % 10 == 0) metrics.write(out);
    }
  });
  metrics.finish(out);
  const std::vector<json> rows = lines(out.str());
  REQUIRE(rows.size() == k_steps);
  double seconds = 0;
  for (int t = 0; t < k_steps; ++t) {
    const json& row = rows[at(t)];
    CHECK(row.at("step") == t + 1);
    CHECK(row.at("loss") == t + 1.0);  // t, t + 1 and t + 2
    CHECK(row.at("contributions") == k_replicas);
    CHECK(row.at("accepted") == k_replicas);
    CHECK(row.at("stale") == 0);
    CHECK(row.at("seconds") >= seconds);
    seconds = row.at("seconds");
    REQUIRE(row.at("waiting").size() == k_replicas);
    for (const json& share : row.at("waiting")) {
      CHECK(share >= 0);
      CHECK(share <= 1);
    }
  }
  CHECK(metrics.dropped() == 0);
}

TEST_CASE("metrics: the share is the time asleep over the time since the update before", "[observe]") {
  Metrics metrics{{.replicas = 2}};
  const Clock::time_point now = Clock::now();
  metrics.on(Span{.replica = 1, .activity = Activity::compute, .begin = now - 40s, .end = now - 30s});
  metrics.on(Span{.replica = 1, .activity = Activity::wait, .begin = now - 30s, .end = now - 10s});
  metrics.on(Span{.replica = 1, .activity = Activity::apply, .begin = now - 10s, .end = now});
  metrics.on(Span{.replica = -1, .activity = Activity::wait, .begin = now - 30s, .end = now});
  end_step(metrics, 1, 1);
  const std::vector<json> rows = finished(metrics);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].at("waiting")[0].is_null());  // it has not seen the update
  const double share = rows[0].at("waiting")[1];
  const double latest = std::chrono::duration<double>(Clock::now() - now).count();
  CHECK(share <= 0.5);
  CHECK(share >= 20 / (40 + latest) - 1e-12);
}

TEST_CASE("metrics: updates that a replica carries out after it has left are not of its successor",
          "[observe]") {
  Metrics metrics{{}};
  const Clock::time_point now = Clock::now();
  for (const Activity activity : {Activity::measure, Activity::apply, Activity::commit})
    metrics.on(Span{.replica = 0, .activity = activity, .items = 1, .begin = now - 1000s, .end = now - 900s});
  metrics.on(Span{.replica = 0, .activity = Activity::compute, .begin = now - 40s, .end = now - 30s});
  metrics.on(Span{.replica = 0, .activity = Activity::wait, .begin = now - 30s, .end = now});
  end_step(metrics, 0, 1);
  const std::vector<json> rows = finished(metrics);
  REQUIRE(rows.size() == 1);
  const double latest = std::chrono::duration<double>(Clock::now() - now).count();
  CHECK(rows[0].at("waiting")[0] >= 30 / (40 + latest) - 1e-12);
}

TEST_CASE("metrics: gradients that make no update count in the line of the next one", "[observe]") {
  Metrics metrics{{}};
  end_step(metrics, 0, 1);
  end_step(metrics, 0, 1, Status::skipped);
  end_step(metrics, 0, 1);  // a round that wants another gradient
  end_step(metrics, 0, 2, Status::stale);
  end_step(metrics, 0, 3, Status::not_needed);
  end_step(metrics, 0, 4, Status::old_generation);
  const std::vector<json> rows = finished(metrics);
  REQUIRE(rows.size() == 4);
  const auto counts = [&](std::size_t row) {
    std::vector<int> result;
    for (const char* name : {"accepted", "stale", "not_needed", "skipped"})
      result.push_back(rows[row].at(name));
    return result;
  };
  CHECK(counts(0) == std::vector{1, 0, 0, 0});
  CHECK(counts(1) == std::vector{1, 1, 0, 1});
  CHECK(counts(2) == std::vector{0, 0, 1, 0});
  CHECK(counts(3) == std::vector{0, 1, 0, 0});
}

TEST_CASE("metrics: lines begin with the first update, at whatever step training goes on", "[observe]") {
  Net<> net;
  Metrics metrics{{}};
  SyncReplicas trainer{Sgd{1.0},
                       net.variables,
                       {.non_finite = NonFinite::skip_update, .global_step = 100},
                       InProcess{},
                       ObservedBy{metrics}};
  auto replica = trainer.join();
  step(replica, net.w, std::numeric_limits<double>::quiet_NaN());
  step(replica, net.w, 1);
  step(replica, net.w, 1);
  const std::vector<json> rows = finished(metrics);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].at("step") == 101);
  CHECK(rows[0].at("skipped") == 1);
  CHECK(rows[0].at("accepted") == 1);
  CHECK(rows[1].at("step") == 102);
  CHECK(rows[1].at("skipped") == 0);
}

TEST_CASE(
    "metrics: a line is written when another update has been seen, and what is late comes with the next",
    "[observe]") {
  Metrics metrics{{.replicas = 2}};
  const auto steps_written = [&] {
    std::ostringstream out;
    metrics.write(out);
    std::vector<int> steps;
    for (const json& row : lines(out.str())) steps.push_back(row.at("step"));
    return steps;
  };
  end_step(metrics, 0, 1);
  CHECK(steps_written().empty());
  end_step(metrics, 0, 2);
  CHECK(steps_written() == std::vector{1});
  end_step(metrics, 1, 1, Status::stale);
  end_step(metrics, 1, 2);
  end_step(metrics, 0, 3);
  std::ostringstream out;
  metrics.finish(out);
  const std::vector<json> rows = lines(out.str());
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].at("step") == 2);
  CHECK(rows[0].at("stale") == 1);
  CHECK(rows[0].at("accepted") == 2);
  end_step(metrics, 0, 1);  // after a restore
  const std::vector<json> again = finished(metrics);
  REQUIRE(again.size() == 1);
  CHECK(again[0].at("step") == 1);
}

TEST_CASE("metrics: a line has the counts of all replicas, whenever another thread writes",
          "[observe][thread]") {
  const Watchdog watchdog;
  constexpr int k_replicas = 3, k_steps = 3000;
  Net<> net;
  Metrics metrics{{.replicas = k_replicas}};
  SyncReplicas trainer{
      Sgd{1.0}, net.variables, {.replicas_to_aggregate = k_replicas}, InProcess{}, ObservedBy{metrics}};
  std::ostringstream out;
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    while (!is_over) metrics.write(out);
  });
  trainer.run([&](auto& replica) {
    while (replica.global_step() < k_steps) step(replica, net.w, 1);
  });
  is_over = true;
  writer.join();
  metrics.finish(out);
  const std::vector<json> rows = lines(out.str());
  CHECK(rows.size() == k_steps);
  CHECK(metrics.dropped() == 0);
  const auto is_whole = [](const json& row) {
    const auto is_null = [](const json& share) { return share.is_null(); };
    const json& shares = row.at("waiting");
    return row.at("accepted") == k_replicas && std::none_of(shares.begin(), shares.end(), is_null);
  };
  CHECK(std::count_if(rows.begin(), rows.end(), is_whole) == k_steps);
}

TEST_CASE("metrics: a loss that is no number, or none, is null", "[observe]") {
  Metrics metrics{{}};
  metrics.note_loss(0, std::numeric_limits<double>::infinity());
  end_step(metrics, 0, 1);
  end_step(metrics, 0, 2);
  metrics.note_loss(0, 0.1);
  metrics.note_loss(0, 0.2);  // of two micro-batches
  metrics.note_loss(1, 100);  // of nobody
  end_step(metrics, 0, 3);
  const std::vector<json> rows = finished(metrics);
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].at("loss").is_null());
  CHECK(rows[1].at("loss").is_null());
  CHECK(rows[2].at("loss").get<double>() == Approx(0.15));
}

TEST_CASE("metrics: steps that have no room are counted, and nothing is allocated for them", "[observe]") {
  Metrics metrics{{.replicas = 1, .capacity = 3}};
  const std::uint64_t before = allocations();
  for (int t = 1; t <= 5; ++t) end_step(metrics, 0, t);
  end_step(metrics, 1, 1);  // of nobody
  CHECK(allocations() == before);
  CHECK(metrics.dropped() == 2);
  CHECK(finished(metrics).size() == 3);
  end_step(metrics, 0, 6);
  CHECK(finished(metrics).size() == 1);
}

TEST_CASE("metrics: a number that means nothing is refused with its limits", "[observe]") {
  const auto refusal = [](const MetricsOptions& options) {
    const auto thrown = thrown_by([&] { const Metrics metrics{options}; });
    CHECK(caught<InvalidArgument>(thrown));
    return message_of(thrown);
  };
  CHECK(refusal({.replicas = -1}) == "replicas: must be from 1 to 128, got -1");
  CHECK(refusal({.capacity = 0}) == "capacity: must be from 1 to 268435456, got 0");
  CHECK(refusal({.capacity = std::size_t{1} << 60}) ==
        "capacity: must be from 1 to 268435456, got 1152921504606846976");
}
