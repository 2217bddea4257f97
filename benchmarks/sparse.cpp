// SPDX-License-Identifier: MIT
// Four replicas with gradients for 10,000 rows of 64 out of 1,000,000: merge and update, against merges by
// map and a sweep over the dense table.
#include "support/floors.hpp"
#include "support/program.hpp"
#include "support/sync_step.hpp"

#include <barrier>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
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

/// One replica's gradient: distinct rows in no order, as a batch gives them.
struct RowGradient {
  std::vector<std::int64_t> indices;
  Table rows;
};

/// Another batch each step, for the rows that a real model touches are never in the cache.
class Batches {
 public:
  Batches() {
    std::mt19937 random(7);
    for (auto& batch : batches_)
      for (int replica = 0; replica < k_replicas; ++replica) {
        RowGradient gradient{{}, Table(k_rows, k_width)};
        std::vector<bool> taken(k_table);
        while (gradient.indices.size() < k_rows) {
          const auto row = static_cast<std::size_t>(random()) % k_table;
          if (taken[row]) continue;
          taken[row] = true;
          gradient.indices.push_back(static_cast<std::int64_t>(row));
        }
        fill_with_pattern(gradient.rows.data(), k_rows * k_width, replica);
        batch.push_back(std::move(gradient));
      }
  }
  const std::vector<RowGradient>& operator[](std::int64_t step) const {
    return batches_[static_cast<std::size_t>(step) % k_batches];
  }

 private:
  std::array<std::vector<RowGradient>, k_batches> batches_;
};

float initial(Index i) { return pattern(i, k_values_seed); }
constexpr float k_rate = 0.01F;

/// The table after the first batch, element by element in double.
void expect_first_batch(const float* values, const Batches& batches, const std::string& who) {
  std::map<Index, std::vector<double>> sums;
  for (const RowGradient& gradient : batches[0])
    for (std::size_t i = 0; i < gradient.indices.size(); ++i) {
      auto& sum = sums.try_emplace(gradient.indices[i], k_width).first->second;
      for (Index j = 0; j < k_width; ++j)
        sum[static_cast<std::size_t>(j)] += static_cast<double>(gradient.rows(static_cast<Index>(i), j));
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

class Lockstep {
 public:
  explicit Lockstep(const Batches& batches)
      : batches_(batches),
        table_(variables_.add("table", Table(Table::NullaryExpr(k_table, k_width,
                                                                [](Eigen::Index row, Eigen::Index column) {
                                                                  return initial(row * k_width + column);
                                                                })))),
        trainer_(Sgd{}, variables_, {.replicas_to_aggregate = k_replicas}) {
    trainer_.run([&](auto& replica) { step(replica, 0); });
    expect_first_batch(variables_.value(table_).data(), batches, "lockstep");
  }
  double operator()(int steps) {
    Stopwatches watches(k_replicas);
    trainer_.run([&](auto& replica) {
      step(replica, 0);
      watches.start(replica.index());
      for (int i = 1; i <= steps; ++i) step(replica, i);
      watches.stop(replica.index());
    });
    return watches.seconds() / steps;
  }

 private:
  template <class Replica>
  void step(Replica& replica, int i) {
    const RowGradient& mine = batches_[i][static_cast<std::size_t>(replica.index())];
    replica.set_rows(table_, mine.indices, mine.rows);
    replica.apply_gradients();
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
    for (const RowGradient& gradient : batches_[i])
      for (std::size_t k = 0; k < gradient.indices.size(); ++k) {
        const ConstRow row(gradient.rows.data() + static_cast<Index>(k) * k_width);
        const auto [entry, is_new] = where.try_emplace(gradient.indices[k], used);
        Row sum(sums_.data() + entry->second);
        if (is_new) {
          sum = row;
          used += k_width;
        } else {
          sum += row;
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
/// threads copy the gradients to where the step keeps them, for their owners go on with other ones, and then
/// update row by row. Memory is of the same kind as in a step, and what is written is fetched as far ahead.
class RowFloor {
 public:
  explicit RowFloor(const Batches& batches) : batches_(batches), values_(k_table * k_width) {
    for (Index i = 0; i < k_table * k_width; ++i) values_.data()[i] = initial(i);
    for (int step = 0; step < k_batches; ++step) {
      std::map<Index, std::vector<Index>> sources;
      for (int replica = 0; replica < k_replicas; ++replica)
        for (std::size_t k = 0; k < k_rows; ++k)
          sources[batches[step][static_cast<std::size_t>(replica)].indices[k]].push_back(
              replica * k_rows + static_cast<Index>(k));
      Order& order = orders_.emplace_back();
      order.place.resize(k_replicas * k_rows);
      Index used = 0;
      for (const auto& [row, contributions] : sources) {
        order.rows.push_back({row * k_width, used * k_width, static_cast<Index>(contributions.size())});
        for (const Index contribution : contributions)
          order.place[static_cast<std::size_t>(contribution)] = k_width * used++;
      }
    }
    (*this)(1, 0);
    expect_first_batch(values_.data(), batches, "floor");
  }
  double operator()(int steps, int first = 1) {
    std::barrier meeting(2);
    return seconds_in_parallel(2,
                               [&](int thread) {
                                 for (int i = first; i < first + steps; ++i) {
                                   copy(i, thread);
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
    for (std::size_t replica = 2 * static_cast<std::size_t>(thread), end = replica + 2; replica < end;
         ++replica) {
      const float* rows = batches_[step][replica].rows.data();
      for (std::size_t k = 0; k < k_rows; ++k) {
        const std::size_t at = replica * k_rows + k;
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
constexpr double k_bytes =
    sizeof(float) * static_cast<double>(k_width * k_rows) * k_replicas * 5;  // few rows coincide

void compare() {
  Lockstep lockstep(batches());
  HashMerge hash(batches());
  TreeMerge tree(batches());
  DenseSweep dense;
  RowFloor floor(batches());
  Interleaved rounds;
  rounds.add("lockstep", steps_of(lockstep, 8));
  rounds.add("unordered_map", steps_of(hash, 4));
  rounds.add("map", steps_of(tree, 4));
  rounds.add("dense sweep", steps_of(dense, 1));
  rounds.add("floor", steps_of(floor, 8));
  rounds.run(21);
  report("sparse/unordered_map", rounds.ratio("unordered_map", "lockstep"), "x", rounds);
  report("sparse/map", rounds.ratio("map", "lockstep"), "x");
  report("sparse/floor", rounds.ratio("lockstep", "floor"), "x the time");
  report("sparse/unordered_map_of_floor", rounds.ratio("unordered_map", "floor"), "x");
  report("sparse/dense_sweep", rounds.ratio("dense sweep", "lockstep"), "x");
}

void register_all() {
  const std::string arguments = "/rows:10000/replicas:4";
  register_workload("sync_replicas/sparse/in_process/f32" + arguments, k_bytes, 8,
                    [] { return std::make_unique<Lockstep>(batches()); });
  register_workload("unordered_map/sparse/one_thread/f32" + arguments, k_bytes, 4,
                    [] { return std::make_unique<HashMerge>(batches()); });
  register_workload("floor/sparse/two_threads/f32" + arguments, k_bytes, 8,
                    [] { return std::make_unique<RowFloor>(batches()); });
  register_workload("map/sparse/one_thread/f32" + arguments, k_bytes, 4,
                    [] { return std::make_unique<TreeMerge>(batches()); });
  register_workload("dense/sparse/two_threads/f32" + arguments, k_bytes, 1,
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
