// SPDX-License-Identifier: MIT
/// @file
/// Writes the rows of one call into a contribution.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/fetch.hpp>

#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Says where each row of a call goes: packed, if the variable has none yet in this step, else at its own
/// place.
template <class G>
class RowWriter {
 public:
  struct Target {
    G* data;
    bool is_first;  ///< nothing is there yet: assign; otherwise add
  };

  /// @param row_at the rows, `row_at(0)` to `row_at(count - 1)`, in [0, rows of the variable).
  /// @throws UsageError if the variable has a dense gradient.
  template <class RowAt>
  RowWriter(Contribution<G>& to, std::uint32_t id, Index count, RowAt&& row_at)
      : members_(to.rows(id)),
        data_(to.data() + to.layout()[id].offset),
        width_(to.layout()[id].row_size()),
        packs_(to.mark_packed_rows(id)) {
    if (packs_) {
      for (Index i = 0; i < count; ++i) members_.insert(row_at(i));
      distinct_ = members_.number_members();
      repeats_ = distinct_ < count;
    } else {
      to.mark_rows(id);
    }
  }
  RowWriter(const RowWriter&) = delete;
  RowWriter& operator=(const RowWriter&) = delete;
  ~RowWriter() {
    if (repeats_) members_.give_back(distinct_);
  }

  Target operator()(Index row) {
    if (!packs_) return {data_ + row * width_, members_.insert(row)};
    const Index number = members_.number(row);
    return {data_ + number * width_, !repeats_ || members_.take(number)};
  }
  /// Brings nearer what a later row is written to: packed rows come in another order than those of the call.
  LOCKSTEP_ALWAYS_INLINE void fetch(Index row) const {
    fetch_elements<true>(data_ + (packs_ ? members_.number(row) : row) * width_, width_);
  }

 private:
  RowSet members_;
  G* data_;
  Index width_;
  bool packs_;
  bool repeats_ = false;  // some rows of the call are equal
  Index distinct_ = 0;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
