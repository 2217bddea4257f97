// SPDX-License-Identifier: MIT
/// @file
/// The axis along which a gradient is cut.
#include "support/catch.hpp"
#include <lockstep/protocol/sharding.hpp>

#include <array>
#include <optional>

using Catch::Matchers::ContainsSubstring;
using lockstep::Index;
using lockstep::protocol::sharded_axis;

namespace {

template <class... Extents>
constexpr std::optional<int> axis(std::optional<Index> partitions, Extents... extents) {
  const std::array<Index, sizeof...(Extents)> shape{extents...};
  return sharded_axis(shape, partitions);
}

}  // namespace

static_assert(axis(2, 4, 8) == 1);
static_assert(axis(2, 8, 4) == 0);
static_assert(axis(2, 4, 4) == 0, "of two equal axes the first");
static_assert(axis(3, 2, 6, 8) == 1, "rank 3: always the middle one");
static_assert(axis(2, 9, 4) == 0, "need not be divisible");
static_assert(!axis(2));
static_assert(!axis(2, 16));
static_assert(!axis(2, 2, 2, 2, 2));
static_assert(!axis(std::nullopt, 4, 8));
static_assert(!axis(0, 4, 8));

TEST_CASE("sharded_axis: an axis shorter than the partitions is an error", "[protocol][sharding]") {
  CHECK(axis(8, 8, 4) == 0);
  CHECK_THROWS_AS(axis(9, 8, 4), lockstep::InvalidArgument);
  CHECK_THROWS_WITH(axis(2, 2, 1, 8), ContainsSubstring("axis 1 of shape (2, 1, 8)"));
}
