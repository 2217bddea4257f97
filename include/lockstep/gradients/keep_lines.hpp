// SPDX-License-Identifier: MIT
/// @file
/// Copies of the lines of some arrays while a loop changes them, for those who go on if its process is
/// killed.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/stream.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/store_in_order.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// How far a run over the layout has come, as one word that a killed process leaves behind: elements before a
/// position are done, of those from there on there may be a copy, and those after that are untouched.
class Progress {
 public:
  explicit Progress(std::uint64_t word) : word_(word) {}
  /// Nothing is being changed.
  static Progress at(Index position) { return Progress(static_cast<std::uint64_t>(position) << k_position); }
  /// `kept` elements that begin there are, at most `k_most_kept`, and their copy is the first or the second
  /// one.
  static Progress kept_from(Index position, Index kept, bool second) {
    return Progress(static_cast<std::uint64_t>(position) << k_position |
                    static_cast<std::uint64_t>(kept) << k_kept_elements | (second ? 1U : 0U));
  }
  /// Anything is, and there is a copy of all.
  static Progress whole() { return Progress(2U); }

  Index position() const { return static_cast<Index>(word_ >> k_position); }
  /// Elements of which there is a copy.
  Index kept() const { return static_cast<Index>(word_ >> k_kept_elements & (2 * k_most_kept - 1)); }
  bool is_whole() const { return (word_ & 2U) != 0; }
  bool in_second() const { return (word_ & 1U) != 0; }
  std::uint64_t word() const { return word_; }

 private:
  static constexpr int k_position = 9, k_kept_elements = 2;  // lowest bits
  static constexpr Index k_most_kept = k_kept<float>;
  static_assert(k_most_kept == 1 << (k_position - k_kept_elements - 1));

  std::uint64_t word_;
};

/// Copies the lines of the arrays that an update changes, a few at a time in ascending order, before they are
/// changed. There are two copies in turn, because lines are finished only when the next ones are marked.
template <class T>
class LineKeeper {
 public:
  /// Up to element `end` of the layout. @param copies two times `k_kept` elements of each array.
  LineKeeper(std::atomic<std::uint64_t>& progress, T* copies, Index end)
      : progress_(&progress), copies_(copies), end_(end) {}

  /// `functor` with copies of the lines of what it changes, for a run that begins with element `start`. All
  /// before is done.
  template <class Functor>
  auto over(const Functor& functor, Index start) const;

  /// Calls `f(from, to)` for the lines of a run [begin, end) that no functor goes over, counted from element
  /// `origin` of the layout, when there is a copy of them.
  template <std::size_t count, class F>
  void for_lines(Index begin, Index end, Index origin, std::array<T*, count> arrays, F&& f) const {
    const LineKeeper run = starting_at(origin + begin);
    for (T*& array : arrays) array += origin + begin;
    for (Index i = 0; i < end - begin; i += k_kept<T>) {
      const Index size = std::min(k_kept<T>, end - begin - i);
      run.keep_rest(i, size, arrays);
      f(begin + i, begin + i + size);
    }
  }
  /// The `k_kept` elements from element `i` of the run, a multiple of that; arrays begin where the run does.
  template <class Packet, std::size_t count>
  LOCKSTEP_ALWAYS_INLINE void keep_whole(Index i, const std::array<T*, count>& arrays) const {
    T* to = copy(i, count);
    for (const T* array : arrays) {
      store_packets<Packet, k_kept<T>>(to, Copy<T>{array + i}, 0);
      to += k_kept<T>;
    }
    mark(i, k_kept<T>);
  }
  /// The last `size` elements of a loop, from its element `i` on, in whole lines as far as there are: what
  /// the loop does not change is put back as it was.
  template <std::size_t count>
  void keep_rest(Index i, Index size, const std::array<T*, count>& arrays) const {
    T* to = copy(i, count);
    const Index lines = (size + k_line<T> - 1) / k_line<T>;
    const Index kept = std::min(lines * k_line<T>, end_ - i);
    for (const T* array : arrays) {
      stream(to, Copy<T>{array + i}, kept);
      to += k_kept<T>;
    }
    mark(i, kept);
  }

 private:
  LineKeeper starting_at(Index start) const {
    LineKeeper run = *this;
    run.start_ += start;
    run.end_ -= start;
    store_in_order(*progress_, Progress::at(run.start_).word());
    return run;
  }
  /// The two copies are used in turn.
  static bool in_second(Index i) { return i / k_kept<T> % 2 != 0; }
  LOCKSTEP_ALWAYS_INLINE T* copy(Index i, std::size_t count) const {
    return copies_ + (in_second(i) ? static_cast<Index>(count) * k_kept<T> : 0);
  }
  LOCKSTEP_ALWAYS_INLINE void mark(Index i, Index kept) const {
    const Index position = start_ + i;
    // Tests that kill a process at each step leave most lines out.
    [[maybe_unused]] const bool is_told = position / k_kept<T> % 16 < 4;
    fault_point(is_told ? "undo: copied" : "later line: copied");
    store_in_order(*progress_, Progress::kept_from(position, kept, in_second(i)).word());
    fault_point(is_told ? "undo: marked" : "later line: marked");
  }

  std::atomic<std::uint64_t>* progress_;
  T* copies_;
  Index start_ = 0;  // of the loop, in the layout
  Index end_;        // counted from there
};

/// A functor for `stream` whose lines are kept: what `changed()` lists, arrays that begin where the run does.
template <class T, class Functor>
class KeptFunctor : public Functor {
 public:
  KeptFunctor(const Functor& functor, const LineKeeper<T>& keeper) : Functor(functor), keeper_(keeper) {}

  /// Before elements [i, i + k_kept) are changed.
  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE void keep_whole(Index i) const {
    keeper_.template keep_whole<Packet>(i, this->changed());
  }
  /// Before the last `size` elements, from `i` on, are changed.
  void keep_rest(Index i, Index size) const { keeper_.keep_rest(i, size, this->changed()); }

 private:
  LineKeeper<T> keeper_;
};

template <class T>
template <class Functor>
auto LineKeeper<T>::over(const Functor& functor, Index start) const {
  return KeptFunctor<T, Functor>(functor, starting_at(start));
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
