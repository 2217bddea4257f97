// SPDX-License-Identifier: MIT
/// @file
/// The number of elements of a shape, also of one that no memory can hold.
#pragma once

#include <lockstep/config.hpp>

#include <algorithm>
#include <span>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Most elements of all variables: more than any memory has, and few enough to be counted in bytes.
inline constexpr Index k_most_elements = Index{1} << 46;

/// Product of the extents; -1 if one is negative, `k_most_elements + 1` if it is larger than that.
inline Index element_count(std::span<const Index> shape) {
  if (std::any_of(shape.begin(), shape.end(), [](Index extent) { return extent < 0; })) return -1;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  Index count = 1;
  for (const Index extent : shape) {
    if (count > k_most_elements / extent) return k_most_elements + 1;
    count *= extent;
  }
  return count;
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
