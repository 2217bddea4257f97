// SPDX-License-Identifier: MIT
// Error texts say which trainer and which session they are about, and who has done what.
#include "unit/sync/scene.hpp"
#include <lockstep/lockstep.hpp>

#include <array>
#include <cmath>
#include <string>
#include <unistd.h>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

namespace {

/// A session that no other test uses, and where its file is.
SharedMemory texts_session(int replica = -1) {
  return {.name = "test-texts-" + std::to_string(::getpid()), .replica = replica};
}
const std::string& texts_file() {
  static const std::string file = "/dev/shm/lockstep." + texts_session().name;
  return file;
}

}  // namespace

TEST_CASE("texts: who is still active, of which session", "[sync][texts]") {
  const Watchdog watchdog;
  Net<> net, another;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 3}};
  const auto first = trainer.join(0);
  const auto last = trainer.join(2);
  CHECK(message_of(thrown_by([&] { trainer.run([](auto&) {}); })) ==
        "run: replicas that are still active: 0, 2 (of 3)");

  for (const std::string name : {"", "mine"}) {
    SyncReplicas one{
        Sgd{1.0}, another.variables, {.name = name, .replicas_to_aggregate = 1}, texts_session()};
    const auto replica = one.join();
    const std::string title = name.empty() ? texts_file() + ": " : "mine (" + texts_file() + "): ";
    CHECK(message_of(thrown_by([&] { one.run([](auto&) {}); })) ==
          title + "run: replicas that are still active: 0 (of 1)");
    CHECK(message_of(thrown_by([&] { (void)one.join(); })) ==
          title + "join: all 1 replicas have joined already");
    CHECK(message_of(thrown_by([&] { (void)one.join(1); })) ==
          title + "join: replica numbers are 0 to 0, got 1");
  }
}

TEST_CASE("texts: a program that is refused is named to those who wait for it", "[sync][texts][thread]") {
  const Watchdog watchdog;
  Net<> net, another;
  SyncReplicas trainer{Sgd{1.0},
                       net.variables,
                       {.name = "mine", .replicas_to_aggregate = 2, .deadline = 50s},
                       texts_session(0)};
  std::exception_ptr refused;
  const auto thrown = run_replicas(2, [&](int i) {
    if (i == 0) {
      trainer.run([&](auto& replica) { step(replica, net.w, 1); });
    } else {
      wait_until([&] { return trainer.stats(0).incarnation == 1; });
      refused = thrown_by([&] {
        SyncReplicas{
            Sgd{2.0}, another.variables, {.name = "other", .replicas_to_aggregate = 2}, texts_session()};
      });
    }
  });
  const std::string why =
      "a process that wants to join disagrees about " + texts_file() + ": who joins has 'rule parameters";
  CHECK(caught<LayoutMismatch>(refused));
  CHECK_THAT(message_of(refused), StartsWith("other: " + why));
  REQUIRE(caught<PeerFailed>(thrown[0]));
  CHECK(caught<PeerFailed>(thrown[0])->replica() < 0);
  CHECK_THAT(message_of(thrown[0]), StartsWith("mine (" + texts_file() + "): step 0: " + why) &&
                                        EndsWith("; replica 0 cannot go on"));
  CHECK(message_of(thrown[1]) == "");
}

TEST_CASE("texts: what a chief or a replica has failed by reaches the others", "[sync][texts]") {
  const auto rate = [](std::int64_t) -> double { throw std::runtime_error("no rate"); };
  for (const bool is_chief : {true, false}) {
    Net<> net;
    SyncReplicas trainer{
        Sgd{.learning_rate = rate},
        net.variables,
        {.replicas_to_aggregate = 1, .driver = is_chief ? Driver::chief : Driver::cooperative}};
    auto replica = trainer.join(0);
    if (is_chief) {
      CHECK(caught<TimeoutError>(thrown_by([&] { step(replica, net.w, 1, {.timeout = 1ms}); })));
      CHECK(message_of(thrown_by([&] { trainer.chief_step(); })) == "no rate");
      CHECK(message_of(thrown_by([&] { replica.resume(); })) ==
            "step 0: the chief failed: no rate; replica 0 cannot go on");
      CHECK(message_of(thrown_by([&] { trainer.chief_step(); })) == "chief_step: the chief failed: no rate");
    } else {
      CHECK(message_of(thrown_by([&] { step(replica, net.w, 1); })) == "no rate");
      CHECK(message_of(thrown_by([&] { trainer.chief_step(1ms); })) ==
            "chief_step: replica 0 failed: no rate");
    }
  }
}

TEST_CASE("texts: processes agree on every digit of a limit", "[sync][texts]") {
  const double limit = 0.1, next = std::nextafter(limit, 1);
  const auto differs = [](const SyncOptions& mine, const SyncOptions& other) {
    Net<> net;
    return detail::describe(Sgd{1.0}, net.variables, mine) !=
           detail::describe(Sgd{1.0}, net.variables, other);
  };
  CHECK(differs({.clip_norm = limit}, {.clip_norm = next}));
  CHECK(differs({.clip_contribution_norm = limit}, {.clip_contribution_norm = next}));
  CHECK_FALSE(differs({.clip_norm = limit, .clip_contribution_norm = next},
                      {.clip_norm = limit, .clip_contribution_norm = next}));

  Net<> net, another;
  const auto options = [](double clip_norm) {
    return SyncOptions{.replicas_to_aggregate = 1, .total_num_replicas = 2, .clip_norm = clip_norm};
  };
  const SyncReplicas trainer{Sgd{1.0}, net.variables, options(limit), texts_session(0)};
  CHECK_THAT(message_of(thrown_by([&] {
               SyncReplicas{Sgd{1.0}, another.variables, options(next), texts_session(1)};
             })),
             Catch::Matchers::ContainsSubstring("'clip_norm: 0.1'") &&
                 Catch::Matchers::ContainsSubstring("'clip_norm: 0.10000000000000002'"));
}
