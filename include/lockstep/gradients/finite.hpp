// SPDX-License-Identifier: MIT
/// @file
/// Tests and norms over a contribution or the mean of some.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/mean.hpp>
#include <lockstep/gradients/sources.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Calls `f(data, size)` for each contiguous run of present elements.
template <class G, class F>
void for_each_present(const Contribution<G>& contribution, F&& f) {
  const Layout& layout = contribution.layout();
  for (const VariableInfo& info : layout.infos()) {
    switch (contribution.presence(info.id)) {
      case Presence::absent:
        break;
      case Presence::dense:
        f(contribution.data() + info.offset, info.size);
        break;
      case Presence::rows:
        contribution.rows(info.id).for_each(
            [&](Index row) { f(contribution.row_data(info.id, row), info.row_size()); });
        break;
    }
  }
}

/// Exponent bits all ones: NaN or infinity, whatever the compiler was told about such values.
template <class G>
bool any_non_finite(const G* data, Index size) {
  using Bits = std::conditional_t<sizeof(G) == 8, std::uint64_t,
                                  std::conditional_t<sizeof(G) == 4, std::uint32_t, std::uint16_t>>;
  constexpr auto exponent = static_cast<Bits>(std::is_same_v<G, double>            ? 0x7FF0'0000'0000'0000U
                                              : std::is_same_v<G, float>           ? 0x7F80'0000U
                                              : std::is_same_v<G, Eigen::bfloat16> ? 0x7F80U
                                                                                   : 0x7C00U);
  // Blocks without a branch inside, so that the loop vectorises.
  constexpr Index block = 1024;
  for (Index start = 0; start < size; start += block) {
    const Index stop = std::min(size, start + block);
    Bits found = 0;
    for (Index i = start; i < stop; ++i)
      found |= static_cast<Bits>((std::bit_cast<Bits>(data[i]) & exponent) == exponent ? 1 : 0);
    if (found != 0) return true;
  }
  return false;
}

}  // namespace detail

/// No present element is NaN or infinite.
template <class G>
bool all_finite(const Contribution<G>& contribution) {
  bool finite = true;
  detail::for_each_present(contribution, [&](const G* data, Index size) {
    finite = finite && !detail::any_non_finite(data, size);
  });
  return finite;
}

/// Sum of squares in double, in eight interleaved sums: an order of its own that is the same on every
/// machine.
class SquareSum {
 public:
  /// Adds the squares of `at(0)` to `at(size - 1)`. @pre all sizes before are multiples of eight
  template <class At>
  void add(Index size, At&& at) {
    const Index whole = size - size % static_cast<Index>(k_lanes);
    for (Index i = 0; i < whole; i += static_cast<Index>(k_lanes))
      for (std::size_t k = 0; k < k_lanes; ++k) add_square(k, at(i + static_cast<Index>(k)));
    for (Index i = whole; i < size; ++i) add_square(static_cast<std::size_t>(i - whole), at(i));
  }
  /// The sum of all.
  double total() const {
    return ((lane_[0] + lane_[4]) + (lane_[2] + lane_[6])) + ((lane_[1] + lane_[5]) + (lane_[3] + lane_[7]));
  }

 private:
  static constexpr std::size_t k_lanes = 8;

  template <class T>
  void add_square(std::size_t lane, T value) {
    lane_[lane] += static_cast<double>(value) * static_cast<double>(value);
  }

  std::array<double, k_lanes> lane_{};
};

/// Sum of squares of all present elements, in double.
template <class G>
double squared_norm(const Contribution<G>& contribution) {
  double sum = 0;
  detail::for_each_present(contribution, [&](const G* data, Index size) {
    SquareSum squares;
    squares.add(size, [data](Index i) { return data[i]; });
    sum += squares.total();
  });
  return sum;
}

/// Sum of squares of elements [start, start + size) of the scaled sum, in double.
template <class T, class G>
double squared_norm(const Sources<T, G>& sources, Index start, Index size) {
  constexpr Index block = 1024;
  alignas(k_alignment) std::array<T, block> part;
  SquareSum squares;
  for (Index i = 0; i < size; i += block) {
    const Index count = std::min(block, size - i);
    detail::write_sum(sources, start + i, count, part.data());
    squares.add(count, [&](Index k) { return part[static_cast<std::size_t>(k)]; });
  }
  return squares.total();
}

/// What a gradient with this squared norm is multiplied with so that its norm is at most `limit`.
inline double clip_factor(double squared_norm, double limit) {
  const double norm = std::sqrt(squared_norm);
  return norm > limit ? limit / norm : 1;
}

LOCKSTEP_NAMESPACE_END
