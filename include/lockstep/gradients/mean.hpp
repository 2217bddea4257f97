// SPDX-License-Identifier: MIT
/// @file
/// The weighted mean of contributions as an Eigen expression that is never materialised.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/pack.hpp>
#include <lockstep/gradients/sources.hpp>
#include <lockstep/gradients/stream.hpp>
#include <lockstep/gradients/sum.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Nullary functor of Eigen: the scaled sum at an index.
template <class T, class Sum>
struct MeanFunctor {
  Sum sum;
  T scale;

  LOCKSTEP_ALWAYS_INLINE T operator()(Eigen::Index i) const {
    return (sum.template at<T>(i) * Pack<T>(scale)).packet();
  }
  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE Packet packetOp(Eigen::Index i) const {
    return (sum.template at<Packet>(i) * Pack<T, Packet>(scale)).packet();
  }
};
template <class T, class Sum>
inline constexpr bool is_streaming_functor<MeanFunctor<T, Sum>> = true;

/// The same with the array that it is written to.
template <class T, class Sum>
struct SumInto : MeanFunctor<T, Sum> {
  T* target;  // of the first index
  LOCKSTEP_ALWAYS_INLINE std::array<T*, 1> changed() const { return {target}; }
};

}  // namespace detail

/// The mean over elements [start, start + size) as an Eigen expression, shape (size,), with packet access.
/// Called with the expression, because its type depends on the number of sources.
template <class T, class G, class F>
void with_mean(const Sources<T, G>& sources, Index start, Index size, F&& f) {
  detail::with_sum(sources, start, [&](auto sum) {
    using Functor = detail::MeanFunctor<T, decltype(sum)>;
    f(Eigen::Array<T, Eigen::Dynamic, 1>::NullaryExpr(size, Functor{sum, sources.scale}));
  });
}

namespace detail {

template <class T, class G, class Keeper = NothingKept>
void write_sum(const Sources<T, G>& sources, Index start, Index size, T* to, const Keeper& keeper = {});

/// A few sources with the same sum as all from element `start` on: the first ones are added up in `part`,
/// shape (size,). Positions of what is returned count from `start`.
template <class T, class G>
Sources<T, G> add_first(const Sources<T, G>& sources, Index start, Index size, T* part) {
  Sources<T, G> few;
  const auto begin_with = [&few](const T* sum) {
    few.clear();
    if constexpr (std::same_as<T, G>)
      few.add(sum, 1);
    else
      few.wide = sum;
  };
  if (sources.wide) begin_with(sources.wide + start);
  for (std::size_t k = 0; k < static_cast<std::size_t>(sources.count); ++k) {
    if (few.count == static_cast<int>(k_register_sources)) {
      write_sum(few, 0, size, part);
      begin_with(part);
    }
    few.add(sources.data[k] + start, sources.coefficient[k]);
  }
  return few;
}

/// Elements of which many sources are added up at a time: 16 KiB, half of a first-level cache.
template <class T>
inline constexpr Index k_part = 16'384 / sizeof(T);

/// Calls `call(few, 0, i, count)` for one part of the range after the other. Apart, so that whoever has few
/// sources needs no room for a part.
template <class T, class G, class Call>
[[gnu::noinline]] void in_parts(const Sources<T, G>& sources, Index start, Index size, const Call& call) {
  alignas(k_alignment) std::array<T, k_part<T>> part;
  for (Index i = 0; i < size; i += k_part<T>) {
    const Index count = std::min(k_part<T>, size - i);
    call(add_first(sources, start + i, count, part.data()), 0, i, count);
  }
}

/// Calls `f(sum, i, count)` with kernels for `count` elements from element `start + i` on: for all at once if
/// the sources are few, otherwise for one part after the other, because a processor has a limited number of
/// registers and follows a limited number of arrays (docs/design/006).
template <class T, class G, class F>
void for_sums(const Sources<T, G>& sources, Index start, Index size, F&& f) {
  // The only place that has the kernels with this function.
  const auto call = [&f](const Sources<T, G>& few, Index first, Index i, Index count) {
    with_few(few, first, [&](const auto& sum) { f(sum, i, count); });
  };
  if (are_few(sources))
    call(sources, start, 0, size);
  else
    in_parts(sources, start, size, call);
}

/// Writes elements [start, start + size) of the scaled sum of `sources` to `to`, shape (size,).
template <class T, class G, class Keeper>
void write_sum(const Sources<T, G>& sources, Index start, Index size, T* to, const Keeper& keeper) {
  for_sums(sources, start, size, [&](const auto& sum, Index i, Index count) {
    const SumInto<T, std::remove_cvref_t<decltype(sum)>> functor{{sum, sources.scale}, to + i};
    stream(to + i, keeper.over(functor, start + i), count);
  });
}

}  // namespace detail

/// Writes the scaled sum of `sources` to elements [start, start + size) of `target`, which may be one of the
/// sources. @param keeper copies lines before they are changed, where somebody may have to put it back.
template <class T, class G, class Keeper = detail::NothingKept>
void sum_elements(const Sources<T, G>& sources, T* target, Index start, Index size,
                  const Keeper& keeper = {}) {
  detail::write_sum(sources, start, size, target + start, keeper);
}

LOCKSTEP_NAMESPACE_END

namespace Eigen::internal {
template <class T, class Sum>
struct functor_traits<lockstep::detail::MeanFunctor<T, Sum>> {
  enum { Cost = 10, PacketAccess = packet_traits<T>::Vectorizable, IsRepeatable = true };
};
template <class T, class Sum>
struct functor_has_linear_access<lockstep::detail::MeanFunctor<T, Sum>> {
  enum { ret = 1 };
};
}  // namespace Eigen::internal
