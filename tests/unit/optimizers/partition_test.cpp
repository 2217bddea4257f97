// SPDX-License-Identifier: MIT
// Threads that share the passes of one optimizer.
#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/threads.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/optimizers/local.hpp>
#include <lockstep/optimizers/optimizers.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <set>
#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Values and slots after some windows of dense, absent and row-sparse gradients.
template <class R>
std::vector<float> trained(const R& rule, int partitions, const char* slot, bool always_dense) {
  Variables<float> variables;
  const auto wide = variables.add("wide", Table(Table::Ones(5, 130)));
  const auto tall = variables.add("tall", Table(Table::Ones(4099, 3)));
  const auto bias = variables.add("bias", Eigen::VectorXf::Ones(37));
  const std::vector<float> start(2 * 7 * 5, 1);
  const auto cube = variables.add("cube", NdSpan<const float>(start, {2, 7, 5}));
  Local local{GradientAggregation<R>{rule, {.grad_steps = 3, .num_partitions = partitions}}, variables,
              LocalOptions{.clip_norm = 2}};
  Numbers numbers(5);
  const auto fill = [&](float* data, Index size) {
    for (Index i = 0; i < size; ++i) data[i] = static_cast<float>(numbers.real());
  };
  for (int t = 0; t < 9; ++t) {
    fill(local.gradient(wide).data(), wide.shape[0] * wide.shape[1]);
    if (always_dense || t % 2 == 0) fill(local.gradient(bias).data(), 37);
    if (always_dense || t % 4 == 0) {
      fill(local.gradient(tall).data(), 4099 * 3);
    } else {
      Table rows(4, 3);
      fill(rows.data(), 12);
      local.set_rows(tall, std::vector{0, 1024 * (t % 4), 2048 + t, 4098}, rows);
    }
    if (always_dense || t % 3 != 0) fill(local.gradient(cube).data(), 70);
    local.apply_gradients({.weight = 1.0 + t % 2});
  }
  std::vector<float> bits(variables.flat().begin(), variables.flat().end());
  for (const auto& handle : {wide, tall}) {
    const auto state = local.slot(slot, handle);
    bits.insert(bits.end(), state.data(), state.data() + state.size());
  }
  return bits;
}

template <class R>
void check_partitions(const R& rule, const char* slot) {
  for (const bool always_dense : {true, false}) {
    const auto alone = trained(rule, 1, slot, always_dense);
    for (int partitions = 2; partitions <= 4; ++partitions) {
      INFO(partitions << " partitions, " << (always_dense ? "all dense" : "mixed"));
      const auto shared = trained(rule, partitions, slot, always_dense);
      CHECK(alone.size() == shared.size());
      CHECK(std::memcmp(alone.data(), shared.data(), alone.size() * sizeof(float)) == 0);
    }
  }
}

}  // namespace

TEST_CASE("partition: any number of threads gives the same bits", "[optimizers][partition][thread]") {
  const Watchdog watchdog;
  check_partitions(Adam{}, "m");
  check_partitions(Momentum{}, "momentum");
  check_partitions(MovingAverage{Adam{.lazy_rows = true}, 0.9}, "average");
  check_partitions(Lamb{}, "v");
}

TEST_CASE("partition: the parts of a team cover each element once", "[optimizers][partition]") {
  const Layout layout = layout_of<float>({{5, 130}, {130, 5}, {4, 4}, {37}, {}, {2, 7, 5}, {1, 1, 3, 4}});
  for (int parts = 1; parts <= 4; ++parts) {
    detail::PartitionTeam team(layout, parts);
    std::vector<int> covered(static_cast<std::size_t>(layout.size()), 0);
    std::vector<Index> sizes;
    for (int part = 0; part < parts; ++part) {
      sizes.push_back(0);
      for (const auto& [begin, end] : team.ranges(static_cast<std::size_t>(part)))
        for (Index i = begin; i < end; ++i) {
          ++covered[static_cast<std::size_t>(i)];
          ++sizes.back();
        }
      CHECK(sizes.back() > 0);
    }
    bool once = true;
    for (const VariableInfo& info : layout.infos())
      for (Index i = info.offset; i < info.offset + info.size; ++i)
        once = once && covered[static_cast<std::size_t>(i)] == 1;
    CHECK(once);
    // Balanced but for what stays whole: the vector, the scalar and the array of four dimensions.
    CHECK(sizes.front() - sizes.back() <= 37 + 1 + 12 + 5 * 3 + 10);
  }
}

TEST_CASE("partition: a team runs every part in each pass, in parallel with nothing left over",
          "[optimizers][partition][thread]") {
  const Watchdog watchdog;
  const Layout layout = layout_of<float>({{64, 3}});
  for (int parts = 1; parts <= 4; ++parts) {
    detail::PartitionTeam team(layout, parts);
    std::vector<int> visits(64 * 3, 0);  // plain: the ranges are disjoint and passes do not overlap
    for (int pass = 1; pass <= 200; ++pass) {
      team.run([&](Index begin, Index end) {
        for (Index i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
      });
      CHECK(visits[static_cast<std::size_t>(pass) % visits.size()] == pass);
    }
    bool all = true;
    for (const int count : visits) all = all && count == 200;
    CHECK(all);
  }
}

TEST_CASE("partition: a team that never ran ends", "[optimizers][partition][thread]") {
  const Watchdog watchdog;
  const Layout layout = layout_of<float>({{64, 3}});
  for (int i = 0; i < 50; ++i) detail::PartitionTeam(layout, 4);
}

TEST_CASE("partition: a team ends that cannot have all its threads", "[optimizers][partition][thread]") {
  const Watchdog watchdog;
  const Layout layout = layout_of<float>({{64, 3}});
  if (!are_allocations_counted()) return;
  std::set<std::string> texts;
  for (std::uint64_t n = 1;; ++n) {  // each allocation of the constructor fails once
    const FailingAllocation fails(n);
    try {
      const detail::PartitionTeam team(layout, 4);
      break;
    } catch (const SystemError& error) {
      texts.insert(error.what());
    } catch (const std::bad_alloc&) {
    }
  }
  const auto is_named = [&](const char* thread) {
    return std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
      return text.starts_with(std::string("num_partitions: cannot start thread ") + thread);
    });
  };
  CHECK(is_named("1 of 3: "));
  CHECK(is_named("2 of 3: "));
  CHECK(is_named("3 of 3: "));
}

TEST_CASE("partition: an axis that is too short is refused with its shape", "[optimizers][partition]") {
  Variables<float> variables;
  variables.add("w", Table(Table::Ones(3, 2)));
  const auto bind = [&](int partitions) {
    Local{GradientAggregation<Sgd>{Sgd{}, {.grad_steps = 2, .num_partitions = partitions}}, variables};
  };
  CHECK_NOTHROW(bind(3));
  CHECK_THROWS_WITH(bind(4), ContainsSubstring("(3, 2)") && ContainsSubstring("4"));
  CHECK_THROWS_AS(bind(0), InvalidArgument);
  CHECK_THROWS_AS(bind(-1), InvalidArgument);
  CHECK_NOTHROW(bind(2));
}

TEST_CASE("partition: a steady step allocates nothing", "[optimizers][partition][thread]") {
  Variables<float> variables;
  const auto w = variables.add("w", Table(Table::Ones(64, 100)));
  Local local{GradientAggregation<Adam>{Adam{}, {.grad_steps = 2, .num_partitions = 3}}, variables};
  std::uint64_t before = 0;
  for (int t = 0; t < 12; ++t) {
    if (t == 4) before = allocations();
    local.gradient(w).setConstant(1);
    local.apply_gradients();
  }
  CHECK(allocations() - before == 0);
}
