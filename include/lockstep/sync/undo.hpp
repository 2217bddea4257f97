// SPDX-License-Identifier: MIT
/// @file
/// Copies of the items that are being changed, so that the items of a participant that dies can be done
/// again.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/memory.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// What one participant was changing: one item at a time. The tag says which one, and is set only while the
/// copy is whole.
template <class T>
class UndoArea {
 public:
  /// @param elements of the largest item. @param arrays that an update changes.
  UndoArea(Carver& carver, Index elements, std::size_t arrays)
      : elements_(elements),
        tag_(carver.array<std::atomic<std::uint64_t>>(1)),
        copies_(carver.array<T>(static_cast<std::size_t>(elements) * arrays)) {}

  /// Before a claim: what was left from an earlier item is void.
  void forget() { mark(0); }
  /// Before the claimed item is changed.
  void save(std::uint64_t stage, Index item, std::span<T* const> arrays, Index begin, Index end) {
    T* to = copies_;
    for (const T* array : arrays) {
      std::copy(array + begin, array + end, to);
      to += elements_;
    }
    fault_point("undo: copied");
    mark(tag(stage, item));
    fault_point("undo: marked");
  }
  /// Puts back what the item was, if it was being changed. May be done again.
  void restore(std::uint64_t stage, Index item, std::span<T* const> arrays, Index begin, Index end) const {
    if (tag_->load(std::memory_order_relaxed) != tag(stage, item)) return;
    const T* from = copies_;
    for (T* array : arrays) {
      std::copy(from, from + (end - begin), array + begin);
      fault_point("undo: restored an array");
      from += elements_;
    }
  }

 private:
  static std::uint64_t tag(std::uint64_t stage, Index item) {
    return stage << 24 | (static_cast<std::uint64_t>(item) + 1);
  }
  /// What a killed process has stored is what its program stored before: the compiler must keep the order.
  void mark(std::uint64_t value) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    tag_->store(value, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  Index elements_;
  std::atomic<std::uint64_t>* tag_;
  T* copies_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
