// SPDX-License-Identifier: MIT
// Cores on which threads begin.
#include "support/catch.hpp"
#include <lockstep/lockstep.hpp>
#include <lockstep/transport/core_claims.hpp>

#include <cstddef>
#include <sched.h>
#include <set>
#include <thread>
#include <vector>

using namespace lockstep;

namespace {

cpu_set_t allowed_cores() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
  return allowed;
}

/// Claims for threads that the system has put on these cores, in this order.
std::vector<std::size_t> claimed(const std::vector<std::size_t>& here, const std::set<std::size_t>& allowed) {
  detail::CoreClaims claims;
  std::vector<std::size_t> cores;
  for (const std::size_t core : here)
    cores.push_back(claims.claim(core, [&](std::size_t other) { return allowed.contains(other); }));
  return cores;
}

}  // namespace

TEST_CASE("core claims: who is alone on a core stays, others go to the next one with fewest",
          "[transport][cores]") {
  using Cores = std::vector<std::size_t>;
  CHECK(claimed({0, 1, 3}, {0, 1, 2, 3}) == Cores{0, 1, 3});
  CHECK(claimed({1, 1, 1, 1}, {0, 1, 2, 3}) == Cores{1, 2, 3, 0});
  CHECK(claimed({1, 0, 0, 1, 1}, {0, 1}) == Cores{1, 0, 0, 1, 1});
  CHECK(claimed({1, 1, 1, 1, 1}, {0, 1}) == Cores{1, 0, 1, 0, 1});
  CHECK(claimed({900, 900, 900, 900}, {5, 900, 1023}) == Cores{900, 1023, 5, 900});
  CHECK(claimed({7, 7, 7}, {7}) == Cores{7, 7, 7});
}

TEST_CASE("core claims: a second claim moves the thread and binds it nowhere", "[transport][cores]") {
  constexpr int tries = 200;
  int moved = 0, bound = 0;
  std::thread([&] {
    const cpu_set_t before = allowed_cores();
    for (int i = 0; i < tries; ++i) {
      detail::CoreClaims claims;
      claims.claim();
      const int first = sched_getcpu();
      claims.claim();
      moved += sched_getcpu() != first ? 1 : 0;
      const cpu_set_t after = allowed_cores();
      bound += CPU_EQUAL(&before, &after) ? 0 : 1;
    }
  }).join();
  CHECK(bound == 0);
  const cpu_set_t here = allowed_cores();
  if (CPU_COUNT(&here) > 1)
    CHECK(moved > tries / 2);  // the system may move it at any time, but seldom does
  else
    CHECK(moved == 0);
}

TEST_CASE("core claims: replicas keep the cores that the caller of run() may use", "[transport][cores]") {
  Variables<float> variables;
  const auto w = variables.add("w", Eigen::VectorXf::Ones(8).eval());
  SyncReplicas trainer{Sgd{}, variables, {.replicas_to_aggregate = 3}};
  const cpu_set_t before = allowed_cores();
  std::vector<cpu_set_t> during(3);
  trainer.run([&](auto& replica) {
    replica.gradient(w).setOnes();
    replica.apply_gradients();
    during[static_cast<std::size_t>(replica.index())] = allowed_cores();
  });
  for (const cpu_set_t& each : during) CHECK(CPU_EQUAL(&each, &before));
  const cpu_set_t after = allowed_cores();
  CHECK(CPU_EQUAL(&after, &before));
}
