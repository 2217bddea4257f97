// SPDX-License-Identifier: MIT
/// @file
/// The sparse accumulator: the merge, means per row, the order of its checks.
#include "support/catch.hpp"
#include "support/threads.hpp"
#include <lockstep/accumulators/sparse_conditional_accumulator.hpp>

#include <Eigen/Core>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace ls = lockstep;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using ls::Index;
using ls::Shape;
using ls::SparseTensor;

namespace {

/// A gradient whose slices are single numbers, with the arrays that it is a view of.
template <class T = double>
struct Rows {
  std::vector<Index> indices;
  std::vector<T> values;
  ls::SparseGradient<T> gradient() const { return {.indices = indices, .values = {values, {size(), 1}}}; }
  Index size() const { return static_cast<Index>(values.size()); }
};

template <class T>
std::string message_of_apply(ls::SparseConditionalAccumulator<T>& accumulator,
                             const ls::SparseGradient<T>& gradient) {
  try {
    accumulator.apply_grad(gradient, accumulator.step());
    return "";
  } catch (const ls::InvalidArgument& error) {
    return error.what();
  }
}

}  // namespace

TEMPLATE_TEST_CASE("sparse_conditional_accumulator: each row is divided by its own count",
                   "[accumulator][sparse]", float, double, Eigen::half) {
  const auto rows = [](std::vector<Index> indices, std::vector<int> values) {
    Rows<TestType> result{std::move(indices), {}};
    for (const int value : values) result.values.push_back(static_cast<TestType>(value));
    return result;
  };
  const auto a = rows({0, 1, 2}, {3, 3, 3}), b = rows({1, 2}, {5, 6}), c = rows({2}, {9});
  const auto mean = rows({0, 1, 2}, {3, 4, 6}), sum = rows({0, 1, 2}, {3, 8, 18});
  for (const bool is_mean : {true, false}) {
    ls::SparseConditionalAccumulator<TestType> accumulator(
        {.reduction = is_mean ? ls::Reduction::mean : ls::Reduction::sum});
    for (const auto& gradient : {a, b, c}) accumulator.apply_grad(gradient.gradient(), 0);
    const auto& expected = is_mean ? mean : sum;
    CHECK(accumulator.take_grad(3) ==
          SparseTensor<TestType>{expected.indices, {expected.values, {3, 1}}, {ls::k_unknown, 1}});
  }
}

TEST_CASE("sparse_conditional_accumulator: slices of any rank, also without elements",
          "[accumulator][sparse]") {
  ls::SparseConditionalAccumulator<double> accumulator({.shape = Shape{9, 2, ls::k_unknown}});
  const std::vector<Index> indices{1, 4};
  const std::vector<double> values{1, 2, 3, 4, 5, 6, 7, 8};
  accumulator.apply_grad({.indices = indices, .values = {values, {2, 2, 2}}, .dense_shape = Shape{9, 2, 2}},
                         0);
  CHECK(accumulator.take_grad(1) == SparseTensor<double>{indices, {values, {2, 2, 2}}, {9, 2, 2}});
  const std::vector<double> none;
  for (int i = 0; i < 2; ++i) accumulator.apply_grad({.indices = indices, .values = {none, {2, 2, 0}}}, 1);
  CHECK(accumulator.take_grad(1) == SparseTensor<double>{indices, {none, {2, 2, 0}}, {9, 2, 0}});
}

TEST_CASE("sparse_conditional_accumulator: what is empty counts as a gradient", "[accumulator][sparse]") {
  ls::SparseConditionalAccumulator<double> accumulator;
  const Rows<> none{}, one{{3}, {4}};
  accumulator.apply_grad(none.gradient(), 0);
  accumulator.apply_grad(one.gradient(), 0);
  accumulator.apply_grad(none.gradient(), 0);
  CHECK(accumulator.num_accumulated() == 3);
  CHECK(accumulator.take_grad(3) == SparseTensor<double>{{3}, {{4}, {1, 1}}, {ls::k_unknown, 1}});
}

TEST_CASE("sparse_conditional_accumulator: duplicates pair by position, and order is not made",
          "[accumulator][sparse]") {
  ls::SparseConditionalAccumulator<double> accumulator;
  const Rows<> first{{2, 0, 0}, {1, 2, 3}}, second{{0, 2, 0}, {10, 20, 30}};
  accumulator.apply_grad(first.gradient(), 0);
  accumulator.apply_grad(second.gradient(), 0);
  CHECK(accumulator.take_grad(2) ==
        SparseTensor<double>{{0, 2, 0, 0}, {{10, 10.5, 16, 3}, {4, 1}}, {ls::k_unknown, 1}});
}

TEST_CASE("sparse_conditional_accumulator: the first check that fails is the one reported",
          "[accumulator][sparse]") {
  ls::SparseConditionalAccumulator<double> accumulator({.shape = Shape{3, 2}});
  const std::vector<Index> one{7}, two{7, 8};
  const std::vector<double> four(4, 1.0), single{1.0};
  // Each gradient is wrong in what its line says and in everything below it, as far as that is possible.
  CHECK_THAT(message_of_apply(accumulator,
                              {.indices = {two, {2, 1}}, .values = {single, {}}, .dense_shape = Shape{5}}),
             ContainsSubstring("indices must be a vector"));
  CHECK_THAT(message_of_apply(accumulator, {.indices = two, .values = {single, {}}, .dense_shape = Shape{5}}),
             ContainsSubstring("got a scalar"));
  CHECK_THAT(
      message_of_apply(accumulator, {.indices = two, .values = {four, {1, 4}}, .dense_shape = Shape{5}}),
      ContainsSubstring("2 indices"));
  CHECK_THAT(
      message_of_apply(accumulator, {.indices = one, .values = {four, {1, 4}}, .dense_shape = Shape{5}}),
      ContainsSubstring("(5)"));
  CHECK_THAT(
      message_of_apply(accumulator, {.indices = one, .values = {four, {1, 4}}, .dense_shape = Shape{3, 4}}),
      ContainsSubstring("(3, 4)"));
  CHECK_THAT(
      message_of_apply(accumulator, {.indices = one, .values = {four, {1, 4}}, .dense_shape = Shape{3, 2}}),
      ContainsSubstring("index 7"));
  const std::vector<Index> low{-7};
  CHECK_THAT(message_of_apply(accumulator, {.indices = low, .values = {four, {1, 4}}}),
             ContainsSubstring("values have shape (1, 4)"));
  CHECK(accumulator.num_accumulated() == 0);
  CHECK(message_of_apply(accumulator, {.indices = low, .values = {four, {1, 2, 2}}}) == "");
  CHECK_THAT(message_of_apply(accumulator, {.indices = low, .values = {std::span(four).first(2), {1, 2}}}),
             ContainsSubstring("the sum so far has (1, 2, 2)"));
  CHECK(accumulator.num_accumulated() == 1);
}

TEST_CASE("sparse_conditional_accumulator: ascending lists give the plain sum of rows",
          "[accumulator][sparse][property]") {
  std::mt19937 random(5);
  for (int run = 0; run < 50; ++run) {
    ls::SparseConditionalAccumulator<double> accumulator;
    std::map<Index, std::pair<double, int>> model;  // index -> sum, count
    for (int i = 0; i < 5; ++i) {
      Rows<> rows;
      for (Index index = 0; index < 12; ++index) {
        if (random() % 2 == 0) continue;
        const double value = static_cast<double>(random() % 1000);
        rows.indices.push_back(index);
        rows.values.push_back(value);
        model[index].first += value;
        ++model[index].second;
      }
      accumulator.apply_grad(rows.gradient(), 0);
    }
    std::vector<Index> indices;
    std::vector<double> means;
    for (const auto& [index, row] : model) {
      indices.push_back(index);
      means.push_back(row.first / row.second);
    }
    const auto result = accumulator.take_grad(5);
    REQUIRE(result.indices == indices);
    REQUIRE(result.values.elements == means);
  }
}

TEST_CASE("sparse_conditional_accumulator: concurrent pushes and takes lose no row",
          "[accumulator][sparse][thread]") {
  const ls::test::Watchdog watchdog;
  constexpr int k_pushers = 3, k_takes = 50;
  ls::SparseConditionalAccumulator<double> accumulator({.reduction = ls::Reduction::sum});
  std::atomic<bool> has_ended = false;
  std::array<std::atomic<int>, k_pushers> accepted{};
  std::array<double, k_pushers> sums{};
  const auto thrown = ls::test::run_replicas(k_pushers + 1, [&](int id) {
    const auto at = static_cast<std::size_t>(id);
    if (id < k_pushers) {
      const Rows<> rows{{id}, {1.0}};  // every pusher has a row of its own
      while (!has_ended)
        if (accumulator.apply_grad(rows.gradient(), accumulator.step())) ++accepted[at];
      return;
    }
    const auto collect = [&](const SparseTensor<double>& taken) {
      for (std::size_t row = 0; row < taken.indices.size(); ++row)
        sums[static_cast<std::size_t>(taken.indices[row])] += taken.values.elements[row];
    };
    for (int i = 0; i < k_takes; ++i) collect(accumulator.take_grad(2, 50s));
    has_ended = true;
  });
  for (const auto& exception : thrown) CHECK(ls::test::message_of(exception) == "");
  if (accumulator.num_accumulated() > 0) {
    const auto rest = accumulator.take_grad(1);
    for (std::size_t row = 0; row < rest.indices.size(); ++row)
      sums[static_cast<std::size_t>(rest.indices[row])] += rest.values.elements[row];
  }
  for (std::size_t i = 0; i < k_pushers; ++i) CHECK(sums[i] == static_cast<double>(accepted[i]));
}
