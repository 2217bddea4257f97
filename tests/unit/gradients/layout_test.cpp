// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/gradients/layout.hpp>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

TEMPLATE_TEST_CASE("layout: variables lie one after the other on 64-byte boundaries", "[gradients][layout]",
                   float, double) {
  constexpr Index unit = 64 / sizeof(TestType);
  Layout layout(sizeof(TestType));
  CHECK(layout.unit() == unit);
  CHECK(layout.size() == 0);
  CHECK(layout.count() == 0);
  Index expected = 0;
  std::uint32_t id = 0;
  for (const Index size : k_sizes) {
    const VariableInfo& info = layout.add("v" + std::to_string(size), {size});
    CHECK(info.id == id++);
    CHECK(info.offset == expected);
    CHECK(info.size == size);
    while (expected < info.offset + size) expected += unit;
    CHECK(layout.size() == expected);
    CHECK(layout.end_of(info.id) == expected);
  }
  CHECK(layout.count() == id);
  for (std::uint32_t i = 0; i + 1 < layout.count(); ++i) CHECK(layout.end_of(i) == layout[i + 1].offset);
}

TEST_CASE("layout: every element, padding included, belongs to one variable", "[gradients][layout]") {
  const Layout layout = layout_of<float>({{1}, {17}, {4, 4}, {}, {4097}});
  bool right = true;
  for (std::uint32_t id = 0; id < layout.count(); ++id)
    for (Index i = layout[id].offset; i < layout.end_of(id); ++i)
      right = right && layout.variable_at(i) == id;
  CHECK(right);
  CHECK(layout.end_of(4) == layout.size());
}

TEST_CASE("layout: rows are the entries of the first dimension", "[gradients][layout]") {
  const Layout layout = layout_of<float>({{}, {5}, {2, 3}, {2, 3, 4}, {1, 7}});
  const auto check = [&](std::uint32_t id, int rank, Index rows, Index row_size) {
    CHECK(layout[id].rank() == rank);
    CHECK(layout[id].rows() == rows);
    CHECK(layout[id].row_size() == row_size);
    CHECK(layout[id].size == rows * row_size);
  };
  check(0, 0, 1, 1);
  check(1, 1, 5, 1);
  check(2, 2, 2, 3);
  check(3, 3, 2, 12);
  check(4, 2, 1, 7);
}

TEST_CASE("layout: finds variables by name", "[gradients][layout]") {
  const Layout layout = layout_of<double>({{2}, {3}});
  CHECK(layout.find("v1").id == 1);
  CHECK_THROWS_AS(layout.find("v2"), UnknownVariable);
  CHECK_THROWS_WITH(layout.find("v2"), ContainsSubstring("'v2'"));
  CHECK_THROWS_AS(layout.find(""), UnknownVariable);
}

TEST_CASE("layout: finds variables by name in whatever order they were added", "[gradients][layout]") {
  Layout layout(sizeof(float));
  const auto name = [](std::uint32_t id) { return "v" + std::to_string(id * 37 % 101); };  // all of them
  for (std::uint32_t id = 0; id < 101; ++id) {
    CHECK(layout.known(name(id)) == nullptr);
    layout.add(name(id), {1});
    CHECK_THROWS_AS(layout.add(name(id / 2), {1}), InvalidArgument);
  }
  const Layout copy = layout;
  for (std::uint32_t id = 0; id < 101; ++id) {
    CHECK(layout.find(name(id)).id == id);
    CHECK(copy.known(name(id)) == &copy[id]);
  }
  CHECK(layout.known("v") == nullptr);
  CHECK(layout.known("w") == nullptr);
}

TEST_CASE("layout: a refused variable changes nothing", "[gradients][layout]") {
  Layout layout(sizeof(float));
  layout.add("kernel", {2, 3});
  CHECK_THROWS_AS(layout.add("", {1}), InvalidArgument);
  CHECK_THROWS_WITH(layout.add("kernel", {2}), ContainsSubstring("'kernel'") && ContainsSubstring("taken"));
  CHECK_THROWS_WITH(layout.add("bias", {3, 0}), ContainsSubstring("'bias'") && ContainsSubstring("(3, 0)"));
  CHECK_THROWS_AS(layout.add("bias", {-1}), InvalidArgument);
  CHECK_THROWS_AS(layout.add("bias", {-2, -3}), InvalidArgument);
  // Products and sums that integers do not hold.
  constexpr Index half = Index{1} << 32, most = Index{1} << 46;
  for (const auto& shape : {std::vector{half, half}, {half, half, 2}, {most + 1}, {most}, {half, -half}})
    CHECK_THROWS_AS(layout.add("bias", shape), InvalidArgument);
  CHECK_THROWS_WITH(layout.add("bias", {half, half}),
                    ContainsSubstring("(4294967296, 4294967296)") && ContainsSubstring("too large"));
  CHECK_THROWS_WITH(layout.add("bias", {half, half, 0}), ContainsSubstring("no elements"));
  CHECK(layout.count() == 1);
  CHECK(layout.size() == 16);
  CHECK(layout.add("bias", {1}).offset == 16);
}
