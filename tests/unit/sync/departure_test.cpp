// SPDX-License-Identifier: MIT
// Replicas that leave, come back, give up waiting or are cancelled.
#include "unit/sync/scene.hpp"

#include <array>
#include <functional>
#include <stop_token>
#include <string>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Runs three replicas for four steps; replica `leaver` ends its loop after `steps` of them.
struct Outcomes {
  std::array<std::vector<StepResult>, 3> results;
  std::array<std::exception_ptr, 3> thrown;
  double value = 0;
};
Outcomes run_with_leaver(Departure departure, int leaver, int steps) {
  Outcomes outcomes;
  Net<> net;
  SyncReplicas trainer{
      Sgd{1.0}, net.variables, {.replicas_to_aggregate = 3, .departure = departure, .deadline = 200ms}};
  const auto thrown = run_replicas(3, [&](int i) {
    auto replica = trainer.join(i);
    outcomes.thrown[at(i)] = thrown_by([&] {
      for (int t = 0; replica.global_step() < (i == leaver ? steps : 4) && t < 20; ++t) {
        outcomes.results[at(i)].push_back(step(replica, net.w, i + 1));
        if (outcomes.results[at(i)].back().status == Status::stopped) break;
      }
    });
  });
  for (const auto& error : thrown) CHECK(message_of(error) == "");
  outcomes.value = net.value();
  return outcomes;
}

}  // namespace

TEST_CASE("departure: each policy has its name", "[sync][departure]") {
  const auto name = [](Departure departure) { return std::string(to_string(departure)); };
  CHECK(name(Departure::redistribute) == "redistribute");
  CHECK(name(Departure::shrink) == "shrink");
  CHECK(name(Departure::wait) == "wait");
  CHECK(name(Departure::fail) == "fail");
  CHECK(name(Departure::stop) == "stop");
}

TEST_CASE("departure: redistribute keeps the size of the batch", "[sync][departure][thread]") {
  const Watchdog watchdog;
  for (const int leaver : {0, 1, 2})
    for (const int steps : {0, 1, 3}) {
      INFO("replica " << leaver << " leaves after step " << steps);
      const Outcomes o = run_with_leaver(Departure::redistribute, leaver, steps);
      const int first = leaver == 0 ? 1 : 0, second = leaver == 2 ? 1 : 2;
      // The lowest of those that are left gives one more.
      const double full = (1 + 2 + 3) / 3.0, without = (2 * (first + 1) + (second + 1)) / 3.0;
      CHECK(-o.value == Approx(steps * full + (4 - steps) * without).epsilon(1e-14));
      for (int i = 0; i < 3; ++i) {
        CHECK(message_of(o.thrown[at(i)]) == "");
        for (const StepResult& result : o.results[at(i)])
          if (!result.round_open) {
            CHECK(result.contributions == 3);
          }
      }
      CHECK(o.results[at(second)].size() == 4);
    }
}

TEST_CASE("departure: shrink averages those who are left", "[sync][departure][thread]") {
  const Watchdog watchdog;
  for (const int leaver : {0, 1, 2})
    for (const int steps : {0, 1, 3}) {
      INFO("replica " << leaver << " leaves after step " << steps);
      const Outcomes o = run_with_leaver(Departure::shrink, leaver, steps);
      const double full = (1 + 2 + 3) / 3.0, without = (6 - (leaver + 1)) / 2.0;
      CHECK(-o.value == Approx(steps * full + (4 - steps) * without).epsilon(1e-14));
      for (int i = 0; i < 3; ++i) {
        CHECK(message_of(o.thrown[at(i)]) == "");
        if (i == leaver) continue;
        REQUIRE(o.results[at(i)].size() == 4);
        for (int t = 0; t < 4; ++t) CHECK(o.results[at(i)][at(t)].contributions == (t < steps ? 3 : 2));
      }
    }
}

TEST_CASE("departure: wait keeps the place, and says who is missing", "[sync][departure][thread]") {
  const Watchdog watchdog;
  const Outcomes o = run_with_leaver(Departure::wait, 1, 2);
  CHECK(o.value == -2 * 2);
  for (const int i : {0, 2}) {
    const auto timeout = caught<TimeoutError>(o.thrown[at(i)]);
    REQUIRE(timeout);
    CHECK(std::find(timeout->missing().begin(), timeout->missing().end(), Missing{1, Missing::Why::left}) !=
          timeout->missing().end());
  }
}

TEST_CASE("departure: fail tells all others who it was", "[sync][departure][thread]") {
  const Watchdog watchdog;
  for (const int steps : {0, 2}) {
    const Outcomes o = run_with_leaver(Departure::fail, 1, steps);
    CHECK(o.value == -2.0 * steps);
    for (const int i : {0, 2}) {
      const auto failed = caught<PeerFailed>(o.thrown[at(i)]);
      REQUIRE(failed);
      CHECK(failed->replica() == 1);
      CHECK_THAT(failed->what(), ContainsSubstring("replica 1"));
    }
  }
}

TEST_CASE("departure: stop ends training with the same status everywhere", "[sync][departure][thread]") {
  const Watchdog watchdog;
  for (const int steps : {0, 2}) {
    const Outcomes o = run_with_leaver(Departure::stop, 1, steps);
    CHECK(o.value == -2.0 * steps);
    for (const int i : {0, 2}) {
      CHECK(message_of(o.thrown[at(i)]) == "");
      REQUIRE(o.results[at(i)].size() == at(steps + 1));
      const StepResult& last = o.results[at(i)].back();
      CHECK(last.status == Status::stopped);
      CHECK(last.culprit == 1);
      CHECK(last.global_step == steps);
    }
  }
}

TEST_CASE("departure: what was contributed before leaving stays in the round", "[sync][departure]") {
  for (const Departure departure : {Departure::redistribute, Departure::shrink}) {
    Net<> net;
    SyncReplicas trainer{Sgd{1.0},
                         net.variables,
                         {.replicas_to_aggregate = 4, .total_num_replicas = 2, .departure = departure}};
    auto first = trainer.join(0);
    auto second = trainer.join(1);
    CHECK(step(first, net.w, 1).round_open);
    CHECK(step(second, net.w, 10).round_open);
    second.leave();
    if (departure == Departure::redistribute) CHECK(step(first, net.w, 2).round_open);
    const StepResult result = step(first, net.w, 3);
    CHECK_FALSE(result.round_open);
    CHECK(result.contributions == (departure == Departure::redistribute ? 4 : 3));
    CHECK(-net.value() ==
          Approx(departure == Departure::redistribute ? (1 + 2 + 3 + 10) / 4.0 : (1 + 3 + 10) / 3.0)
              .epsilon(1e-14));
  }
}

TEST_CASE("departure: the one who leaves carries out the round that this closes",
          "[sync][departure][thread]") {
  const Watchdog watchdog;
  Net<> net(9000);
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .departure = Departure::shrink}};
  auto leaver = trainer.join(1);
  StepResult result;
  const auto thrown = run_replicas(2, [&](int i) {
    if (i == 0) {
      auto replica = trainer.join(0);
      result = step(replica, net.w, 3);
    } else {
      wait_until([&] { return trainer.stats(0).accepted == 1; });
      leaver.leave();
    }
  });
  for (const auto& error : thrown) CHECK(message_of(error) == "");
  CHECK(result.contributions == 1);
  CHECK(net.value(8999) == -3);
}

TEST_CASE("departure: a replacement takes the place and goes on counting", "[sync][departure][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .departure = Departure::wait}};
  std::int64_t sequence = -1, seen_step = -1;
  double seen = 0;
  const auto thrown = run_replicas(2, [&](int i) {
    if (i == 0) {
      auto replica = trainer.join(0);
      for (int t = 0; t < 4; ++t) step(replica, net.w, 1);
      return;
    }
    {
      auto replica = trainer.join(1);
      for (int t = 0; t < 2; ++t) step(replica, net.w, 3);
    }
    auto replica = trainer.join(1);
    sequence = replica.sequence();
    seen_step = replica.global_step();
    seen = replica.value(net.w)[0];
    for (int t = 0; t < 2; ++t) step(replica, net.w, 5);
  });
  for (const auto& error : thrown) CHECK(message_of(error) == "");
  CHECK(sequence == 2);
  CHECK(seen_step == 2);
  CHECK(seen == -4);
  CHECK(net.value() == -4 - 6);
  CHECK(trainer.stats(1).incarnation == 2);
}

TEST_CASE("departure: a replacement waits for the next round if its place has given its part",
          "[sync][departure][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0},
                       net.variables,
                       {.replicas_to_aggregate = 3, .total_num_replicas = 2, .departure = Departure::wait}};
  auto first = trainer.join(0);
  std::optional<decltype(trainer)::Replica> second(trainer.join(1));
  StepResult of_second;
  std::jthread thread([&] {
    step(first, net.w, 1);
    wait_until([&] { return trainer.stats(1).incarnation == 2; });
    step(first, net.w, 2);
    step(first, net.w, 1);
    step(first, net.w, 2);
  });
  const auto timeout = caught<TimeoutError>(thrown_by([&] { step(*second, net.w, 6, {.timeout = 20ms}); }));
  REQUIRE(timeout);
  CHECK(second->withdraw());
  second->leave();  // nothing of it is in the round
  second.emplace(trainer.join(1));
  CHECK(second->global_step() == 0);
  CHECK(second->sequence() == 0);
  of_second = step(*second, net.w, 9);
  CHECK(of_second.global_step == 1);
  CHECK(net.value() == -(1 + 2 + 9) / 3.0);
  CHECK(step(*second, net.w, 9).global_step == 2);
}

TEST_CASE("departure: after a timeout the contribution stands, to be waited for or taken back",
          "[sync][departure][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2}};
  auto first = trainer.join(0);
  const auto timeout = caught<TimeoutError>(thrown_by([&] { step(first, net.w, 1, {.timeout = 10ms}); }));
  REQUIRE(timeout);
  CHECK(timeout->missing() == std::vector<Missing>{{1, Missing::Why::not_joined}});
  CHECK_THAT(timeout->what(),
             ContainsSubstring("replica 0") && ContainsSubstring("replica 1 has not joined"));
  CHECK_THROWS_AS(first.gradient(net.w), UsageError);
  CHECK_THROWS_WITH(first.apply_gradients(), ContainsSubstring("resume"));
  auto second = trainer.join(1);
  const auto slow = caught<TimeoutError>(thrown_by([&] { first.resume({.timeout = 10ms}); }));
  REQUIRE(slow);
  CHECK(slow->missing() == std::vector<Missing>{{1, Missing::Why::slow}});

  CHECK(first.withdraw());
  CHECK(trainer.stats(0).accepted == 0);
  CHECK(first.sequence() == 0);
  CHECK_THROWS_AS(first.apply_gradients(), NoGradients);  // it is gone
  CHECK(caught<TimeoutError>(thrown_by([&] { step(first, net.w, 5, {.timeout = 10ms}); })));
  StepResult result;
  std::jthread([&] { result = step(second, net.w, 7); }).join();
  CHECK(result.contributions == 2);
  CHECK_FALSE(first.withdraw());  // too late
  CHECK(first.resume().global_step == 1);
  CHECK(net.value() == -6);
  CHECK_THROWS_AS(first.resume(), UsageError);
}

TEST_CASE("departure: withdrawing takes back the last contribution only", "[sync][departure]") {
  Net<> net(20);
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 4, .total_num_replicas = 2}};
  auto first = trainer.join(0), second = trainer.join(1);
  CHECK(step(first, net.w, 1).round_open);
  CHECK(caught<TimeoutError>(thrown_by([&] { step(first, net.w, 100, {.timeout = 5ms}); })));
  CHECK(first.withdraw());
  CHECK(step(second, net.w, 2).round_open);
  CHECK(caught<TimeoutError>(thrown_by([&] { step(first, net.w, 3, {.timeout = 5ms}); })));
  CHECK(step(second, net.w, 6).contributions == 4);
  CHECK(first.resume().contributions == 4);
  CHECK(net.value(19) == -3);  // the mean of 1, 2, 3 and 6
}

TEST_CASE("departure: a pending contribution goes with the replica that leaves", "[sync][departure]") {
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2}};
  auto first = trainer.join(0), second = trainer.join(1);
  CHECK(caught<TimeoutError>(thrown_by([&] { step(first, net.w, 100, {.timeout = 5ms}); })));
  first.leave();
  CHECK(step(second, net.w, 1).round_open);
  CHECK(step(second, net.w, 3).contributions == 2);
  CHECK(net.value() == -2);
}

TEST_CASE("departure: a stop token ends a wait at once", "[sync][departure][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2}};
  std::stop_source stop;
  std::exception_ptr thrown;
  std::jthread thread([&] {
    auto replica = trainer.join(0, stop.get_token());
    thrown = thrown_by([&] { step(replica, net.w, 1); });
  });
  wait_until([&] { return trainer.stats(0).accepted == 1; });
  stop.request_stop();
  thread.join();
  const auto cancelled = caught<Cancelled>(thrown);
  REQUIRE(cancelled);
  CHECK_THAT(cancelled->what(), ContainsSubstring("replica 0"));
  CHECK(net.value() == 0);

  trainer.start_over();
  CHECK(caught<Cancelled>(thrown_by([&] {
    trainer.run([&](auto& replica) { step(replica, net.w, replica.index() == 0 ? 1 : 2); }, stop.get_token());
  })));
}

TEST_CASE("departure: after everybody has left a new run starts with an empty round", "[sync][departure]") {
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .total_num_replicas = 1}};
  {
    auto replica = trainer.join();
    CHECK(step(replica, net.w, 100).round_open);
  }
  trainer.start_over();
  auto replica = trainer.join();
  CHECK(step(replica, net.w, 1).round_open);
  CHECK(step(replica, net.w, 3).contributions == 2);
  CHECK(net.value() == -2);
}

TEST_CASE("departure: a full house may leave and come back between rounds", "[sync][departure][thread]") {
  const Watchdog watchdog;
  for (const Departure departure : {Departure::shrink, Departure::wait}) {
    Net<> net;
    SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .departure = departure}};
    for (int time = 1; time <= 3; ++time) {
      auto a = trainer.join(0);
      auto b = trainer.join(1);
      std::jthread thread([&] { step(a, net.w, 1); });
      while (step(b, net.w, 3).round_open) {
      }
      thread.join();
      CHECK(trainer.global_step() == time);
    }
  }
}
