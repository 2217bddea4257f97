// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/gradients/row_writer.hpp>
#include <lockstep/gradients/runs.hpp>
#include <lockstep/optimizers/adam.hpp>
#include <lockstep/optimizers/fused_update.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Variable and slots with something behind them that no update may change.
template <class T>
struct State {
  explicit State(Index size) {
    Numbers numbers(7);
    for (auto& array : arrays) {
      for (Index i = 0; i < size; ++i) array.push_back(static_cast<T>(numbers.real() * numbers.real()));
      array.insert(array.end(), 64, T(77));
    }
  }
  void update(const Sources<T, T>& sources, Index start, Index size) {
    const Adam rule;
    update_elements(rule, prepare_step(rule, StepInfo{}), arrays[0].data(),
                    std::array<T*, 2>{arrays[1].data(), arrays[2].data()}, sources, start, size);
  }
  std::array<std::vector<T>, 3> arrays;  // variable, m, v
};

/// Elements that have other bits, with what is behind the arrays.
template <class T>
Index other_elements(const State<T>& a, const State<T>& b) {
  Index others = 0;
  for (std::size_t array = 0; array < a.arrays.size(); ++array)
    for (std::size_t i = 0; i < a.arrays[array].size(); ++i)
      if (!same_bits(a.arrays[array][i], b.arrays[array][i])) ++others;
  return others;
}

}  // namespace

TEMPLATE_TEST_CASE("update_elements: a range has the bits of its elements one by one", "[optimizers]", float,
                   double) {
  using T = TestType;
  // Around a register, a cache line, and what is taken to be in a cache.
  for (const Index size : {1, 7, 15, 16, 17, 31, 63, 255, 257, 8193, 16'385, 20'011}) {
    const auto count = static_cast<std::size_t>(size);
    Numbers numbers(static_cast<std::uint64_t>(size));
    std::vector<T> first, second;
    for (Index i = 0; i < size; ++i) {
      first.push_back(static_cast<T>(numbers.real()));
      second.push_back(static_cast<T>(numbers.real()));
    }
    Sources<T, T> sources;
    sources.add(first.data(), 1);
    sources.add(second.data(), 1);
    sources.scale = T(1) / T(3);
    State<T> at_once(size), one_by_one(size);
    at_once.update(sources, 0, size);
    for (Index i = 0; i < size; ++i) one_by_one.update(sources, i, 1);
    INFO(size << " elements");
    CHECK(other_elements(at_once, one_by_one) == 0);
    for (const auto& array : at_once.arrays) CHECK(array[count] == T(77));
  }
}

TEST_CASE("update_elements: many sources are like one that has their sum", "[optimizers]") {
  constexpr Index size = 20'011;
  for (const int count : {8, 9, 16, 33}) {
    Numbers numbers(static_cast<std::uint64_t>(count));
    std::vector<std::vector<float>> gradients(static_cast<std::size_t>(count));
    std::vector<float> sum(size);
    Sources<float, float> many, one;
    for (auto& gradient : gradients) {
      for (float& element : sum) {
        gradient.push_back(static_cast<float>(numbers.real()));
        element += gradient.back();
      }
      many.add(gradient.data(), 1);
    }
    one.add(sum.data(), 1);
    many.scale = one.scale = 1.0F / static_cast<float>(count);
    State<float> found(size), wanted(size);
    found.update(many, 0, size);
    wanted.update(one, 0, size);
    INFO(count << " sources");
    CHECK(other_elements(found, wanted) == 0);
  }
}

namespace {

/// Rows in no order, some of them twice, as a replica sets them.
template <class T>
void set_some_rows(Contribution<T>& to, Numbers& numbers) {
  const VariableInfo& info = to.layout()[0];
  std::vector<Index> rows;
  for (Index i = numbers.below(info.rows()); i > 0; --i) rows.push_back(numbers.below(info.rows()));
  detail::RowWriter<T> writer(to, 0, static_cast<Index>(rows.size()),
                              [&](Index i) { return rows[static_cast<std::size_t>(i)]; });
  for (const Index row : rows) {
    writer.fetch(row);
    const auto [data, is_first] = writer(row);
    for (Index j = 0; j < info.row_size(); ++j)
      data[j] = static_cast<T>(numbers.real()) + (is_first ? T(0) : data[j]);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("update_rows: the same bits as one update for each row", "[optimizers]", float, double) {
  using T = TestType;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Numbers numbers(seed);
    const Index width = std::array<Index, 5>{1, 3, 16, 33, 70}[static_cast<std::size_t>(seed % 5)];
    const int count = static_cast<int>(1 + numbers.below(4));
    const Layout layout = layout_of<T>({{1 + numbers.below(200), width}});
    const RowLayout row_layout(layout);
    std::vector<std::unique_ptr<Owned<T>>> gradients;
    Contributors<T, T> from;
    for (int k = 0; k < count; ++k) {
      gradients.push_back(std::make_unique<Owned<T>>(layout, row_layout, numbers.chance(70)));
      Contribution<T>& gradient = **gradients.back();
      if (numbers.chance(15))
        fill_dense(gradient, 0, numbers);
      else
        set_some_rows(gradient, numbers);
      from.add(gradient, numbers.chance(30) ? 0.7 : 1, 1 + k);
    }
    from.scale = from.factor = 1.0 / 3;
    from.by_present = numbers.chance(30);
    for (const Index cut : {Index{16}, layout.size()}) {
      State<T> by_rows(layout.size()), by_runs(layout.size());
      Runs<T, T> runs(layout, from), rows(layout, from);
      const Adam rule;
      for (Index begin = 0; begin < layout.size(); begin += cut) {
        const Index end = std::min(begin + cut, layout.size());
        for (runs.start(0, begin, end); runs.next();)
          if (runs.has_gradient()) by_runs.update(runs.sources(), runs.begin(), runs.size());
        rows.start(0, begin, end);
        if (!rows.is_by_rows()) continue;
        update_rows(rule, prepare_step(rule, StepInfo{}), by_rows.arrays[0].data(),
                    std::array<T*, 2>{by_rows.arrays[1].data(), by_rows.arrays[2].data()}, rows.rows());
      }
      if (!rows.is_by_rows()) continue;
      INFO("seed " << seed << ", rows of " << width << ", cut " << cut);
      std::size_t wrong = 0;
      for (std::size_t array = 0; array < 3; ++array)
        for (std::size_t i = 0; i < by_runs.arrays[array].size(); ++i)
          if (!same_bits(by_rows.arrays[array][i], by_runs.arrays[array][i])) ++wrong;
      CHECK(wrong == 0);
    }
  }
}
