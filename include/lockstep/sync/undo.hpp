// SPDX-License-Identifier: MIT
/// @file
/// Copies of what is being changed, so that others can go on where a participant has died.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/mean.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/memory.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// What one participant is changing: one part of one item at a time. The tag says which one, and whether the
/// copy of it is whole. Parts are small, so that copies stay in the first-level cache.
template <class T>
class UndoArea {
 public:
  /// @param elements of the largest part. @param arrays that an update changes.
  UndoArea(Carver& carver, Index elements, std::size_t arrays)
      : elements_(elements),
        tag_(carver.array<std::atomic<std::uint64_t>>(1)),
        copies_(carver.array<T>(static_cast<std::size_t>(elements) * arrays)) {}

  /// Before a claim: what was left from an earlier item is void.
  void forget() { mark(0); }
  /// The parts of a claimed item before this one are done, the others are untouched.
  void reach(std::uint64_t stage, Index item, int part) { mark(tag(stage, item, part)); }
  /// Before the part that was reached is changed.
  void save(std::span<T* const> arrays, Index begin, Index end) {
    T* to = copies_;
    for (const T* array : arrays) {
      stream(to, Copy<T>{array + begin}, end - begin);
      to += elements_;
    }
    fault_point("undo: copied");
    mark(tag_->load(std::memory_order_relaxed) | k_saved);
    fault_point("undo: marked");
  }
  /// Puts back what the part was that was being changed, if there is one. May be done again.
  /// @param part with which the owner began. @param range `range(part)` are the elements of a part.
  /// @return the part with which to go on.
  template <class F>
  int restore(std::uint64_t stage, Index item, int part, std::span<T* const> arrays, F&& range) const {
    const std::uint64_t found = tag_->load(std::memory_order_relaxed);
    const int reached = static_cast<int>(found & k_parts) >> 1;
    if ((found & ~k_saved) != tag(stage, item, reached)) return part;
    if ((found & k_saved) == 0) return reached;
    const auto [begin, end] = range(reached);
    if (begin >= end) return part;  // damaged: there is no such part
    const T* from = copies_;
    for (T* array : arrays) {
      std::memcpy(array + begin, from, static_cast<std::size_t>(end - begin) * sizeof(T));
      fault_point("undo: restored an array");
      from += elements_;
    }
    return reached;
  }

 private:
  static constexpr std::uint64_t k_saved = 1, k_parts = 0x1E;
  static std::uint64_t tag(std::uint64_t stage, Index item, int part) {
    return stage << 29 | (static_cast<std::uint64_t>(item) + 1) << 5 | static_cast<std::uint64_t>(part) << 1;
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
