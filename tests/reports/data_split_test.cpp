// SPDX-License-Identifier: MIT
// BR-131: who computes what does not depend on the machine. Built a second time with OpenMP, see meson.build.
#include "reports/scenario.hpp"

#include <string>

#if defined(__linux__)
#include <sched.h>
#endif

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// f_i(w) = (w - i)^2 / 2 for i in [0, terms), split evenly over n replicas; one step at rate 1 from 0.
double minimum_after_one_step(int terms, int n, std::vector<int>& visited) {
  Model<> model;
  SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = n}};
  visited.assign(at(terms), 0);
  trainer.run([&](auto& replica) {
    const int share = terms / n;
    double sum = 0;
    for (int i = replica.index() * share; i < (replica.index() + 1) * share; ++i) {
      sum += replica.value(model.w)[0] - i;
      ++visited[at(i)];
    }
    step(replica, model.w, sum / share);
  });
  return model.value();
}

}  // namespace

TEST_CASE("BR-131: all of the data is visited, on any number of cores", "[reports][BR-131]") {
  const Watchdog watchdog;
  const auto check = [](const std::string& cores) {
    for (const auto& [terms, n] : {std::pair{10, 2}, {10, 1}, {10, 5}, {10, 10}, {96, 32}}) {
      INFO(terms << " terms, " << n << " replicas, " << cores);
      std::vector<int> visited;
      CHECK(minimum_after_one_step(terms, n, visited) == Approx((terms - 1) / 2.0).epsilon(1e-14));
      CHECK(visited == std::vector<int>(at(terms), 1));
    }
  };
  check("all cores");
#if defined(__linux__)
  cpu_set_t all{};
  REQUIRE(::sched_getaffinity(0, sizeof(all), &all) == 0);
  cpu_set_t one{};
  std::size_t first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  CPU_SET(first, &one);
  REQUIRE(::sched_setaffinity(0, sizeof(one), &one) == 0);
  check("one core");
  CHECK(::sched_setaffinity(0, sizeof(all), &all) == 0);
#endif
}
