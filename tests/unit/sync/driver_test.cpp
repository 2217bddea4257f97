// SPDX-License-Identifier: MIT
// Driver::chief: a thread of the program carries out the updates.
#include "unit/sync/scene.hpp"

#include <array>
#include <cmath>
#include <stop_token>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("driver: the chief carries out every update, replicas only contribute", "[sync][driver][thread]") {
  const Watchdog watchdog;
  for (const double clip : {0.0, 1000.0}) {
    Net<> net(9000);
    std::atomic<int> on_chief{0}, elsewhere{0};
    std::thread::id chief_thread;
    SyncReplicas trainer{Sgd{1.0},
                         net.variables,
                         {.replicas_to_aggregate = 3,
                          .clip_norm = clip,
                          .driver = Driver::chief,
                          .hooks = {.after_update = [&](const UpdateInfo&) {
                            ++(std::this_thread::get_id() == chief_thread ? on_chief : elsewhere);
                          }}}};
    std::vector<std::int64_t> steps;
    const auto thrown = run_replicas(4, [&](int i) {
      if (i == 3) {
        chief_thread = std::this_thread::get_id();
        for (int t = 0; t < 5; ++t) steps.push_back(trainer.chief_step());
        return;
      }
      auto replica = trainer.join(i);
      for (int t = 0; t < 5; ++t)
        if (const StepResult r = step(replica, net.w, i); r.contributions != 3 || r.global_step != t + 1)
          throw Error("step");
    });
    for (const auto& error : thrown) CHECK(message_of(error) == "");
    CHECK(steps == std::vector<std::int64_t>{1, 2, 3, 4, 5});
    CHECK(on_chief == 5);
    CHECK(elsewhere == 0);
    CHECK(net.value(8999) == -5);
  }
}

TEST_CASE("driver: a chief without enough contributions says who is missing", "[sync][driver]") {
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .driver = Driver::chief}};
  auto first = trainer.join(0);
  const auto timeout = caught<TimeoutError>(thrown_by([&] { trainer.chief_step(10ms); }));
  REQUIRE(timeout);
  CHECK(timeout->missing() == std::vector<Missing>{{0, Missing::Why::slow}, {1, Missing::Why::not_joined}});
  // And a replica without a chief says so.
  auto second = trainer.join(1);
  CHECK(caught<TimeoutError>(thrown_by([&] { step(first, net.w, 1, {.timeout = 5ms}); })));
  const auto no_chief = caught<TimeoutError>(thrown_by([&] { step(second, net.w, 3, {.timeout = 5ms}); }));
  REQUIRE(no_chief);
  CHECK(no_chief->missing().empty());
  CHECK_THAT(no_chief->what(), ContainsSubstring("the chief"));
  CHECK(net.value() == 0);
  CHECK(trainer.chief_step() == 1);
  CHECK(first.resume().global_step == 1);
  CHECK(second.resume().global_step == 1);
  CHECK(net.value() == -2);
}

TEST_CASE("driver: a stop token ends the chief's wait", "[sync][driver][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 1, .driver = Driver::chief}};
  std::stop_source stop;
  std::exception_ptr thrown;
  std::jthread chief([&] { thrown = thrown_by([&] { trainer.chief_step({}, stop.get_token()); }); });
  std::this_thread::sleep_for(2ms);
  stop.request_stop();
  chief.join();
  CHECK(caught<Cancelled>(thrown));
}

TEST_CASE("driver: chief and cooperation give the same bits", "[sync][driver][thread]") {
  const Watchdog watchdog;
  const auto run = [](Driver driver) {
    Net<float> net(9000);
    SyncReplicas trainer{
        Adam{}, net.variables, {.replicas_to_aggregate = 2, .clip_norm = 1, .driver = driver}};
    const auto thrown = run_replicas(3, [&](int i) {
      if (i == 2) {
        if (driver == Driver::chief)
          for (int t = 0; t < 6; ++t) trainer.chief_step();
        return;
      }
      auto replica = trainer.join(i);
      for (int t = 0; t < 6; ++t) {
        replica.set_gradient(net.w,
                             VectorOf<float>::LinSpaced(9000, -0.3F, 0.1F * static_cast<float>(i + t)));
        replica.apply_gradients();
      }
    });
    for (const auto& error : thrown) CHECK(message_of(error) == "");
    return VectorOf<float>(net.variables.value(net.w));
  };
  CHECK(run(Driver::chief) == run(Driver::cooperative));
}

TEST_CASE("driver: a chief whose schedule fails tells the replicas", "[sync][driver][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{.learning_rate = [](std::int64_t step) { return step < 1 ? 1.0 : std::nan(""); }},
                       net.variables,
                       {.replicas_to_aggregate = 1, .driver = Driver::chief}};
  std::exception_ptr of_chief, of_replica;
  const auto thrown = run_replicas(2, [&](int i) {
    if (i == 1) {
      of_chief = thrown_by([&] {
        for (int t = 0; t < 3; ++t) trainer.chief_step();
      });
    } else {
      auto replica = trainer.join(0);
      of_replica = thrown_by([&] {
        for (int t = 0; t < 3; ++t) step(replica, net.w, 1);
      });
    }
  });
  for (const auto& error : thrown) CHECK(message_of(error) == "");
  CHECK(caught<InvalidArgument>(of_chief));
  CHECK(caught<PeerFailed>(of_replica));
  CHECK_THAT(message_of(of_replica), ContainsSubstring("the chief failed"));
  CHECK(net.value() == -1);
}

TEST_CASE("driver: one call of the chief is one update, however fast the replicas are",
          "[sync][driver][thread]") {
  const Watchdog watchdog;
  constexpr int k_steps = 5000;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 1, .driver = Driver::chief}};
  std::vector<std::int64_t> steps;
  const auto thrown = run_replicas(2, [&](int i) {
    if (i == 1) {
      for (int t = 0; t < k_steps; ++t) steps.push_back(trainer.chief_step());
      return;
    }
    auto replica = trainer.join(i);
    while (replica.global_step() < k_steps) step(replica, net.w, 1);
  });
  for (const auto& error : thrown) CHECK(message_of(error) == "");
  REQUIRE(steps.size() == k_steps);
  bool each = true;
  for (int t = 0; t < k_steps; ++t) each = each && steps[at(t)] == t + 1;
  CHECK(each);
}

TEST_CASE("driver: the chief is told when no round can be completed any more", "[sync][driver]") {
  for (const Departure departure : {Departure::fail, Departure::stop}) {
    Net<> net;
    SyncReplicas trainer{Sgd{1.0},
                         net.variables,
                         {.replicas_to_aggregate = 2, .departure = departure, .driver = Driver::chief}};
    auto first = trainer.join(0);
    trainer.join(1).leave();
    const auto thrown = thrown_by([&] { trainer.chief_step(); });
    CHECK(caught<PeerFailed>(thrown).has_value() == (departure == Departure::fail));
    CHECK(caught<Cancelled>(thrown).has_value() == (departure == Departure::stop));
    CHECK_THAT(message_of(thrown), ContainsSubstring("replica 1"));
  }
}
