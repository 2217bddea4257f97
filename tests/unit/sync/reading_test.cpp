// SPDX-License-Identifier: MIT
// What replicas see of the variables while updates are written.
#include "unit/sync/scene.hpp"

#include <array>
#include <utility>

using namespace lockstep;
using namespace lockstep::test;

namespace {

constexpr Index k_size = 20'000;  // long enough to be read while it is written, if nothing keeps it still

/// Two variables that every update moves by the same amount; a consistent view shows one number everywhere.
struct Pair {
  Pair()
      : a(variables.add("a", Eigen::VectorXd::Zero(k_size))),
        b(variables.add("b", Eigen::VectorXd::Zero(k_size))) {}
  Variables<double> variables;
  Handle<Eigen::VectorXd, double> a, b;
};

bool is_whole(const auto& replica, const Pair& pair) {
  const double expected = -static_cast<double>(replica.global_step());
  return (replica.value(pair.a).array() == expected).all() &&
         (replica.value(pair.b).array() == expected).all();
}

}  // namespace

TEST_CASE("reading: backup replicas never see a half-written update", "[sync][reading][thread]") {
  const Watchdog watchdog;
  for (const Reading reading : {Reading::automatic, Reading::snapshot})
    for (const auto& [r, n] : {std::pair{1, 2}, {2, 4}}) {
      INFO("R = " << r << ", N = " << n);
      Pair pair;
      SyncReplicas trainer{Sgd{1.0},
                           pair.variables,
                           {.replicas_to_aggregate = r, .total_num_replicas = n, .reading = reading}};
      std::array<int, 4> torn{};
      trainer.run([&](auto& replica) {
        const auto i = at(replica.index());
        while (replica.global_step() < 30) {
          torn[i] += !is_whole(replica, pair);
          replica.gradient(pair.a).setOnes();
          replica.gradient(pair.b).setOnes();
          torn[i] += !is_whole(replica, pair);  // nor does it change while it computes
          replica.apply_gradients();
        }
      });
      CHECK(torn == std::array<int, 4>{});
      CHECK(trainer.global_step() >= 30);
      CHECK(pair.variables.value(pair.b)[k_size - 1] == -static_cast<double>(trainer.global_step()));
      std::int64_t accepted = 0;
      for (int i = 0; i < n; ++i) accepted += trainer.stats(i).accepted;
      CHECK(accepted >= r * trainer.global_step());
    }
}

TEST_CASE("reading: with spare tokens the view is a snapshot too", "[sync][reading][thread]") {
  const Watchdog watchdog;
  Pair pair;
  SyncReplicas trainer{Sgd{1.0}, pair.variables, {.replicas_to_aggregate = 2, .init_tokens = 2}};
  std::array<int, 2> torn{};
  trainer.run([&](auto& replica) {
    while (replica.global_step() < 40) {
      torn[at(replica.index())] += !is_whole(replica, pair);
      replica.gradient(pair.a).setOnes();
      replica.gradient(pair.b).setOnes();
      replica.apply_gradients();
    }
  });
  CHECK(torn == std::array{0, 0});
}

TEST_CASE("reading: in place where nobody can be outside a wait during an update", "[sync][reading]") {
  const auto reads_in_place = [](const SyncOptions& options) {
    Net<> net;
    SyncReplicas trainer{Sgd{1.0}, net.variables, options};
    const auto replica = trainer.join();
    return replica.value(net.w).data() == net.variables.value(net.w).data();
  };
  CHECK(reads_in_place({.replicas_to_aggregate = 2}));
  CHECK(reads_in_place({.replicas_to_aggregate = 4, .total_num_replicas = 2}));
  CHECK_FALSE(reads_in_place({.replicas_to_aggregate = 1, .total_num_replicas = 2}));
  CHECK_FALSE(reads_in_place({.replicas_to_aggregate = 2, .init_tokens = 1}));
  CHECK(reads_in_place({.replicas_to_aggregate = 4, .total_num_replicas = 2, .init_tokens = 2}));
  CHECK(reads_in_place({.replicas_to_aggregate = 1, .total_num_replicas = 2, .reading = Reading::in_place}));
  CHECK_FALSE(reads_in_place({.replicas_to_aggregate = 2, .reading = Reading::snapshot}));
}

TEST_CASE("reading: values stay those that the gradient is computed with until the replica goes on",
          "[sync][reading]") {
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 1, .total_num_replicas = 2}};
  auto a = trainer.join(0), b = trainer.join(1);
  const auto view = b.value(net.w);
  step(a, net.w, 1);
  step(a, net.w, 1);
  CHECK(a.value(net.w)[0] == -2);
  CHECK(view[0] == 0);
  CHECK(b.global_step() == 0);
  CHECK(step(b, net.w, 1).status == Status::stale);
  CHECK(b.value(net.w)[0] == -2);
  CHECK(b.global_step() == 2);
}

TEST_CASE("reading: snapshots and in place give the same bits", "[sync][reading][thread]") {
  const Watchdog watchdog;
  const auto run = [](Reading reading) {
    Net<float> net(5000);
    SyncReplicas trainer{Adam{}, net.variables, {.replicas_to_aggregate = 3, .reading = reading}};
    trainer.run([&](auto& replica) {
      for (int t = 0; t < 5; ++t) {
        replica.set_gradient(
            net.w, replica.value(net.w) + VectorOf<float>::LinSpaced(
                                              5000, -0.3F, 0.1F * static_cast<float>(replica.index() + t)));
        replica.apply_gradients();
      }
    });
    return VectorOf<float>(net.variables.value(net.w));
  };
  CHECK(run(Reading::snapshot) == run(Reading::in_place));
}
