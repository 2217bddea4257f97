// SPDX-License-Identifier: MIT
/// @file
/// How an update is divided into items that participants claim.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/layout.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

/// Ranges of the layout. They depend on the layout alone, so the bits do not depend on who does what.
/// @tparam by_elements for rules that run on registers; others get whole variables.
template <bool by_elements>
class Partition {
 public:
  /// Elements of a tile, 16 KiB of floats: large enough that a claim costs nothing, small enough to balance.
  static constexpr Index k_smallest_tile = 4096;
  /// Tiles grow with the layout up to this, because claims beyond some thousands only cost.
  static constexpr Index k_largest_tile = 65536;

  /// Of this layout, which must outlive it and stay as it is.
  explicit Partition(const Layout& layout) : layout_(&layout), tile_(k_smallest_tile) {
    while (tile_ < k_largest_tile && layout.size() / tile_ > k_enough) tile_ *= 2;
  }

  /// Tiles of whole registers for element rules, variables otherwise.
  Index items() const {
    return by_elements ? (layout_->size() + tile_ - 1) / tile_ : static_cast<Index>(layout_->count());
  }
  /// First element of item `i`, and one past its last.
  std::pair<Index, Index> item(Index i) const {
    if constexpr (by_elements) return {i * tile_, std::min((i + 1) * tile_, layout_->size())};
    const auto id = static_cast<std::uint32_t>(i);
    return {(*layout_)[id].offset, layout_->end_of(id)};
  }

  /// Elements of the largest item that is changed as a whole; 0 if all are changed element by element.
  Index largest_whole_item() const {
    Index largest = 0;
    if constexpr (!by_elements)
      for (Index i = 0; i < items(); ++i) largest = std::max(largest, item(i).second - item(i).first);
    return largest;
  }

 private:
  static constexpr Index k_enough = 2048;  // tiles

  const Layout* layout_;
  Index tile_;
};

LOCKSTEP_NAMESPACE_END
