// SPDX-License-Identifier: MIT
/// @file
/// Copies of what is being changed, so that others can go on where a participant has died.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/keep_lines.hpp>
#include <lockstep/gradients/mean.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/store_in_order.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// What one participant is changing: one item at a time. One word says which item, another how far it has
/// come and of what there is a copy.
template <class T>
class UndoArea {
 public:
  /// @param elements of the longest range that is copied as a whole. @param arrays that an update changes.
  UndoArea(Carver& carver, Index elements, std::size_t arrays) {
    carver.next_page();
    item_ = carver.array<std::atomic<std::uint64_t>>(1);
    progress_ = carver.array<std::atomic<std::uint64_t>>(1);
    copies_ = carver.array<T>(static_cast<std::size_t>(std::max(elements, 2 * k_kept<T>)) * arrays);
    carver.next_page();
  }

  /// Before a claim: what was left from an earlier item is void.
  void forget() { store_in_order(*item_, 0); }
  /// A claimed item is begun, with its element `first`.
  void reach(std::uint64_t stage, Index item, Index first) {
    store_in_order(*progress_,
                   Progress::at(first).word());  // which is right for the item before, for that is done
    store_in_order(*item_, tag(stage, item));
  }
  /// For the elements [begin, end) of the layout, the item that was reached: copies its lines.
  LineKeeper<T> lines(Index begin, Index end) const { return {*progress_, copies_, begin, end}; }
  /// Before it is changed in a way that has no order: copies all of it.
  void save(std::span<T* const> arrays, Index begin, Index end) {
    T* to = copies_;
    for (const T* array : arrays) {
      stream(to, Copy<T>{array + begin}, end - begin);
      to += end - begin;
    }
    fault_point("undo: copied");
    store_in_order(*progress_, Progress::whole().word());
    fault_point("undo: marked");
  }
  /// Puts back what was being changed of the elements [begin, end) of an item, if there is a copy. May be
  /// done again.
  /// @param first element with which the owner began. @return the one with which to go on.
  Index restore(std::uint64_t stage, Index item, Index first, std::span<T* const> arrays, Index begin,
                Index end) const {
    if (item_->load(std::memory_order_relaxed) != tag(stage, item)) return first;
    const Progress reached(progress_->load(std::memory_order_relaxed));
    const Index position = reached.position();
    if (begin + position >= end) return first;  // damaged: there is no such element
    if (!reached.has_copy()) return position;
    const Index left = end - begin - position;
    const Index size = reached.is_whole() ? left : std::min(reached.lines() * k_line<T>, left);
    const Index stride = reached.is_whole() ? left : k_kept<T>;
    const T* from = copies_ + (reached.in_second() ? stride * static_cast<Index>(arrays.size()) : 0);
    for (T* array : arrays) {
      std::copy_n(from, size, array + begin + position);
      fault_point("undo: restored an array");
      from += stride;
    }
    return position;
  }

 private:
  static std::uint64_t tag(std::uint64_t stage, Index item) {
    return stage << 28 | (static_cast<std::uint64_t>(item) + 1);
  }

  std::atomic<std::uint64_t>* item_;
  std::atomic<std::uint64_t>* progress_;
  T* copies_;
};

/// Does the plan's work for an item that was reached, the elements [begin, end) of the layout, of which those
/// before `first` are done: a few lines at a time if the rule goes by elements, otherwise with a copy of all
/// of it.
template <class Updater, class Plan, class Sources, class T>
void run_undoably(Updater& updater, const Plan& plan, const Sources& sources, UndoArea<T>& undo, Index begin,
                  Index first, Index end) {
  if constexpr (Updater::by_elements) {
    updater.run(plan, sources, first, end, undo.lines(begin, end));
  } else {
    undo.save(updater.changed_arrays(plan), begin, end);
    updater.run(plan, sources, begin, end);
  }
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
