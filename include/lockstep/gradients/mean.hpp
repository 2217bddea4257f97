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

#include <array>
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

/// Writes elements [start, start + size) of the scaled sum of `sources` to `to`, shape (size,).
template <class T, class G, class Keeper = NothingKept>
void write_sum(const Sources<T, G>& sources, Index start, Index size, T* to, const Keeper& keeper = {}) {
  with_sum(sources, start, [&](const auto& sum) {
    const SumInto<T, std::remove_cvref_t<decltype(sum)>> functor{{sum, sources.scale}, to};
    stream(to, keeper.over(functor, start), size);
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
