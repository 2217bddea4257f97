// SPDX-License-Identifier: MIT
/// @file
/// Copies of each line of some arrays while a loop changes it, for those who go on if its process is killed.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/mean.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/store_in_order.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// How far an item has come, as one word that a killed process leaves behind: elements before a position are
/// done, those after its line are untouched, and of the line itself there may be a copy.
class Progress {
 public:
  explicit Progress(std::uint64_t word) : word_(word) {}
  /// Nothing is being changed.
  static Progress at(Index position) { return Progress(static_cast<std::uint64_t>(position) << 3); }
  /// The line that begins there is, and its copy is the first or the second one.
  static Progress line(Index position, bool second) {
    return Progress(static_cast<std::uint64_t>(position) << 3 | (second ? 2U : 0U) | 1U);
  }
  /// Anything is, and there is a copy of all.
  static Progress whole() { return Progress(4U | 1U); }

  Index position() const { return static_cast<Index>(word_ >> 3); }
  bool has_copy() const { return (word_ & 1U) != 0; }
  bool is_whole() const { return (word_ & 4U) != 0; }
  bool in_second() const { return (word_ & 2U) != 0; }
  std::uint64_t word() const { return word_; }

 private:
  std::uint64_t word_;
};

/// Copies each line of the arrays that an update changes, in ascending order, before it is changed. There are
/// two copies in turn, because a line is finished only when the next one is marked.
template <class T>
class LineKeeper {
 public:
  static constexpr bool k_keeps = true;

  /// Of elements [begin, end) of the layout. @param copies two lines of each array.
  LineKeeper(std::atomic<std::uint64_t>& progress, T* copies, Index begin, Index end)
      : progress_(&progress), copies_(copies), start_(-begin), end_(end) {}

  /// `functor` with copies of the lines of what it changes, for a run that begins with element `start`. All
  /// before is done.
  template <class Functor>
  auto over(const Functor& functor, Index start) const;

  /// Calls `f(from, to)` for each line of a run [begin, end) that no functor goes over, counted from element
  /// `origin` of the layout, when there is a copy of it.
  template <std::size_t count, class F>
  void for_lines(Index begin, Index end, Index origin, std::array<T*, count> arrays, F&& f) const {
    const LineKeeper run = starting_at(origin + begin);
    for (T*& array : arrays) array += origin + begin;
    for (Index i = 0; i < end - begin; i += k_line<T>) {
      run.keep_rest(i, arrays);
      f(begin + i, std::min(begin + i + k_line<T>, end));
    }
  }
  /// The whole line from element `i` of the run, a multiple of a line; arrays begin where the run does.
  template <class Packet, std::size_t count>
  LOCKSTEP_ALWAYS_INLINE void keep_line(Index i, const std::array<T*, count>& arrays) const {
    T* to = copy(i, count);
    for (std::size_t k = 0; k < count; ++k)
      store_packets<Packet, k_line<T>>(to + static_cast<Index>(k) * k_line<T>, Copy<T>{arrays[k] + i}, 0);
    mark(i);
  }
  /// The line from element `i`, as far as it is in the range: more than a run has left is put back as it was.
  template <std::size_t count>
  void keep_rest(Index i, const std::array<T*, count>& arrays) const {
    T* to = copy(i, count);
    const Index size = std::min(k_line<T>, end_ - i);
    for (std::size_t k = 0; k < count; ++k)
      stream(to + static_cast<Index>(k) * k_line<T>, Copy<T>{arrays[k] + i}, size);
    mark(i);
  }

 private:
  LineKeeper starting_at(Index start) const {
    LineKeeper run = *this;
    run.start_ += start;
    run.end_ -= start;
    store_in_order(*progress_, Progress::at(run.start_).word());
    return run;
  }
  /// Lines of a run use the two copies in turn.
  static bool in_second(Index i) { return i / k_line<T> % 2 != 0; }
  LOCKSTEP_ALWAYS_INLINE T* copy(Index i, std::size_t count) const {
    return copies_ + (in_second(i) ? static_cast<Index>(count) * k_line<T> : 0);
  }
  LOCKSTEP_ALWAYS_INLINE void mark(Index i) const {
    const Index position = start_ + i;
    // Tests that kill a process at each step leave most lines out.
    [[maybe_unused]] const bool is_told = position / k_line<T> % 64 < 4;
    fault_point(is_told ? "undo: copied" : "later line: copied");
    store_in_order(*progress_, Progress::line(position, in_second(i)).word());
    fault_point(is_told ? "undo: marked" : "later line: marked");
  }

  std::atomic<std::uint64_t>* progress_;
  T* copies_;
  Index start_, end_;  // of the run, counted from the item; of the item, counted from the run
};

/// A functor for `stream` whose lines are kept: what `changed()` lists, arrays that begin where the run does.
template <class T, class Functor>
class KeptFunctor : public Functor {
 public:
  KeptFunctor(const Functor& functor, const LineKeeper<T>& keeper) : Functor(functor), keeper_(keeper) {}

  /// Before elements [i, i + a line) are changed.
  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE void keep_line(Index i) const {
    keeper_.template keep_line<Packet>(i, this->changed());
  }
  /// Before the last elements from `i` on are changed.
  void keep_rest(Index i) const { keeper_.keep_rest(i, this->changed()); }

 private:
  LineKeeper<T> keeper_;
};
template <class T, class Functor>
inline constexpr bool is_streaming_functor<KeptFunctor<T, Functor>> = true;

template <class T>
template <class Functor>
auto LineKeeper<T>::over(const Functor& functor, Index start) const {
  return KeptFunctor<T, Functor>(functor, starting_at(start));
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END

namespace Eigen::internal {
template <class T, class Functor>
struct functor_traits<lockstep::detail::KeptFunctor<T, Functor>> : functor_traits<Functor> {};
template <class T, class Functor>
struct functor_has_linear_access<lockstep::detail::KeptFunctor<T, Functor>>
    : functor_has_linear_access<Functor> {};
}  // namespace Eigen::internal
