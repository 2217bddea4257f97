// SPDX-License-Identifier: MIT
// Four replicas with gradients for 10,000 rows of 64 out of 1,000,000: merge and update, against merges by
// map and a sweep over the dense table.
#include "support/floors.hpp"
#include "support/program.hpp"
#include "support/sync_step.hpp"

#include <array>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace {

using namespace lockstep;
using namespace lockstep::bench;

constexpr Index k_table = 1'000'000, k_width = 64, k_rows = 10'000;
constexpr int k_replicas = 4, k_batches = 4;

using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Which rows the gradients of each step belong to: distinct ones in no order, others in each batch, for the
/// rows that a real model touches are never in the cache. The gradients themselves stay, as in the benchmarks
/// of dense steps: who computes them has just written them.
class Batches {
 public:
  using Indices = std::vector<std::int64_t>;

  Batches() {
    std::mt19937 random(7);
    for (auto& batch : indices_)
      for (Indices& indices : batch) {
        std::vector<bool> taken(k_table);
        while (indices.size() < k_rows) {
          const auto row = static_cast<std::size_t>(random()) % k_table;
          if (taken[row]) continue;
          taken[row] = true;
          indices.push_back(static_cast<std::int64_t>(row));
        }
      }
    for (int replica = 0; replica < k_replicas; ++replica) {
      gradients_[static_cast<std::size_t>(replica)].resize(k_rows, k_width);
      fill_with_pattern(gradients_[static_cast<std::size_t>(replica)].data(), k_rows * k_width, replica);
    }
  }
  const Indices& indices(std::int64_t step, int replica) const {
    return indices_[static_cast<std::size_t>(step) % k_batches][static_cast<std::size_t>(replica)];
  }
  /// Row i is the gradient of row `indices(step, replica)[i]`.
  const Table& gradients(int replica) const { return gradients_[static_cast<std::size_t>(replica)]; }

 private:
  std::array<std::array<Indices, k_replicas>, k_batches> indices_;
  std::array<Table, k_replicas> gradients_;
};

float initial(Index i) { return pattern(i, k_values_seed); }
constexpr float k_rate = 0.01F;

/// The table after the first batch, element by element in double.
void expect_first_batch(const float* values, const Batches& batches, const std::string& who) {
  std::map<Index, std::vector<double>> sums;
  for (int replica = 0; replica < k_replicas; ++replica)
    for (Index i = 0; i < k_rows; ++i) {
      const std::int64_t row = batches.indices(0, replica)[static_cast<std::size_t>(i)];
      auto& sum = sums.try_emplace(row, k_width).first->second;
      for (Index j = 0; j < k_width; ++j)
        sum[static_cast<std::size_t>(j)] += static_cast<double>(batches.gradients(replica)(i, j));
    }
  for (Index row = 0; row < k_table; row += 3) {
    const auto found = sums.find(row);
    for (Index j = 0; j < k_width; j += 9) {
      const double change = found == sums.end() ? 0 : found->second[static_cast<std::size_t>(j)] / k_replicas;
      expect_close(static_cast<double>(values[row * k_width + j]),
                   static_cast<double>(initial(row * k_width + j)) - 0.01 * change,
                   who + ", row " + std::to_string(row));
    }
  }
}

/// How a replica gives its gradients.
enum class Given {
  in_place,  ///< they have been written where they stay, as dense ones are
  copied,    ///< they are in memory of its own
};

template <Given given>
class Lockstep {
 public:
  explicit Lockstep(const Batches& batches)
      : batches_(batches),
        table_(variables_.add("table", Table(Table::NullaryExpr(k_table, k_width,
                                                                [](Eigen::Index row, Eigen::Index column) {
                                                                  return initial(row * k_width + column);
                                                                })))),
        trainer_(Sgd{}, variables_, {.replicas_to_aggregate = k_replicas}) {
    trainer_.run([&](auto& replica) { write_and_step(replica); });
    expect_first_batch(variables_.value(table_).data(), batches, "lockstep");
  }
  double operator()(int steps) {
    Stopwatches watches(k_replicas);
    trainer_.run([&](auto& replica) {
      write_and_step(replica);
      watches.start(replica.index());
      for (int i = 1; i <= steps; ++i) {
        if constexpr (given == Given::in_place)
          (void)replica.row_gradients(table_, batches_.indices(i, replica.index()));
        else
          set_rows(replica, i);
        replica.apply_gradients();
      }
      watches.stop(replica.index());
    });
    return watches.seconds() / steps;
  }

 private:
  template <class Replica>
  void write_and_step(Replica& replica) {
    if constexpr (given == Given::in_place) {
      const auto& indices = batches_.indices(0, replica.index());
      const auto rows = replica.row_gradients(table_, indices);
      for (Index i = 0; i < k_rows; ++i)
        rows[indices[static_cast<std::size_t>(i)]] = batches_.gradients(replica.index()).row(i);
    } else {
      set_rows(replica, 0);
    }
    replica.apply_gradients();
  }
  template <class Replica>
  void set_rows(Replica& replica, int step) {
    replica.set_rows(table_, batches_.indices(step, replica.index()), batches_.gradients(replica.index()));
  }
  const Batches& batches_;
  Variables<float> variables_;
  Handle<Table, float> table_;
  SyncReplicas<Sgd, InProcess> trainer_;
};

/// The textbook: a map from row to where its sum is, one gradient after the other, then the rows of the map
/// are updated. Its memory is of the same kind as in a step, and kept from step to step.
template <class Map>
class MapMerge {
 public:
  explicit MapMerge(const Batches& batches)
      : batches_(batches), values_(k_table * k_width), sums_(k_rows * k_replicas * k_width) {
    for (Index i = 0; i < k_table * k_width; ++i) values_.data()[i] = initial(i);
    step(0);
    expect_first_batch(values_.data(), batches, "map");
  }
  double operator()(int steps) {
    return seconds_of([&] {
             for (int i = 1; i <= steps; ++i) step(i);
           }) /
           steps;
  }

 private:
  using Row = Eigen::Map<Eigen::Array<float, k_width, 1>>;
  using ConstRow = Eigen::Map<const Eigen::Array<float, k_width, 1>>;
  void step(int i) {
    Map where;
    if constexpr (requires { where.reserve(1); }) where.reserve(k_rows * k_replicas);
    Index used = 0;
    for (int replica = 0; replica < k_replicas; ++replica) {
      const float* next = batches_.gradients(replica).data();
      for (const std::int64_t index : batches_.indices(i, replica)) {
        const ConstRow row(std::exchange(next, next + k_width));
        const auto [entry, is_new] = where.try_emplace(index, used);
        Row sum(sums_.data() + entry->second);
        if (is_new) {
          sum = row;
          used += k_width;
        } else {
          sum += row;
        }
      }
    }
    for (const auto& [index, sum] : where)
      Row(values_.data() + index * k_width) -= (k_rate / k_replicas) * Row(sums_.data() + sum);
  }

  const Batches& batches_;
  Floats values_, sums_;
};

/// Every replica has the whole table as its gradient, and two threads sweep over it. The gradients are there
/// already: writing them would only make it slower.
class DenseSweep {
 public:
  DenseSweep() {
    for (int k = 0; k < k_replicas; ++k)
      gradients_.push_back(std::make_unique<Floats>(k_table * k_width, 0.0F));
  }
  double operator()(int steps) {
    return seconds_in_parallel(2,
                               [&](int thread) {
                                 const Index half = k_table * k_width / 2;
                                 const auto part = [&](Floats& array) {
                                   return Eigen::Map<Eigen::ArrayXf>(array.data() + thread * half, half);
                                 };
                                 const auto gradient = [&](std::size_t k) { return part(*gradients_[k]); };
                                 for (int i = 0; i < steps; ++i)
                                   part(values_) -= (k_rate / k_replicas) *
                                                    (gradient(0) + gradient(1) + gradient(2) + gradient(3));
                               }) /
           steps;
  }

 private:
  Floats values_{k_table * k_width};
  std::vector<std::unique_ptr<Floats>> gradients_;
};

/// What any merge has to move, with nothing to find out: the order of the rows is known beforehand. Two
/// threads copy the gradients to where the step keeps them, if they are not there, and then update row by
/// row. Memory is of the same kind as in a step, and what is written is fetched as far ahead.
template <Given given>
class RowFloor {
 public:
  explicit RowFloor(const Batches& batches) : batches_(batches), values_(k_table * k_width) {
    for (Index i = 0; i < k_table * k_width; ++i) values_.data()[i] = initial(i);
    for (int step = 0; step < k_batches; ++step) {
      std::map<Index, std::vector<Index>> sources;
      for (int replica = 0; replica < k_replicas; ++replica)
        for (std::size_t k = 0; k < k_rows; ++k)
          sources[batches.indices(step, replica)[k]].push_back(replica * k_rows + static_cast<Index>(k));
      Order& order = orders_.emplace_back();
      order.place.resize(k_replicas * k_rows);
      Index used = 0;
      for (const auto& [row, contributions] : sources) {
        order.rows.push_back({row * k_width, used * k_width, static_cast<Index>(contributions.size())});
        for (const Index contribution : contributions)
          order.place[static_cast<std::size_t>(contribution)] = k_width * used++;
      }
    }
    for (const int thread : {0, 1}) copy(0, thread);
    for (const int thread : {0, 1}) update(0, thread);
    expect_first_batch(values_.data(), batches, "floor");
  }
  double operator()(int steps) {
    std::barrier meeting(2);
    return seconds_in_parallel(2,
                               [&](int thread) {
                                 for (int i = 1; i <= steps; ++i) {
                                   if constexpr (given == Given::copied) copy(i, thread);
                                   meeting.arrive_and_wait();
                                   update(i, thread);
                                   meeting.arrive_and_wait();
                                 }
                               }) /
           steps;
  }

 private:
  struct MergedRow {
    Index begin, first, count;  // first element in the table and of its contributions, and how many there are
  };
  struct Order {
    std::vector<Index> place;  // of the first element of each row of each replica
    std::vector<MergedRow> rows;
  };
  using Row = Eigen::Map<Eigen::Array<float, k_width, 1>>;
  using ConstRow = Eigen::Map<const Eigen::Array<float, k_width, 1>>;
  static constexpr std::size_t k_ahead = 16;

  /// Inlined, because g++ takes a function that only fetches for one without effect, and drops its calls.
  LOCKSTEP_ALWAYS_INLINE static void fetch(const float* row) {
    for (Index i = 0; i < k_width; i += 16) detail::fetch_for_writing(row + i);
  }
  void copy(int step, int thread) {
    const auto& place = orders_[static_cast<std::size_t>(step) % k_batches].place;
    for (int replica = 2 * thread, end = replica + 2; replica < end; ++replica) {
      const float* rows = batches_.gradients(replica).data();
      for (std::size_t k = 0; k < k_rows; ++k) {
        const std::size_t at = static_cast<std::size_t>(replica) * k_rows + k;
        if (k + k_ahead < k_rows) fetch(packed_.data() + place[at + k_ahead]);
        Row(packed_.data() + place[at]) = ConstRow(rows + static_cast<Index>(k) * k_width);
      }
    }
  }
  void update(int step, int thread) {
    const auto& rows = orders_[static_cast<std::size_t>(step) % k_batches].rows;
    const std::size_t half = rows.size() / 2, end = thread == 0 ? half : rows.size();
    for (std::size_t k = thread == 0 ? 0 : half; k < end; ++k) {
      if (k + k_ahead < end) fetch(values_.data() + rows[k + k_ahead].begin);
      const float* sources = packed_.data() + rows[k].first;
      Row values(values_.data() + rows[k].begin);
      if (rows[k].count == 1) {
        values -= (k_rate / k_replicas) * ConstRow(sources);
      } else {
        Eigen::Array<float, k_width, 1> sum = ConstRow(sources);
        for (Index i = 1; i < rows[k].count; ++i) sum += ConstRow(sources + i * k_width);
        values -= (k_rate / k_replicas) * sum;
      }
    }
  }

  const Batches& batches_;
  Floats values_;
  Floats packed_{k_table * k_width / 4};  // as many pages as a step has: more than the rows need
  std::vector<Order> orders_;
};

using HashMerge = MapMerge<std::unordered_map<Index, Index>>;
using TreeMerge = MapMerge<std::map<Index, Index>>;

const Batches& batches() {
  static const Batches all;
  return all;
}
/// @param touches reads and writes of each row of a gradient; few rows coincide
constexpr double bytes(int touches) {
  return sizeof(float) * static_cast<double>(k_width * k_rows) * k_replicas * touches;
}

void compare() {
  Lockstep<Given::in_place> in_place(batches());
  Lockstep<Given::copied> copied(batches());
  HashMerge hash(batches());
  TreeMerge tree(batches());
  DenseSweep dense;
  RowFloor<Given::in_place> floor(batches());
  RowFloor<Given::copied> copying_floor(batches());
  Interleaved rounds;
  rounds.add("in place", steps_of(in_place, 8));
  rounds.add("copied", steps_of(copied, 8));
  rounds.add("unordered_map", steps_of(hash, 4));
  rounds.add("map", steps_of(tree, 4));
  rounds.add("dense sweep", steps_of(dense, 1));
  rounds.add("floor", steps_of(floor, 8));
  rounds.add("copying floor", steps_of(copying_floor, 8));
  rounds.run(21);
  report("sparse/unordered_map", rounds.ratio("unordered_map", "in place"), "x", rounds);
  report("sparse/map", rounds.ratio("map", "in place"), "x");
  report("sparse/floor", rounds.ratio("in place", "floor"), "x the time");
  report("sparse/unordered_map_of_floor", rounds.ratio("unordered_map", "floor"), "x");
  report("sparse/dense_sweep", rounds.ratio("dense sweep", "in place"), "x");
  report("sparse/copied/unordered_map", rounds.ratio("unordered_map", "copied"), "x");
  report("sparse/copied/map", rounds.ratio("map", "copied"), "x");
  report("sparse/copied/floor", rounds.ratio("copied", "copying floor"), "x the time");
}

void register_all() {
  const std::string arguments = "/rows:10000/replicas:4";
  register_workload("sync_replicas/sparse/in_process/f32" + arguments, bytes(3), 8,
                    [] { return std::make_unique<Lockstep<Given::in_place>>(batches()); });
  register_workload("sync_replicas/sparse_copied/in_process/f32" + arguments, bytes(5), 8,
                    [] { return std::make_unique<Lockstep<Given::copied>>(batches()); });
  register_workload("unordered_map/sparse/one_thread/f32" + arguments, bytes(3), 4,
                    [] { return std::make_unique<HashMerge>(batches()); });
  register_workload("floor/sparse/two_threads/f32" + arguments, bytes(3), 8,
                    [] { return std::make_unique<RowFloor<Given::in_place>>(batches()); });
  register_workload("floor/sparse_copied/two_threads/f32" + arguments, bytes(5), 8,
                    [] { return std::make_unique<RowFloor<Given::copied>>(batches()); });
  register_workload("map/sparse/one_thread/f32" + arguments, bytes(3), 4,
                    [] { return std::make_unique<TreeMerge>(batches()); });
  register_workload("dense/sparse/two_threads/f32" + arguments, bytes(3), 1,
                    [] { return std::make_unique<DenseSweep>(); });
}

/// Memory that is freed stays in the process: the maps get theirs back each step, and would mostly wait for
/// new pages.
void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  return run_program(argc, argv, compare, register_all);
}
