// SPDX-License-Identifier: MIT
/// @file
/// A contribution that owns its memory.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/transport/memory.hpp>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// A contribution in memory of its own.
template <class G>
class OwnContribution {
 public:
  explicit OwnContribution(const Layout& layout)
      : rows_(layout),
        memory_(bytes(layout, rows_)),
        carver_(memory_.bytes().data()),
        contribution_(carver_, layout, rows_) {
    contribution_.clear();
  }
  OwnContribution(const OwnContribution&) = delete;
  OwnContribution& operator=(const OwnContribution&) = delete;
  Contribution<G>& get() { return contribution_; }

 private:
  static std::size_t bytes(const Layout& layout, const RowLayout& rows) {
    Carver counter;
    const Contribution<G> counted(counter, layout, rows);
    return counter.used();
  }
  RowLayout rows_;
  ZeroedMemory memory_;
  Carver carver_;
  Contribution<G> contribution_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
