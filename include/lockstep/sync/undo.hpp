// SPDX-License-Identifier: MIT
/// @file
/// Copies of what is being changed, so that others can go on where a participant has died.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/keep_lines.hpp>
#include <lockstep/gradients/stream.hpp>
#include <lockstep/sync/tiles.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/store_in_order.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// What one participant is changing: a run of items one behind the other. One word says with which item it
/// begins, another how far it has come and of what there is a copy. Elements are those of the layout.
template <class T>
class UndoArea {
 public:
  /// @param size elements of the layout. @param longest elements of the longest range that is copied as a
  /// whole. @param arrays that an update changes.
  UndoArea(Carver& carver, Index size, Index longest, std::size_t arrays) : size_(size), longest_(longest) {
    carver.next_page();
    item_ = carver.array<std::atomic<std::uint64_t>>(1);
    progress_ = carver.array<std::atomic<std::uint64_t>>(1);
    copies_ = carver.array<T>(static_cast<std::size_t>(std::max(longest, 2 * k_kept<T>)) * arrays);
    carver.next_page();
  }

  /// Before a claim: what was left from an earlier run is void.
  void forget() { store_in_order(*item_, 0); }
  /// A run of claimed items is begun, with its element `first`, which is in `item`.
  void reach(std::uint64_t stage, Index item, Index first) {
    // The place is right beside the old item, too: that run is done, and of this one nothing behind it is
    // begun.
    store_in_order(*progress_, Progress::at(first).word());
    store_in_order(*item_, tag(stage, item));
  }
  /// For the run that was reached, up to element `end`: copies its lines.
  LineKeeper<T> lines(Index end) const { return {*progress_, copies_, end}; }
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
  /// Puts back what was being changed of an item, the elements [begin, end), if there is a copy. May be done
  /// again.
  /// @param first element with which the owner began. @return the one with which to go on: `end` if all is
  /// done.
  Index restore(std::uint64_t stage, Index item, Index first, std::span<T* const> arrays, Index begin,
                Index end) const {
    const std::uint64_t run = item_->load(std::memory_order_relaxed);
    const Progress reached(progress_->load(std::memory_order_relaxed));
    const Index position = reached.position();
    if (run < tag(stage, 0) || run > tag(stage, item)) return first;  // it has not begun with this item
    if (position > size_) return first;                               // damaged: there is no such place
    if (reached.is_whole()) {
      if (run != tag(stage, item) || end - begin > longest_) return first;
      put_back(arrays, begin, end, copies_, end - begin);
      return begin;
    }
    if (position >= end) return end;
    const Index kept = std::min(reached.kept(), k_kept<T>);
    const Index from = std::max(position, begin), to = std::min(position + kept, end);
    if (from < to) {
      const T* copies = copies_ + (reached.in_second() ? k_kept<T> * std::ssize(arrays) : 0);
      put_back(arrays, from, to, copies + (from - position), k_kept<T>);
    }
    return from < to || position > begin ? from : first;  // a run may end where the item begins
  }

 private:
  static std::uint64_t tag(std::uint64_t stage, Index item) {
    return stage << 28 | (static_cast<std::uint64_t>(item) + 1);
  }
  /// Elements [begin, end) of each array, from copies `stride` apart.
  static void put_back(std::span<T* const> arrays, Index begin, Index end, const T* copy, Index stride) {
    for (T* array : arrays) {
      std::copy_n(copy, end - begin, array + begin);
      fault_point("undo: restored an array");
      copy += stride;
    }
  }

  Index size_, longest_;
  std::atomic<std::uint64_t>* item_;
  std::atomic<std::uint64_t>* progress_;
  T* copies_;
};

/// Does the plan's work for a run that was reached, the elements [first, end) of the layout: a few lines at a
/// time if the rule goes by elements, otherwise, for one whole item, with a copy of all of it.
template <class Updater, class Plan, class Sources, class T>
void run_undoably(Updater& updater, const Plan& plan, const Sources& sources, UndoArea<T>& undo, Index first,
                  Index end) {
  if constexpr (Updater::by_elements) {
    updater.run(plan, sources, first, end, undo.lines(end));
  } else {
    undo.save(updater.changed_arrays(plan), first, end);
    updater.run(plan, sources, first, end);
  }
}

/// Does claimed items from `i` on, at most up to `end`, in one run. @return one past the last of them: an
/// item that an earlier owner has left begins a run of its own, and whole variables are one each.
template <class Updater, class Plan, class Sources, class T>
Index run_claimed(Updater& updater, const Plan& plan, const Sources& sources, UndoArea<T>& undo,
                  const Tiles& tiles, std::uint64_t stage, Index i, Index end) {
  const auto [begin, item_end] = updater.partition().item(i);
  const Index first = std::min(begin + tiles.first(i), item_end);  // that of a damaged word may be behind it
  Index next = i + 1;
  if constexpr (Updater::by_elements)
    while (next < end && tiles.first(next) == 0) ++next;
  undo.reach(stage, i, first);
  run_undoably(updater, plan, sources, undo, first, updater.partition().item(next - 1).second);
  return next;
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
