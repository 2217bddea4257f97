// SPDX-License-Identifier: MIT
/// @file
/// Tests and norms over a contribution or the mean of some.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/mean.hpp>
#include <lockstep/gradients/pack.hpp>
#include <lockstep/gradients/register.hpp>
#include <lockstep/gradients/sources.hpp>
#include <lockstep/gradients/widen.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
  using Word = std::conditional_t<sizeof(G) == 8, std::uint64_t,
                                  std::conditional_t<sizeof(G) == 4, std::uint32_t, std::uint16_t>>;
  constexpr auto exponent = static_cast<Word>(std::is_same_v<G, double>            ? 0x7FF0'0000'0000'0000U
                                              : std::is_same_v<G, float>           ? 0x7F80'0000U
                                              : std::is_same_v<G, Eigen::bfloat16> ? 0x7F80U
                                                                                   : 0x7C00U);
  Index i = 0;
#if defined(__GNUC__)
  // Blocks without a branch inside.
  constexpr Index lanes = k_lanes<Word>, block = 32 * lanes;
  for (; i + block <= size; i += block) {
    Register<Word, k_lanes<Word>> found{}, bits;
#pragma GCC unroll 4
    for (Index k = 0; k < block; k += lanes) {
      std::memcpy(&bits, data + i + k, sizeof(bits));
      found |= (bits & exponent) == exponent;
    }
    for (std::size_t k = 0; k < k_lanes<Word>; ++k)
      if (found[k] != 0) return true;
  }
#endif
  for (; i < size; ++i)
    if ((std::bit_cast<Word>(data[i]) & exponent) == exponent) return true;
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
  /// Adds the squares of elements, shape (size,). @tparam G float or double. @pre all sizes before are
  /// multiples of eight
  template <class G>
  void add(const G* data, Index size) {
    using Packet = detail::BestPacket<double>;
    using P = Pack<double, Packet>;
    constexpr std::size_t lanes = Eigen::internal::unpacket_traits<Packet>::size, packs = k_sums / lanes;
    std::array<P, packs> pack;
    for (std::size_t k = 0; k < packs; ++k) pack[k] = P::load(&sums_[k * lanes]);
    Index i = 0;
    for (; i + static_cast<Index>(k_sums) <= size; i += static_cast<Index>(k_sums)) {
#pragma GCC unroll 8
      for (std::size_t k = 0; k < packs; ++k)
        pack[k] += square(detail::load_as<double, Packet>(data + i + static_cast<Index>(k * lanes)));
    }
    for (std::size_t k = 0; k < packs; ++k) pack[k].store(&sums_[k * lanes]);
    for (std::size_t k = 0; i < size; ++i, ++k) {
      const Pack<double> element(static_cast<double>(data[i]));
      sums_[k] += square(element).packet();
    }
  }
  /// The sum of all.
  double total() const {
    return ((sums_[0] + sums_[4]) + (sums_[2] + sums_[6])) + ((sums_[1] + sums_[5]) + (sums_[3] + sums_[7]));
  }

 private:
  static constexpr std::size_t k_sums = 8;

  std::array<double, k_sums> sums_{};
};

/// Sum of squares of elements [start, start + size) of the scaled sum, in double.
template <class T, class G>
double squared_norm(const Sources<T, G>& sources, Index start, Index size) {
  constexpr Index block = 256;  // short, so that a processor reads the next one while it squares this one
  alignas(k_alignment) std::array<T, block> part;
  SquareSum squares;
  for (Index i = 0; i < size; i += block) {
    const Index count = std::min(block, size - i);
    detail::write_sum(sources, start + i, count, part.data());
    squares.add(part.data(), count);
  }
  return squares.total();
}

/// Sum of squares of all present elements, in double.
template <class G>
double squared_norm(const Contribution<G>& contribution) {
  double sum = 0;
  detail::for_each_present(contribution, [&](const G* data, Index size) {
    if constexpr (detail::Narrow<G>) {
      Sources<float, G> floats;
      floats.add(data, 1);
      sum += squared_norm(floats, 0, size);
    } else {
      SquareSum squares;
      squares.add(data, size);
      sum += squares.total();
    }
  });
  return sum;
}

/// What a gradient with this squared norm is multiplied with so that its norm is at most `limit`.
inline double clip_factor(double squared_norm, double limit) {
  const double norm = std::sqrt(squared_norm);
  return norm > limit ? limit / norm : 1;
}

LOCKSTEP_NAMESPACE_END
