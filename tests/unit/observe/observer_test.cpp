// SPDX-License-Identifier: MIT
#include "unit/observe/recorder.hpp"

#include <cmath>
#include <map>
#include <memory>
#include <sys/wait.h>
#include <type_traits>
#include <unistd.h>
#include <utility>

using namespace lockstep;
using namespace lockstep::test;

namespace {

template <class R, class Net, class T, class G>
Net transport_of(const SyncReplicas<R, Net, T, G>&);
/// Where replicas live if a test does not say: the suite `segment` runs this file again.
using Here = decltype(transport_of(SyncReplicas{Sgd{}, std::declval<Variables<double>&>(), SyncOptions{}}));

/// Kinds of the spans, in order.
std::vector<Activity> kinds(const std::vector<Span>& spans) {
  std::vector<Activity> result;
  for (const Span& span : spans) result.push_back(span.activity);
  return result;
}

/// The same, and how long is not known: a wait may be several.
std::vector<Activity> without_waits(std::vector<Activity> kinds) {
  kinds.erase(std::remove(kinds.begin(), kinds.end(), Activity::wait), kinds.end());
  return kinds;
}

}  // namespace

TEST_CASE("observer: every replica computes and pushes once per step, and each update is committed once",
          "[observe][thread]") {
  const Watchdog watchdog;
  constexpr int k_steps = 20;
  std::int64_t tiles = -1;  // of an update, whoever works on them
  for (const int replicas : {1, 3}) {
    Net<> net(100'000);
    Recorder recorder;
    SyncReplicas trainer{
        Sgd{1.0}, net.variables, {.replicas_to_aggregate = replicas}, Here{}, ObservedBy{recorder}};
    trainer.run([&](auto& replica) {
      while (replica.global_step() < k_steps) step(replica, net.w, 1);
    });
    CHECK(net.value(99'999) == -k_steps);
    for (int i = 0; i < replicas; ++i) {
      const std::vector<Span> spans = recorder.of(i);
      CHECK(are_in_turn(spans));
      CHECK(count(spans, Activity::compute) == k_steps + 1);  // the last one until it leaves
      CHECK(count(spans, Activity::push) == k_steps);
      CHECK(count(spans, Activity::measure) + count(spans, Activity::snapshot) == 0);
      CHECK(recorder.statuses(i) == std::vector<Status>(k_steps, Status::accepted));
    }
    CHECK(recorder.of(-1).empty());
    std::map<std::int64_t, std::int64_t> commits, applied;  // by step
    for (const Span& span : recorder.of(Activity::commit)) commits[span.step] += span.items;
    for (const Span& span : recorder.of(Activity::apply)) applied[span.step] += span.items;
    CHECK(commits.size() == k_steps);
    CHECK(applied.size() == k_steps);
    if (tiles < 0) tiles = applied[0];
    CHECK(tiles > 1);
    for (int t = 0; t < k_steps; ++t) {
      CHECK(commits[t] == 1);
      CHECK(applied[t] == tiles);
    }
    std::map<std::int64_t, int> ended;
    for (const StepEnd& end : recorder.steps) {
      CHECK(end.result.contributions == replicas);
      ++ended[end.result.global_step];
    }
    CHECK(ended.size() == k_steps);
    for (int t = 1; t <= k_steps; ++t) CHECK(ended[t] == replicas);
  }
}

TEST_CASE("observer: a replica alone computes, pushes, applies and commits, and does not wait", "[observe]") {
  Net<> net;
  Recorder recorder;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {}, Here{}, ObservedBy{recorder}};
  auto replica = trainer.join();
  step(replica, net.w, 1);
  step(replica, net.w, 1);
  replica.leave();
  using enum Activity;
  CHECK(without_waits(kinds(recorder.of(0))) ==
        std::vector{compute, push, apply, commit, compute, push, apply, commit, compute});
  if (std::is_same_v<Here, InProcess>) CHECK(recorder.of(wait).empty());
}

TEST_CASE("observer: after a timeout nothing is computed until the contribution is settled", "[observe]") {
  Net<> net;
  Recorder recorder;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2}, Here{}, ObservedBy{recorder}};
  auto first = trainer.join(0), second = trainer.join(1);
  CHECK(caught<TimeoutError>(thrown_by([&] { step(first, net.w, 1, {.timeout = 1ms}); })));
  using enum Activity;
  CHECK(without_waits(kinds(recorder.of(0))) == std::vector{compute, push});
  CHECK(count(recorder.of(0), wait) > 0);
  CHECK(recorder.steps.empty());
  SECTION("withdrawn, it computes anew") {
    REQUIRE(first.withdraw());
    first.leave();
    CHECK(without_waits(kinds(recorder.of(0))) == std::vector{compute, push, compute});
    CHECK(recorder.steps.empty());
  }
  SECTION("resumed, its step ends") {
    step(second, net.w, 3);
    first.resume();
    first.leave();
    CHECK(without_waits(kinds(recorder.of(0))) == std::vector{compute, push, compute});
    CHECK(kinds(recorder.of(1)) == std::vector{compute, push, apply, commit});
    CHECK(recorder.statuses(0) == std::vector{Status::accepted});
    CHECK(recorder.statuses(1) == std::vector{Status::accepted});
  }
}

TEST_CASE("observer: a wait is one span, however often the system wakes who waits", "[observe]") {
  constexpr auto k_patience = 150ms;  // several slices
  Net<> net;
  Recorder recorder;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2}, Here{}, ObservedBy{recorder}};
  auto first = trainer.join(0), second = trainer.join(1);
  recorder.spans.clear();
  CHECK(caught<TimeoutError>(thrown_by([&] { step(first, net.w, 1, {.timeout = k_patience}); })));
  const std::vector<Span> waits = recorder.of(Activity::wait);
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].replica == 0);
  CHECK(waits[0].end - waits[0].begin >= k_patience);
  CHECK(are_in_turn(recorder.of(0)));
}

TEST_CASE("observer: a hook after an update is part of the commit", "[observe]") {
  Net<> net;
  Recorder recorder;
  Clock::time_point in_hook;
  SyncReplicas trainer{Sgd{1.0},
                       net.variables,
                       {.hooks = {.after_update = [&](const UpdateInfo&) { in_hook = Clock::now(); }}},
                       Here{},
                       ObservedBy{recorder}};
  auto replica = trainer.join();
  step(replica, net.w, 1);
  const std::vector<Span> commits = recorder.of(Activity::commit);
  REQUIRE(commits.size() == 1);
  CHECK(commits[0].begin <= in_hook);
  CHECK(in_hook <= commits[0].end);
}

TEST_CASE("observer: who waits for a hook after an update is told to wait once", "[observe][thread]") {
  const Watchdog watchdog;
  Net<> net;
  Recorder recorder;
  Clock::time_point begin, end;
  const auto sleep = [&](const UpdateInfo&) {
    begin = Clock::now();
    std::this_thread::sleep_for(150ms);  // several slices
    end = Clock::now();
  };
  SyncReplicas trainer{Sgd{1.0},
                       net.variables,
                       {.replicas_to_aggregate = 2, .hooks = {.after_update = sleep}},
                       Here{},
                       ObservedBy{recorder}};
  trainer.run([&](auto& replica) { step(replica, net.w, 1); });
  const std::vector<Span> waits = recorder.of(Activity::wait);
  CHECK(std::none_of(waits.begin(), waits.end(),
                     [&](const Span& wait) { return wait.begin >= begin && wait.end <= end; }));
}

TEST_CASE("observer: a limit of the norm is measured before tiles are updated", "[observe]") {
  Net<> net;
  Recorder recorder;
  SyncReplicas trainer{
      Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .clip_norm = 1}, Here{}, ObservedBy{recorder}};
  auto first = trainer.join(0), second = trainer.join(1);
  CHECK(caught<TimeoutError>(thrown_by([&] { step(first, net.w, 1, {.timeout = 1ms}); })));
  step(second, net.w, 3);
  using enum Activity;
  CHECK(kinds(recorder.of(1)) == std::vector{compute, push, measure, apply, commit});
}

TEST_CASE("observer: what became of each gradient: a token, a skipped round, a stale one", "[observe]") {
  Recorder recorder;
  SECTION("a round that wants two gradients of its only replica") {
    Net<> net;
    SyncReplicas trainer{Sgd{1.0},
                         net.variables,
                         {.replicas_to_aggregate = 2, .total_num_replicas = 1},
                         Here{},
                         ObservedBy{recorder}};
    auto replica = trainer.join();
    step(replica, net.w, 1);
    step(replica, net.w, 1);
    REQUIRE(recorder.steps.size() == 2);
    CHECK(recorder.steps[0].result.round_open);
    CHECK_FALSE(recorder.steps[1].result.round_open);
    CHECK(recorder.of(Activity::commit).size() == 1);
  }
  SECTION("a round that ends without an update is committed, and nothing is applied") {
    Net<> net;
    SyncReplicas trainer{
        Sgd{1.0}, net.variables, {.non_finite = NonFinite::skip_update}, Here{}, ObservedBy{recorder}};
    auto replica = trainer.join();
    step(replica, net.w, std::nan(""));
    CHECK(recorder.statuses(0) == std::vector{Status::skipped});
    CHECK(recorder.of(Activity::commit).size() == 1);
    CHECK(recorder.of(Activity::apply).empty());
  }
  SECTION("a backup replica that comes late, and reads a copy") {
    Net<> net;
    SyncReplicas trainer{Sgd{1.0},
                         net.variables,
                         {.replicas_to_aggregate = 1, .total_num_replicas = 2},
                         Here{},
                         ObservedBy{recorder}};
    auto first = trainer.join(0), second = trainer.join(1);
    step(first, net.w, 1);
    step(second, net.w, 1);
    CHECK(recorder.statuses(0) == std::vector{Status::accepted});
    CHECK(recorder.statuses(1) == std::vector{Status::stale});
    CHECK(count(recorder.of(1), Activity::snapshot) == 2);  // when it joined, and after the refusal
  }
}

TEST_CASE("observer: what a chief does is of no replica", "[observe][thread]") {
  const Watchdog watchdog;
  Net<> net;
  Recorder recorder;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.driver = Driver::chief}, Here{}, ObservedBy{recorder}};
  const auto thrown = run_replicas(2, [&](int i) {
    if (i == 1) {
      trainer.chief_step();
      return;
    }
    auto replica = trainer.join(0);
    step(replica, net.w, 1);
  });
  for (const auto& error : thrown) CHECK(message_of(error) == "");
  CHECK(count(recorder.of(-1), Activity::apply) == 1);
  CHECK(count(recorder.of(-1), Activity::commit) == 1);
  CHECK(count(recorder.of(0), Activity::commit) == 0);
}

TEST_CASE("observer: with a window in each replica a step is a window", "[observe]") {
  Net<> net;
  Recorder recorder;
  GradientAggregation trainer{SyncReplicas{Sgd{1.0}, net.variables, {}, Here{}, ObservedBy{recorder}},
                              AggregationOptions{.grad_steps = 3}};
  trainer.run([&](auto& replica) {
    for (int t = 0; t < 6; ++t) step(replica, net.w, 1);
  });
  CHECK(count(recorder.of(0), Activity::push) == 2);
  CHECK(recorder.statuses(0) == std::vector(2, Status::accepted));
}

TEST_CASE("observer: it may live in the trainer, and each of several is told", "[observe]") {
  struct Steps {
    void on(const StepEnd&) noexcept { ++count; }
    int count = 0;
  };
  Net<> net;
  {
    SyncReplicas trainer{Sgd{1.0}, net.variables, {}, Here{}, Steps{}};
    auto replica = trainer.join();
    for (int t = 0; t < 3; ++t) step(replica, net.w, 1);
    CHECK(trainer.observer().count == 3);
  }
  Steps first;
  Recorder second;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {}, Here{}, ObservedBy{first, second}};
  auto replica = trainer.join();
  step(replica, net.w, 1);
  CHECK(first.count == 1);
  CHECK(second.steps.size() == 1);
  CHECK(second.of(Activity::push).size() == 1);
}

TEST_CASE("observer: a forked child tells nothing of what its parent does", "[observe][fork]") {
  const Watchdog watchdog;
  Net<> net;
  Recorder recorder;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {}, InProcess{}, ObservedBy{recorder}};
  auto replica = std::make_unique<decltype(trainer.join())>(trainer.join());
  replica->gradient(net.w).setOnes();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = caught<UsageError>(thrown_by([&] { replica->apply_gradients(); })).has_value();
    replica.reset();
    ::_exit(refused ? static_cast<int>(recorder.spans.size()) : 99);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  replica->apply_gradients();
  CHECK(count(recorder.of(0), Activity::push) == 1);
}
