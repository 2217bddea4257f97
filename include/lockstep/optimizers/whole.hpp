// SPDX-License-Identifier: MIT
/// @file
/// Loops over a whole variable, for rules that need a norm: the same bits for every register width and
/// compiler.
#pragma once

#include <lockstep/optimizers/rule.hpp>

#include <Eigen/Core>

#include <array>
#include <cmath>
#include <cstddef>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// One register of `T`.
template <class T>
using BestPack = Pack<T, BestPacket<T>>;
template <class T>
inline constexpr Index k_pack_size = Eigen::internal::unpacket_traits<BestPacket<T>>::size;
/// Elements of one alignment unit: whole variables are made of these, padding included.
template <class T>
inline constexpr Index k_unit = static_cast<Index>(k_alignment / sizeof(T));

/// Sum of squares in double, in eight interleaved partial sums that are added pairwise at the end. The order
/// is part of the type, not of the machine, and a square of a float is exact, so no build gives other bits.
class SumOfSquares {
 public:
  /// Adds the squares of `k_unit<T>` elements.
  template <class T>
  LOCKSTEP_ALWAYS_INLINE void add(const T* unit) {
    for (Index i = 0; i < k_unit<T>; i += k_lanes) {
      alignas(k_alignment) std::array<double, k_lanes> wide;
      for (std::size_t lane = 0; lane < k_lanes; ++lane)
        wide[lane] = static_cast<double>(unit[static_cast<std::size_t>(i) + lane]);
      for (Index part = 0; part < k_parts; ++part)
        sums_[static_cast<std::size_t>(part)] += square(BestPack<double>::load(wide.data() + part * k_width));
    }
  }

  double norm() const {
    std::array<double, k_lanes> lanes;
    for (Index part = 0; part < k_parts; ++part)
      sums_[static_cast<std::size_t>(part)].store(lanes.data() + part * k_width);
    return std::sqrt(((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                     ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7])));
  }

 private:
  static constexpr Index k_lanes = 8;
  static constexpr Index k_width = k_pack_size<double>;
  static constexpr Index k_parts = k_lanes / k_width;
  std::array<BestPack<double>, static_cast<std::size_t>(k_parts)> sums_{};
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
