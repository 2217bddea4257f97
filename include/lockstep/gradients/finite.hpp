// SPDX-License-Identifier: MIT
/// @file
/// Tests and norms over one contribution.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>

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

/// Sum of squares of `at(0)` to `at(size - 1)` in double, in eight interleaved sums: an order of its own that
/// is the same on every machine.
template <class At>
double sum_of_squares(Index size, At&& at) {
  constexpr std::size_t lanes = 8;
  std::array<double, lanes> lane{};
  const Index whole = size - size % static_cast<Index>(lanes);
  for (Index i = 0; i < whole; i += static_cast<Index>(lanes))
    for (std::size_t k = 0; k < lanes; ++k) {
      const auto value = static_cast<double>(at(i + static_cast<Index>(k)));
      lane[k] += value * value;
    }
  for (Index i = whole; i < size; ++i) {
    const auto value = static_cast<double>(at(i));
    lane[static_cast<std::size_t>(i - whole)] += value * value;
  }
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/// Sum of squares of all present elements, in double.
template <class G>
double squared_norm(const Contribution<G>& contribution) {
  double sum = 0;
  detail::for_each_present(contribution, [&](const G* data, Index size) {
    sum += sum_of_squares(size, [data](Index i) { return static_cast<double>(data[i]); });
  });
  return sum;
}

/// What a gradient with this squared norm is multiplied with so that its norm is at most `limit`.
inline double clip_factor(double squared_norm, double limit) {
  const double norm = std::sqrt(squared_norm);
  return norm > limit ? limit / norm : 1;
}

LOCKSTEP_NAMESPACE_END
