// SPDX-License-Identifier: MIT
// Plain memory as tensors: spans, vectors, arrays and NdSpan. The common battery: typed_test.cpp.
#include "support/catch.hpp"
#include <lockstep/optimizers/local.hpp>
#include <lockstep/optimizers/sgd.hpp>

#include <array>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

using namespace lockstep;
using Catch::Matchers::ContainsSubstring;

static_assert(std::is_same_v<tensor_of_t<std::vector<float>>, std::span<float>>);
static_assert(std::is_same_v<tensor_of_t<std::array<float, 3>>, std::span<float>>);
static_assert(std::is_same_v<tensor_of_t<std::span<const float>>, std::span<float>>);
static_assert(std::is_same_v<tensor_of_t<std::span<const float, 3>>, std::span<float>>);
static_assert(std::is_same_v<tensor_of_t<NdSpan<const double>>, NdSpan<double>>);
static_assert(TensorExpression<std::vector<float>, float> && !TensorExpression<std::vector<float>, double> &&
              !TensorExpression<std::vector<int>, float>);

TEST_CASE("span: vectors, arrays and spans of other owners become variables and gradients",
          "[tensor][span]") {
  Variables<float> variables;
  const std::vector<float> start(20, 1);
  const auto w = variables.add("w", start);
  const auto three = variables.add("three", std::array{1.0F, 2.0F, 3.0F});
  const auto part = variables.add("part", std::span<const float>(start).subspan(3, 4));
  Local local{Sgd{1.0}, variables};
  CHECK(local.value(w).size() == 20);
  CHECK(local.value(part).size() == 4);
  local.set_gradient(w, std::vector<double>(20, 0.5));
  local.set_gradient(three, std::array{1.0F, 1.0F, 1.0F});
  std::span<float> gradient = local.gradient(part);
  std::iota(gradient.begin(), gradient.end(), 1.0F);
  local.apply_gradients();
  CHECK(local.value(w)[19] == 0.5F);
  CHECK(local.value(three)[2] == 2);
  CHECK(local.value(part)[3] == -3);
  CHECK(start == std::vector<float>(20, 1));
  CHECK_THROWS_WITH(local.set_gradient(w, std::vector<float>(21)),
                    ContainsSubstring("(20)") && ContainsSubstring("(21)"));
}

TEST_CASE("span: NdSpan holds shapes of every rank", "[tensor][span]") {
  std::vector<float> memory(120);
  std::iota(memory.begin(), memory.end(), 0.0F);
  Variables<float> variables;
  const auto take = [&](const char* name, std::vector<Index> shape) {
    const auto size =
        static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies<>()));
    return variables.add(name,
                         NdSpan<const float>(std::span<const float>(memory).first(size), std::move(shape)));
  };
  const std::vector handles{take("0", {}), take("1", {5}), take("2", {3, 4}), take("3", {2, 3, 4}),
                            take("4", {5, 4, 3, 2})};
  Local local{Sgd{1.0}, variables};
  for (std::size_t rank = 0; rank < handles.size(); ++rank) {
    CHECK(variables.infos()[rank].rank() == static_cast<int>(rank));
    const auto value = local.value(handles[rank]);
    CHECK(value.shape == variables.infos()[rank].shape);
    CHECK(static_cast<Index>(value.size()) == variables.infos()[rank].size);
    CHECK(value[value.size() - 1] == static_cast<float>(value.size() - 1));
    auto gradient = local.gradient(handles[rank]);
    CHECK(gradient.shape == value.shape);
    std::fill(gradient.begin(), gradient.end(), 1.0F);
  }
  local.apply_gradients();
  CHECK(local.value(handles[0])[0] == -1);
  CHECK(local.value(handles[4])[119] == 118);
  CHECK_THROWS_WITH(
      local.set_gradient(handles[2], NdSpan<const float>(std::span<const float>(memory).first(12), {4, 3})),
      ContainsSubstring("(3, 4)") && ContainsSubstring("(4, 3)"));
  CHECK_THROWS_AS(
      local.set_gradient(handles[1], NdSpan<const float>(std::span<const float>(memory).first(5), {5, 1})),
      ShapeMismatch);
  CHECK_THROWS_AS(
      local.set_gradient(handles[0], NdSpan<const float>(std::span<const float>(memory).first(1), {1})),
      ShapeMismatch);
}

TEST_CASE("span: a shape that does not fit its elements is refused", "[tensor][span]") {
  std::vector<float> memory(6);
  CHECK_THROWS_WITH(NdSpan<float>(memory, {2, 4}),
                    ContainsSubstring("(2, 4)") && ContainsSubstring("8") && ContainsSubstring("6"));
  CHECK_THROWS_AS(NdSpan<float>(memory, {}), ShapeMismatch);
  constexpr Index half = Index{1} << 32;
  CHECK_THROWS_WITH(NdSpan<float>(std::span<float>(), {half, half}),
                    ContainsSubstring("(4294967296, 4294967296) is too large"));
  CHECK_THROWS_WITH(NdSpan<float>(memory, {-2, -3}), ContainsSubstring("(-2, -3) has a negative extent"));
  CHECK_NOTHROW(NdSpan<float>(memory, {1, 6, 1}));
}

TEST_CASE("span: rows of a table of any rank, from several kinds of memory and of index", "[tensor][span]") {
  std::vector<float> start(70 * 2 * 3, 0);
  Variables<float> variables;
  const auto table = variables.add("table", NdSpan<const float>(start, {70, 2, 3}));
  const auto flat = variables.add("flat", std::span<const float>(start).first(70));
  Local local{Sgd{1.0}, variables};
  std::vector<float> rows(12);
  std::iota(rows.begin(), rows.end(), 1.0F);
  local.set_rows(table, std::array<std::int64_t, 2>{64, 1}, rows);
  const std::uint16_t indices[] = {1, 69};
  local.set_rows(table, std::span(indices), NdSpan<const float>(rows, {2, 2, 3}));
  local.set_rows(flat, std::vector<std::size_t>{3, 64, 3}, std::vector<double>{1, 2, 4});
  local.apply_gradients();
  for (std::size_t j = 0; j < 6; ++j) {
    const auto x = static_cast<float>(j);
    CHECK(local.value(table)[64 * 6 + j] == -(x + 1));
    CHECK(local.value(table)[1 * 6 + j] == -(x + 7) - (x + 1));
    CHECK(local.value(table)[69 * 6 + j] == -(x + 7));
    CHECK(local.value(table)[2 * 6 + j] == 0);
  }
  CHECK(local.value(flat)[3] == -5);
  CHECK(local.value(flat)[64] == -2);
  CHECK_THROWS_WITH(local.set_rows(flat, std::vector{1, 2}, std::vector<float>(3)),
                    ContainsSubstring("'flat'") && ContainsSubstring("3"));
  CHECK_THROWS_AS(local.set_rows(flat, std::vector{70}, std::vector<float>(1)), InvalidArgument);
  CHECK_THROWS_AS(local.set_rows(flat, std::vector<std::uint64_t>{~std::uint64_t{0}}, std::vector<float>(1)),
                  InvalidArgument);
}
