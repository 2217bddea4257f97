// SPDX-License-Identifier: MIT
/// @file
/// The loop of this library: assigns a functor to an array, a few lines at a time.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/fetch.hpp>
#include <lockstep/gradients/pack.hpp>

#include <Eigen/Core>

#include <algorithm>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Marks the nullary functors of this library, whose assignment is the plain loop below.
template <class Functor>
inline constexpr bool is_streaming_functor = false;

/// Elements of an array of 64 KiB, which is taken to be in a cache.
template <class T>
inline constexpr Index k_cached = 65'536 / sizeof(T);
/// Lines and elements that are copied at a time where a loop may be stopped half-way (keep_lines.hpp).
inline constexpr Index k_kept_lines = 4;
template <class T>
inline constexpr Index k_kept = k_kept_lines* k_line<T>;

/// Elements [i, i + size) of a target, without a loop.
template <class Packet, Index size, class T, class Functor>
LOCKSTEP_ALWAYS_INLINE void store_packets(T* target, const Functor& functor, Index i) {
  constexpr Index lanes = Eigen::internal::unpacket_traits<Packet>::size;
#pragma GCC unroll 16
  for (Index packet = 0; packet < size; packet += lanes)
    Eigen::internal::pstoreu(target + i + packet, functor.template packetOp<Packet>(i + packet));
}

/// `to`, as the functor has it if it says what it changes: loads and stores then share a pointer.
template <class T, class Functor>
LOCKSTEP_ALWAYS_INLINE T* target_of(T* to, const Functor& functor) {
  if constexpr (requires { functor.changed(); })
    return functor.changed().front();
  else
    return to;
}

/// Assigns a functor, two cache lines at a time. Lines are unrolled, which compilers do not do by themselves
/// at -O2. The functor is copied here, so that compilers keep its parts in registers: Eigen's own loop leaves
/// it in memory on most settings, which measured 1.1x to 3.3x the time. One with `k_fetches` fetches what is
/// needed some lines later; not for short runs, unless it says that they are part of something larger. One
/// whose lines are kept (keep_lines.hpp) always does, and copies what they were before they are stored.
template <class T, class Functor>
void stream(T* to, const Functor& from, Index size) {
  using Packet = BestPacket<T>;
  constexpr Index lanes = Eigen::internal::unpacket_traits<Packet>::size;
  constexpr Index line = std::max(lanes, k_line<T>), two = 2 * line;
  const Functor functor = from;
  T* const target = target_of(to, functor);
  Index i = 0;
  if constexpr (requires { functor.keep_rest(0, 0); }) {
    static_assert(line == k_line<T>);
    for (; i + k_kept<T> <= size; i += k_kept<T>) {
      if constexpr (requires { functor.fetch(0); })
        for (Index k = 0; k < k_kept<T>; k += line) functor.fetch(i + k);
      functor.template keep_whole<Packet>(i);
      store_packets<Packet, k_kept<T>>(target, functor, i);
    }
    if (i < size) functor.keep_rest(i, size - i);
  } else if constexpr (requires { requires Functor::k_fetches; }) {
    if (size > k_cached<T> || functor.is_far())
      for (; i + two <= size; i += two) {
        functor.fetch(i);
        functor.fetch(i + line);
        store_packets<Packet, two>(target, functor, i);
      }
  }
  for (; i + two <= size; i += two) store_packets<Packet, two>(target, functor, i);
  for (; i + lanes <= size; i += lanes)
    Eigen::internal::pstoreu(target + i, functor.template packetOp<Packet>(i));
  for (; i < size; ++i) target[i] = functor(i);
}

/// What Eigen calls for such an expression. A functor with `assign(size)` has the loop in which it ends up.
template <class T, class Functor>
void assign(T* to, const Functor& from, Index size) {
  if constexpr (requires { from.assign(size); })
    from.assign(size);
  else
    stream(to, from, size);
}

/// Where nobody has to put back what a loop has changed half-way: threads die together. The other keeper is
/// in keep_lines.hpp.
struct NothingKept {
  /// The functor that does the work of `functor` from element `start` of the layout on.
  template <class Functor>
  LOCKSTEP_ALWAYS_INLINE const Functor& over(const Functor& functor, Index start) const {
    (void)start;
    return functor;
  }
  /// Calls what does the work of elements [begin, end), counted from `origin`: `f(begin, end)`.
  template <class Arrays, class F>
  LOCKSTEP_ALWAYS_INLINE void for_lines(Index begin, Index end, Index origin, const Arrays& arrays,
                                        F&& f) const {
    (void)origin, (void)arrays;
    f(begin, end);
  }
};

/// For `stream`: a copy, in a loop that is part of its caller.
template <class T>
struct Copy {
  const T* from;

  LOCKSTEP_ALWAYS_INLINE T operator()(Index i) const { return from[i]; }
  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE Packet packetOp(Index i) const {
    return Eigen::internal::ploadu<Packet>(from + i);
  }
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END

namespace Eigen::internal {
/// @cond not ours: a part of Eigen
/// `map = nullary expression of ours`: one streaming loop, chosen when it runs where that depends on the
/// sources.
template <class Target, class Functor, class Plain, class T>
requires lockstep::detail::is_streaming_functor<Functor>
struct Assignment<Target, CwiseNullaryOp<Functor, Plain>, assign_op<T, T>, Dense2Dense> {
  static void run(Target& target, const CwiseNullaryOp<Functor, Plain>& source, const assign_op<T, T>&) {
    resize_if_allowed(target, source, assign_op<T, T>());
    lockstep::detail::assign(target.data(), source.functor(), static_cast<lockstep::Index>(target.size()));
  }
};
/// @endcond
}  // namespace Eigen::internal
