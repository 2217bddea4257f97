// SPDX-License-Identifier: MIT
// The hot paths under callgrind: check.py counts instructions, reads and writes between the marks. One
// thread, so the counts are the same in every run.
#include "../support/sync_step.hpp"
#include <lockstep/gradient_aggregation.hpp>
#include <lockstep/optimizers/fused_update.hpp>
#include <lockstep/optimizers/local.hpp>

#include <string>
#include <valgrind/callgrind.h>
#include <vector>

namespace {

using namespace lockstep;
using namespace lockstep::bench;

/// Fills the simulated caches with something else.
void empty_caches() {
  static std::vector<char> other(4 << 20);
  for (char& byte : other) ++byte;
  clobber();
}

/// Counts what `f` does, under a name.
template <class F>
void count(const std::string& name, F&& f) {
  empty_caches();
  CALLGRIND_ZERO_STATS;
  CALLGRIND_TOGGLE_COLLECT;
  f();
  CALLGRIND_TOGGLE_COLLECT;
  CALLGRIND_DUMP_STATS_AT(name.c_str());
}

template <class Replica>
void step(const TestVariables& variables, Replica& replica) {
  variables.mark_gradients(replica);
  replica.apply_gradients();
}

constexpr int k_calls = 100;

template <class R>
void count_small_step(const std::string& name) {
  TestVariables variables(16, 1);
  SyncReplicas<R, InProcess> trainer(R{}, variables.set(), {});
  auto replica = trainer.join();
  variables.write_gradients(replica, 0);
  replica.apply_gradients();
  count(name, [&] {
    for (int i = 0; i < k_calls; ++i) step(variables, replica);
  });
}

template <class Trainer>
void count_local(const std::string& name, TestVariables& variables, Trainer trainer, int warm_up) {
  variables.write_gradients(trainer, 0);
  trainer.apply_gradients();
  for (int i = 0; i < warm_up; ++i) step(variables, trainer);
  count(name, [&] { step(variables, trainer); });
}

/// One step of two replicas, on one thread: the first contributes and does not wait, the second carries the
/// update out.
template <class R>
void count_sync_step(const std::string& name, Index elements) {
  TestVariables variables(elements, 1);
  SyncReplicas<R, InProcess> trainer(R{}, variables.set(), {.replicas_to_aggregate = 2});
  auto first = trainer.join(), second = trainer.join();
  const auto both = [&](auto&& contribute) {
    contribute(first, 0);
    try {
      first.apply_gradients({.timeout = std::chrono::milliseconds(1)});
    } catch (const TimeoutError&) {
    }
    contribute(second, 1);
    second.apply_gradients();
    first.resume();
  };
  both([&](auto& replica, int seed) { variables.write_gradients(replica, seed); });
  variables.template expect_updated<R>(2, 1, name);
  count(name, [&] { both([&](auto& replica, int) { variables.mark_gradients(replica); }); });
}

constexpr Index k_small = 32'768, k_large = 98'304;

}  // namespace

int main() {
  count_small_step<Sgd>("step/n1/p16/sgd");
  count_small_step<Adam>("step/n1/p16/adam");
  for (const Index elements : {k_small, k_large}) {
    const std::string size = "/" + std::to_string(elements);
    count_sync_step<Sgd>("sync/n2/sgd" + size, elements);
    count_sync_step<Adam>("sync/n2/adam" + size, elements);
    TestVariables open(elements, 1), sgd(elements, 1), adam(elements, 1);
    count_local("window/accumulate" + size, open,
                Local<GradientAggregation<Sgd>>({Sgd{}, {.grad_steps = 1000}}, open.set()), 2);
    count_local("window/last/sgd" + size, sgd,
                Local<GradientAggregation<Sgd>>({Sgd{}, {.grad_steps = 2}}, sgd.set()), 2);
    count_local("window/last/adam" + size, adam,
                Local<GradientAggregation<Adam>>({Adam{}, {.grad_steps = 2}}, adam.set()), 2);
  }
}
