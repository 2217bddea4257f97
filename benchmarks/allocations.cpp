// SPDX-License-Identifier: MIT
// Counts the heap allocations of steady steps, on every replica's own thread: there must be none. Counts
// calls of malloc and its kin, which operator new and Eigen both end in, by taking their place in front of
// glibc's.
#include "support/report.hpp"
#include "support/sync_step.hpp"
#include <lockstep/gradient_aggregation.hpp>
#include <lockstep/optimizers/local.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

namespace {
thread_local std::uint64_t allocations = 0;
}

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  ++allocations;
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  ++allocations;
  return __libc_realloc(memory, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ++allocations;
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  ++allocations;
  *memory = __libc_memalign(alignment, bytes);
  return *memory != nullptr ? 0 : ENOMEM;
}
}

namespace {

using namespace lockstep;
using namespace lockstep::bench;

constexpr int k_warm_up = 8, k_steps = 64;

/// Most allocations of one replica in `k_steps` steps.
template <class Trainer, class Step>
double allocations_of(Trainer& trainer, Step step) {
  std::atomic<std::uint64_t> most{0};
  trainer.run([&](auto& replica) {
    for (int i = 0; i < k_warm_up; ++i) step(replica);
    const std::uint64_t before = allocations;
    for (int i = 0; i < k_steps; ++i) step(replica);
    const std::uint64_t mine = allocations - before;
    for (std::uint64_t seen = most; seen < mine && !most.compare_exchange_weak(seen, mine);) {
    }
  });
  return static_cast<double>(most.load());
}

double worst = 0;
template <class Trainer, class Step>
void count(const std::string& name, Trainer&& trainer, Step step) {
  const double counted = allocations_of(trainer, step);
  worst = std::max(worst, counted);
  report("allocations/" + name, counted / k_steps, "per step");
}

template <class Make>
void count_dense(const std::string& name, Make make) {
  TestVariables variables(100'000, 10);
  count(name, make(variables.set()), [&](auto& replica) {
    variables.mark_gradients(replica);
    (void)replica.gradients();  // the same at once
    replica.apply_gradients();
  });
}

using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// @param set gives `replica` the rows `indices` of the variable `table` as gradients: `rows`
template <class Set>
void count_rows(const std::string& name, Set set) {
  Variables<float> variables;
  const auto table = variables.add("table", Table(Table::Zero(10'000, 16)));
  std::vector<int> indices;
  for (int i = 0; i < 500; ++i) indices.push_back(i * 7919 % 10'000);
  const Table rows = Table::Ones(500, 16);
  const auto step = [&](auto& replica) {
    set(replica, table, indices, rows);
    replica.apply_gradients();
  };
  count("rows/" + name,
        SyncReplicas<Adam, InProcess>(Adam{.lazy_rows = true}, variables, {.replicas_to_aggregate = 2}),
        step);
}

}  // namespace

int main() {
  count_dense("local", [](auto& variables) { return Local<Sgd>(Sgd{}, variables); });
  count_dense("window", [](auto& variables) {
    return Local<GradientAggregation<Adam>>({Adam{}, {.grad_steps = 4}}, variables);
  });
  for (const int replicas : {1, 2, 4})
    count_dense("sync/replicas:" + std::to_string(replicas), [&](auto& variables) {
      return SyncReplicas<Adam, InProcess>(Adam{}, variables, {.replicas_to_aggregate = replicas});
    });
  count_dense("sync_clipped", [](auto& variables) {
    return SyncReplicas<Adam, InProcess>(Adam{}, variables, {.replicas_to_aggregate = 2, .clip_norm = 1});
  });
  count_dense("nested", [](auto& variables) {
    return GradientAggregation<SyncReplicas<Adam, InProcess>>{
        {Adam{}, variables, {.replicas_to_aggregate = 2}}, {.grad_steps = 2}};
  });
  count_rows("matrix", [](auto& replica, const auto& table, const auto& indices, const Table& rows) {
    replica.set_rows(table, indices, rows);
  });
  count_rows("map", [](auto& replica, const auto& table, const auto& indices, const Table& rows) {
    replica.set_rows(table, indices, Eigen::Map<const Table>(rows.data(), rows.rows(), rows.cols()));
  });
  count_rows("in_place", [](auto& replica, const auto& table, const auto& indices, const Table& rows) {
    const auto gradients = replica.row_gradients(table, indices);
    for (std::size_t i = 0; i < indices.size(); ++i) gradients[indices[i]] = rows.row(static_cast<Index>(i));
  });
  report("allocations/worst", worst / k_steps, "per step");
}
