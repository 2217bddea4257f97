// SPDX-License-Identifier: MIT
// What comes between two critical sections of one call.
#include "support/hooked_transport.hpp"
#include "unit/sync/scene.hpp"

#include <functional>
#include <limits>

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("races: what was merged for a round that was skipped is not counted in the next one",
          "[sync][races][thread]") {
  const Watchdog watchdog;
  Net<> net;
  const Hooked hooked;
  SyncReplicas trainer{
      Sgd{1.0}, net.variables,
      SyncOptions{.replicas_to_aggregate = 2, .non_finite = NonFinite::skip_update, .init_tokens = 1},
      hooked};
  auto first = trainer.join(0);
  auto second = trainer.join(1);
  REQUIRE(step(first, net.w, 100).round_open);

  // The next one is merged with the first; before it is offered, the other replica has the round skipped.
  StepResult skipped;
  hooked.script->action = [&] { skipped = step(second, net.w, std::numeric_limits<double>::quiet_NaN()); };
  hooked.script->countdown = 1;
  CHECK(step(first, net.w, 10).status == Status::not_needed);
  CHECK(skipped.status == Status::skipped);
  CHECK(trainer.stats(0).not_needed == 1);

  const auto thrown = run_replicas(2, [&](int i) { step(i == 0 ? first : second, net.w, i == 0 ? 5 : 3); });
  for (const auto& error : thrown) CHECK(message_of(error) == "");
  CHECK(net.value() == -4);
}

TEST_CASE("races: a new run waits for the update that is being planned", "[sync][races][thread]") {
  const Watchdog watchdog;
  Net<> net;
  std::atomic<bool> begun_anew = false;
  bool too_early = false;
  std::thread other;
  std::function<void()> start_over;
  SyncReplicas trainer{Sgd{.learning_rate =
                               [&](std::int64_t) {
                                 other = std::thread([&] {
                                   start_over();
                                   begun_anew = true;
                                 });
                                 std::this_thread::sleep_for(50ms);
                                 too_early = begun_anew;
                                 return 1.0;
                               }},
                       net.variables,
                       {.replicas_to_aggregate = 2, .total_num_replicas = 1, .departure = Departure::shrink}};
  start_over = [&] { trainer.start_over(); };
  {
    auto replica = trainer.join(0);
    REQUIRE(step(replica, net.w, 7).round_open);
  }  // by leaving it closes the round, and carries it out
  other.join();
  CHECK_FALSE(too_early);
  CHECK(begun_anew);
  CHECK(trainer.global_step() == 1);
  CHECK(net.value() == -7);
}

TEST_CASE("races: a round that has closed is carried out although training ends", "[sync][races][thread]") {
  const Watchdog watchdog;
  for (const Departure policy : {Departure::stop, Departure::fail}) {
    Net<> net;
    const Hooked hooked;
    SyncReplicas trainer{
        Sgd{1.0}, net.variables,
        SyncOptions{.replicas_to_aggregate = 1, .total_num_replicas = 2, .departure = policy}, hooked};
    auto first = trainer.join(0);
    auto second = trainer.join(1);
    std::thread contributor;
    StepResult result;
    // While the snapshot keeps the variables still, the round closes and the other replica leaves.
    hooked.script->action = [&] {
      contributor = std::thread([&] { result = step(first, net.w, 2); });
      wait_until([&] { return trainer.stats(0).accepted == 1; });
      second.leave();
    };
    hooked.script->countdown = 1;
    CHECK(trainer.snapshot().counters.window.global_step == 0);
    contributor.join();
    CHECK(result.status == Status::accepted);
    CHECK(trainer.global_step() == 1);
    CHECK(net.value() == -2);
    const auto thrown = thrown_by([&] { result = step(first, net.w, 2); });
    CHECK((policy == Departure::stop ? result.status == Status::stopped
                                     : caught<PeerFailed>(thrown).has_value()));
    CHECK(net.value() == -2);
  }
}

TEST_CASE("races: after a cancellation the contribution stands until it is withdrawn",
          "[sync][races][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .departure = Departure::wait}};
  for (const bool withdraws : {true, false}) {
    std::stop_source stop;
    auto cancelled = trainer.join(0, stop.get_token());
    std::thread canceller([&] {
      wait_until([&] { return trainer.stats(0).accepted == 1; });
      stop.request_stop();
    });
    CHECK(caught<Cancelled>(thrown_by([&] { step(cancelled, net.w, 1000); })));
    canceller.join();
    CHECK(trainer.stats(0).accepted == 1);
    if (withdraws) {
      CHECK(cancelled.withdraw());
      CHECK(trainer.stats(0).accepted == 0);
    }
    cancelled.leave();  // withdraws it too
    CHECK(trainer.stats(0).accepted == 0);
  }
  trainer.run([&](auto& replica) { step(replica, net.w, replica.index() + 1); });
  CHECK(net.value() == -1.5);
}

TEST_CASE("races: a hook after an update takes a snapshot of it", "[sync][races][thread]") {
  const Watchdog watchdog;
  Net<> net;
  std::function<Snapshot<double>()> take;
  std::vector<double> saved;
  SyncReplicas trainer{
      Sgd{1.0},
      net.variables,
      {.replicas_to_aggregate = 2, .hooks = {.after_update = [&](const UpdateInfo& info) {
                                     const auto snapshot = take();
                                     saved.push_back(snapshot.arrays[0].values[0]);
                                     if (snapshot.counters.window.global_step != info.global_step)
                                       saved.clear();
                                   }}}};
  take = [&] { return trainer.snapshot(); };
  trainer.run([&](auto& replica) {
    while (replica.global_step() < 3) step(replica, net.w, 1);
  });
  CHECK(saved == std::vector<double>{-1, -2, -3});
}

TEST_CASE("races: a hook after an update cannot restore", "[sync][races]") {
  Net<> net;
  std::function<void()> restore;
  SyncReplicas trainer{
      Sgd{1.0},
      net.variables,
      {.replicas_to_aggregate = 1, .hooks = {.after_update = [&](const UpdateInfo&) { restore(); }}}};
  restore = [&, snapshot = trainer.snapshot()] { trainer.restore(snapshot); };
  auto replica = trainer.join();
  CHECK(caught<UsageError>(thrown_by([&] { step(replica, net.w, 1); })));
  CHECK(net.value() == -1);
}
