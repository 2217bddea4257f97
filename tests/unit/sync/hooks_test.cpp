// SPDX-License-Identifier: MIT
#include "unit/sync/scene.hpp"

#include <array>
#include <mutex>
#include <stdexcept>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("hooks: begin and end once per replica on its thread, after_update once per update",
          "[sync][hooks][thread]") {
  const Watchdog watchdog;
  Net<> net(9000);
  std::array<std::thread::id, 3> thread_of, began_on, ended_on;
  std::array<int, 3> begins{}, ends{};
  std::vector<std::int64_t> steps;  // without a lock: hooks of updates follow each other
  std::vector<double> values;
  int wrong_counts = 0;
  Hooks hooks;
  hooks.begin = [&](int i) {
    ++begins[at(i)];
    began_on[at(i)] = std::this_thread::get_id();
  };
  hooks.end = [&](int i) {
    ++ends[at(i)];
    ended_on[at(i)] = std::this_thread::get_id();
  };
  hooks.after_update = [&](const UpdateInfo& info) {
    steps.push_back(info.global_step);
    values.push_back(net.value(8999));  // still until the hook returns
    wrong_counts += info.contributions != 3;
  };
  SyncReplicas trainer{
      Sgd{1.0}, net.variables, {.replicas_to_aggregate = 3, .clip_norm = 1e9, .hooks = hooks}};
  std::array<int, 3> early{};
  trainer.run([&](auto& replica) {
    const auto i = at(replica.index());
    thread_of[i] = std::this_thread::get_id();
    if (begins[i] != 1) ++early[i];
    while (replica.global_step() < 20) step(replica, net.w, 1);
    if (ends[i] != 0) ++early[i];
  });
  CHECK(early == std::array<int, 3>{});
  CHECK(begins == std::array{1, 1, 1});
  CHECK(ends == std::array{1, 1, 1});
  CHECK(began_on == thread_of);
  CHECK(ended_on == thread_of);
  CHECK(wrong_counts == 0);
  REQUIRE(steps.size() == 20);
  for (int t = 0; t < 20; ++t) {
    CHECK(steps[at(t)] == t + 1);
    CHECK(values[at(t)] == -(t + 1));
  }
}

TEST_CASE("hooks: no after_update for a window that stays open or a round that is skipped", "[sync][hooks]") {
  Net<> net;
  int updates = 0;
  SyncReplicas trainer{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = 3}},
                       net.variables,
                       {.replicas_to_aggregate = 1,
                        .non_finite = NonFinite::skip_update,
                        .hooks = {.after_update = [&](const UpdateInfo&) { ++updates; }}}};
  auto replica = trainer.join();
  for (int t = 0; t < 6; ++t) {
    step(replica, net.w, 1);
    step(replica, net.w, std::nan(""));
  }
  CHECK(updates == 2);
  CHECK(net.value() == -2);
}

TEST_CASE("hooks: an exception reaches its own thread, the others get PeerFailed with its text",
          "[sync][hooks][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0},
                       net.variables,
                       {.replicas_to_aggregate = 3, .hooks = {.after_update = [&](const UpdateInfo& info) {
                                                      if (info.global_step == 2)
                                                        throw std::length_error("disk full");
                                                    }}}};
  std::array<std::exception_ptr, 3> told;
  std::array<int, 3> steps{};
  const auto thrown = run_replicas(3, [&](int i) {
    auto replica = trainer.join(i);
    told[at(i)] = thrown_by([&] {
      for (int t = 0; t < 5; ++t) {
        step(replica, net.w, 1);
        ++steps[at(i)];
      }
    });
  });
  for (const auto& error : thrown) CHECK(message_of(error) == "");
  int own = 0, failed = 0;
  for (const auto& error : told) {
    own += caught<std::length_error>(error).has_value();
    failed += caught<PeerFailed>(error).has_value();
    if (caught<PeerFailed>(error)) CHECK_THAT(message_of(error), ContainsSubstring("disk full"));
  }
  CHECK(own == 1);
  CHECK(failed == 2);
  CHECK(net.value() == -2);  // the update of the hook was made
  CHECK(trainer.global_step() == 2);
  trainer.start_over();
  auto again = trainer.join(0);
  CHECK(again.global_step() == 2);
}

TEST_CASE("hooks: a schedule that fails inside an update fails the trainer", "[sync][hooks][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{.learning_rate = [](std::int64_t step) -> double {
                         if (step == 1) throw std::length_error("no rate");
                         return 1;
                       }},
                       net.variables,
                       {.replicas_to_aggregate = 2}};
  CHECK(caught<std::length_error>(thrown_by([&] {
    trainer.run([&](auto& replica) {
      for (int t = 0; t < 3; ++t) step(replica, net.w, 1);
    });
  })));
  CHECK(net.value() == -1);
}

TEST_CASE("hooks: an exception from begin or end ends the run with it", "[sync][hooks][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas at_begin{
      Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .hooks = {.begin = [](int i) {
                                                              if (i == 1) throw std::length_error("begin");
                                                            }}}};
  const auto thrown = thrown_by([&] { at_begin.run([&](auto& replica) { step(replica, net.w, 1); }); });
  CHECK(caught<std::length_error>(thrown));
}

TEST_CASE("hooks: an exception from the end reaches the caller of run and of leave",
          "[sync][hooks][thread]") {
  const Watchdog watchdog;
  for (const int replicas : {1, 3}) {
    Net<> net;
    SyncReplicas trainer{
        Sgd{1.0}, net.variables, {.replicas_to_aggregate = replicas, .hooks = {.end = [](int i) {
                                                                       if (i == 0)
                                                                         throw std::length_error("end");
                                                                     }}}};
    CHECK(caught<std::length_error>(
        thrown_by([&] { trainer.run([&](auto& replica) { step(replica, net.w, 1); }); })));
    CHECK(net.value() == -1);
    trainer.start_over();
    auto replica = trainer.join(0);
    CHECK(caught<std::length_error>(thrown_by([&] { replica.leave(); })));
    CHECK(caught<UsageError>(thrown_by([&] { (void)replica.global_step(); })));  // it has left all the same
    CHECK_NOTHROW(replica.leave());
  }
}

TEST_CASE("hooks: global_step is what the replicas are told, also after a restore", "[sync][hooks]") {
  Net<> net;
  std::vector<std::int64_t> steps;
  SyncReplicas trainer{
      Sgd{1.0},
      net.variables,
      {.replicas_to_aggregate = 1, .global_step = 100, .hooks = {.after_update = [&](const UpdateInfo& info) {
                                                         steps.push_back(info.global_step);
                                                       }}}};
  auto replica = trainer.join();
  CHECK(step(replica, net.w, 1).global_step == 101);
  const auto snapshot = trainer.snapshot();
  CHECK(step(replica, net.w, 1).global_step == 102);
  trainer.restore(snapshot);
  CHECK(step(replica, net.w, 1).status == Status::old_generation);
  CHECK(step(replica, net.w, 1).global_step == 102);
  CHECK(steps == std::vector<std::int64_t>{101, 102, 102});
  CHECK(trainer.stats(0).local_step == 101);  // of the contribution after the restore
}
