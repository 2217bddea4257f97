// SPDX-License-Identifier: MIT
#include "support/allocations.hpp"
#include "unit/observe/recorder.hpp"
#include <lockstep/observe/chrome_trace.hpp>

#include <nlohmann/json.hpp>

#include <limits>
#include <map>
#include <set>
#include <sstream>

using namespace lockstep;
using namespace lockstep::test;
using nlohmann::json;

namespace {

json written(const ChromeTrace& trace) {
  std::ostringstream out;
  trace.write(out);
  return json::parse(out.str());
}

/// Events of one phase.
std::vector<json> events(const json& file, const std::string& phase) {
  std::vector<json> result;
  for (const json& event : file.at("traceEvents"))
    if (event.at("ph") == phase) result.push_back(event);
  return result;
}

Clock::time_point at_nanosecond(std::int64_t count) {
  return Clock::time_point(std::chrono::nanoseconds(count));
}

}  // namespace

TEST_CASE("chrome_trace: a training is a time line with a thread per replica", "[observe][thread]") {
  const Watchdog watchdog;
  constexpr int k_replicas = 3, k_steps = 15;
  Net<> net(9000);
  ChromeTrace trace{{.replicas = k_replicas}};
  SyncReplicas trainer{
      Sgd{1.0}, net.variables, {.replicas_to_aggregate = k_replicas}, InProcess{}, ObservedBy{trace}};
  trainer.run([&](auto& replica) {
    while (replica.global_step() < k_steps) step(replica, net.w, 1);
  });
  const json file = written(trace);
  CHECK(file.at("otherData").at("dropped") == "0");
  std::map<int, std::string> names;
  for (const json& event : events(file, "M"))
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
  CHECK(names == std::map<int, std::string>{{0, "replica 0"}, {1, "replica 1"}, {2, "replica 2"}});

  std::map<int, double> ends;  // of the last span, by thread
  std::map<int, std::map<std::string, std::multiset<int>>> steps;
  for (const json& event : events(file, "X")) {
    const int thread = event.at("tid");
    const double begin = event.at("ts"), lasted = event.at("dur");
    CHECK(lasted >= 0);
    if (ends.count(thread) > 0) CHECK(begin >= ends[thread] - 0.001);  // sums of decimals are not exact
    ends[thread] = begin + lasted;
    steps[thread][event.at("name")].insert(event.at("args").at("step").get<int>());
  }
  std::multiset<int> each_step, commits;
  for (int t = 0; t < k_steps; ++t) each_step.insert(t);
  for (int i = 0; i < k_replicas; ++i) {
    CHECK(steps[i]["push"] == each_step);
    CHECK(steps[i]["compute"].size() == k_steps + 1);
    commits.merge(steps[i]["commit"]);
  }
  CHECK(commits == each_step);
  CHECK(events(file, "i").empty());
}

TEST_CASE("chrome_trace: times are microseconds to the nanosecond, tiles and marks are shown", "[observe]") {
  ChromeTrace trace{{.replicas = 2, .process = 7}};
  trace.on(Span{.replica = 1,
                .activity = Activity::apply,
                .step = 5,
                .items = 12,
                .begin = at_nanosecond(1'234'567'000'089),
                .end = at_nanosecond(1'234'567'001'091)});
  trace.on(StepEnd{1, {.status = Status::accepted, .global_step = 6}});  // the usual is no mark
  trace.on(StepEnd{0, {.status = Status::stale, .global_step = 6}});
  trace.on(StepEnd{0, {.status = Status::accepted, .global_step = 6, .round_open = true}});
  std::ostringstream out;
  trace.write(out);
  CHECK(out.str().find(
            "{\"name\":\"apply\",\"ph\":\"X\",\"pid\":7,\"tid\":1,\"ts\":1234567000.089,\"dur\":1.002,"
            "\"args\":{\"step\":5,\"items\":12}}") != std::string::npos);
  const std::vector<json> marks = events(json::parse(out.str()), "i");
  REQUIRE(marks.size() == 2);
  CHECK(marks[0].at("name") == "stale");
  CHECK(marks[0].at("tid") == 0);
  CHECK(marks[0].at("args").at("step") == 6);
  CHECK(marks[1].at("name") == "token");
  const std::vector<Span> spans = trace.spans();
  REQUIRE(spans.size() == 1);
  CHECK(spans[0].items == 12);
}

TEST_CASE("chrome_trace: events are written in order of their beginning", "[observe]") {
  ChromeTrace trace{{}};
  for (const int begin : {30, 10, 20})
    trace.on(
        Span{.replica = 0, .step = begin, .begin = at_nanosecond(begin), .end = at_nanosecond(begin + 5)});
  std::vector<int> steps;
  for (const json& event : events(written(trace), "X")) steps.push_back(event.at("args").at("step"));
  CHECK(steps == std::vector{10, 20, 30});
}

TEST_CASE("chrome_trace: what has no room is counted, and nothing is allocated for it", "[observe]") {
  ChromeTrace trace{{.replicas = 2, .capacity = 3}};
  const std::uint64_t before = allocations();
  for (int i = 0; i < 5; ++i) trace.on(Span{.replica = 0, .step = i});
  trace.on(Span{.replica = 2});   // of a trainer with more replicas than it was made for
  trace.on(Span{.replica = -1});  // of a chief
  CHECK(allocations() == before);
  CHECK(trace.dropped() == 3);
  const json file = written(trace);
  CHECK(file.at("otherData").at("dropped") == "3");
  CHECK(events(file, "X").size() == 4);
  std::vector<std::string> names;
  for (const json& event : events(file, "M")) names.push_back(event.at("args").at("name"));
  CHECK(names == std::vector<std::string>{"lockstep", "replica 0", "replica 1", "no replica"});
}

TEST_CASE("chrome_trace: a number that means nothing is refused with its limits", "[observe]") {
  const auto refusal = [](const ChromeTraceOptions& options) {
    const auto thrown = thrown_by([&] { const ChromeTrace trace{options}; });
    CHECK(caught<InvalidArgument>(thrown));
    return message_of(thrown);
  };
  CHECK(refusal({.replicas = 0}) == "replicas: must be from 1 to 128, got 0");
  CHECK(refusal({.replicas = 2'000'000'000}) == "replicas: must be from 1 to 128, got 2000000000");
  CHECK(refusal({.capacity = 0}) == "capacity: must be from 1 to 268435456, got 0");
  CHECK(refusal({.capacity = 268'435'457}) == "capacity: must be from 1 to 268435456, got 268435457");
  CHECK(refusal({.capacity = std::numeric_limits<std::size_t>::max()}) ==
        "capacity: must be from 1 to 268435456, got 18446744073709551615");
}
