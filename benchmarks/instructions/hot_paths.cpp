// SPDX-License-Identifier: MIT
// The hot paths under callgrind: check.py counts instructions, reads and writes between the marks. One
// thread, so the counts are the same in every run.
#include "../support/sync_step.hpp"
#include <lockstep/gradient_aggregation.hpp>
#include <lockstep/optimizers/fused_update.hpp>
#include <lockstep/optimizers/local.hpp>

#include <cstddef>
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

/// One step of several replicas, on one thread: all but the last contribute and do not wait, the last carries
/// the update out.
template <class Replica, class Contribute>
void step_of_all(std::vector<Replica>& replicas, Contribute&& contribute) {
  for (Replica& replica : replicas) {
    contribute(replica);
    try {
      replica.apply_gradients({.timeout = std::chrono::milliseconds(1)});
    } catch (const TimeoutError&) {
    }
  }
  for (auto replica = replicas.begin(); replica != replicas.end() - 1; ++replica) replica->resume();
}

template <class Trainer>
auto all_replicas_of(Trainer& trainer) {
  std::vector<typename Trainer::Replica> replicas;
  for (int place = 0; place < trainer.replicas(); ++place) replicas.push_back(trainer.join(place));
  return replicas;
}

template <class R>
void count_sync_step(const std::string& name, Index elements, int n) {
  TestVariables variables(elements, 1);
  SyncReplicas<R, InProcess> trainer(R{}, variables.set(), {.replicas_to_aggregate = n});
  auto replicas = all_replicas_of(trainer);
  step_of_all(replicas, [&](auto& replica) { variables.write_gradients(replica, replica.index()); });
  variables.template expect_updated<R>(n, 1, name);
  count(name, [&] { step_of_all(replicas, [&](auto& replica) { variables.mark_gradients(replica); }); });
}

/// Four replicas with `rows` rows of 16 each, all of them different.
void count_rows(const std::string& name, Index rows) {
  using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  constexpr Index table_rows = 65'536, width = 16;
  Variables<float> variables;
  const auto table = variables.add("table", Table(Table::Zero(table_rows, width)));
  SyncReplicas<Sgd, InProcess> trainer(Sgd{}, variables, {.replicas_to_aggregate = 4});
  auto replicas = all_replicas_of(trainer);
  std::vector<std::vector<Index>> indices(replicas.size());
  for (std::size_t k = 0; k < replicas.size(); ++k)
    for (Index i = 0; i < rows; ++i) indices[k].push_back(i * (table_rows / rows) + static_cast<Index>(k));
  const auto give = [&](auto& replica) {
    return replica.row_gradients(table, indices[static_cast<std::size_t>(replica.index())]);
  };
  step_of_all(replicas, [&](auto& replica) {
    const auto gradients = give(replica);
    for (const Index row : indices[static_cast<std::size_t>(replica.index())]) gradients[row].setOnes();
  });
  const double sum = variables.value(table).cast<double>().sum();
  expect_close(sum, -0.01 * static_cast<double>(rows * width), name);
  count(name, [&] { step_of_all(replicas, [&](auto& replica) { (void)give(replica); }); });
}

constexpr Index k_small = 32'768, k_large = 98'304;
constexpr Index k_few_rows = 1'024, k_many_rows = 4'096;

}  // namespace

int main() {
  count_small_step<Sgd>("step/n1/p16/sgd");
  count_small_step<Adam>("step/n1/p16/adam");
  for (const Index rows : {k_few_rows, k_many_rows}) count_rows("rows/n4/sgd/" + std::to_string(rows), rows);
  for (const Index elements : {k_small, k_large}) {
    const std::string size = "/" + std::to_string(elements);
    for (const int replicas : {2, 8}) {
      const std::string many = "sync/n" + std::to_string(replicas);
      count_sync_step<Sgd>(many + "/sgd" + size, elements, replicas);
      count_sync_step<Adam>(many + "/adam" + size, elements, replicas);
    }
    TestVariables open(elements, 1), sgd(elements, 1), adam(elements, 1);
    count_local("window/accumulate" + size, open,
                Local<GradientAggregation<Sgd>>({Sgd{}, {.grad_steps = 1000}}, open.set()), 2);
    count_local("window/last/sgd" + size, sgd,
                Local<GradientAggregation<Sgd>>({Sgd{}, {.grad_steps = 2}}, sgd.set()), 2);
    count_local("window/last/adam" + size, adam,
                Local<GradientAggregation<Adam>>({Adam{}, {.grad_steps = 2}}, adam.set()), 2);
  }
}
