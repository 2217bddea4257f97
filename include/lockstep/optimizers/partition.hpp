// SPDX-License-Identifier: MIT
/// @file
/// How an update is divided: items that participants claim, and parts of them that can be undone.
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
  /// Of this layout, which must outlive it and stay as it is.
  explicit Partition(const Layout& layout)
      : layout_(&layout), part_size_(by_elements ? k_part : largest_item()) {}

  /// Tiles of whole registers for element rules, variables otherwise.
  Index items() const {
    return by_elements ? (layout_->size() + k_tile - 1) / k_tile : static_cast<Index>(layout_->count());
  }
  /// First element of item `i`, and one past its last.
  std::pair<Index, Index> item(Index i) const {
    if constexpr (by_elements) return {i * k_tile, std::min((i + 1) * k_tile, layout_->size())};
    const auto id = static_cast<std::uint32_t>(i);
    return {(*layout_)[id].offset, layout_->end_of(id)};
  }

  /// Items are changed in parts where each must be undoable: few cache lines of each array for element rules,
  /// whole items otherwise.
  int parts(Index i) const {
    const auto [begin, end] = item(i);
    return static_cast<int>((end - begin + part_size_ - 1) / part_size_);
  }
  /// First element of a part of item `i`, and one past its last.
  std::pair<Index, Index> part(Index i, int number) const {
    const auto [begin, end] = item(i);
    return {begin + number * part_size_, std::min(begin + (number + 1) * part_size_, end)};
  }
  /// Elements of the largest part.
  Index part_size() const { return part_size_; }

 private:
  /// 16 KiB of floats: large enough that a claim costs nothing, small enough to balance.
  static constexpr Index k_tile = 4096;
  /// 1 KiB of floats: with its copy it stays in the first-level cache.
  static constexpr Index k_part = 256;

  Index largest_item() const {
    Index largest = 0;
    for (Index i = 0; i < items(); ++i) largest = std::max(largest, item(i).second - item(i).first);
    return largest;
  }

  const Layout* layout_;
  Index part_size_;
};

LOCKSTEP_NAMESPACE_END
