// SPDX-License-Identifier: MIT
/// @file
/// Reads scalars as wider ones, a register at a time. Eigen converts 16 bits one by one on plain x86-64, and
/// to double everywhere.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/pack.hpp>
#include <lockstep/gradients/register.hpp>

#include <Eigen/Core>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

#if defined(__GNUC__)
template <std::size_t lanes>
using Halves = Register<std::uint16_t, lanes>;
template <std::size_t lanes>
using Words = Register<std::uint32_t, lanes>;
template <std::size_t lanes>
using Floats = Register<float, lanes>;

/// The upper half of a float.
template <std::size_t lanes>
LOCKSTEP_ALWAYS_INLINE void widen(const Halves<lanes>& narrow, Eigen::bfloat16, Floats<lanes>& to) {
  to = std::bit_cast<Floats<lanes>>(__builtin_convertvector(narrow, Words<lanes>) << 16);
}

/// Exponents of half are five bits with bias 15, those of float eight with bias 127. What has exponent 0 is
/// the distance from the smallest number with exponent 1.
template <std::size_t lanes>
LOCKSTEP_ALWAYS_INLINE void widen(const Halves<lanes>& narrow, Eigen::half, Floats<lanes>& to) {
#if defined(__F16C__) && defined(EIGEN_VECTORIZE_AVX)
  if constexpr (lanes == 4)
    to = std::bit_cast<Floats<4>>(_mm_cvtph_ps(_mm_cvtsi64_si128(std::bit_cast<std::int64_t>(narrow))));
  else if constexpr (lanes == 8)
    to = std::bit_cast<Floats<8>>(_mm256_cvtph_ps(std::bit_cast<__m128i>(narrow)));
  else
    to = std::bit_cast<Floats<16>>(_mm512_maskz_cvtph_ps(0xFFFF, std::bit_cast<__m256i>(narrow)));
#else
  using Word = Words<lanes>;
  constexpr std::uint32_t exponent_one = 1U << 23, all_ones = 0x1FU << 23;
  const Word bits = __builtin_convertvector(narrow, Word);
  const Word shifted = (bits & 0x7FFFU) << 13;
  const Word is_special = std::bit_cast<Word>((shifted & all_ones) == all_ones);  // infinite, or no number
  const Word is_small = std::bit_cast<Word>((shifted & all_ones) == 0U);
  const Word number = shifted + (127U - 15U) * exponent_one + (is_special & (128U - 16U) * exponent_one);
  const Word origin = Word{} + (127U - 15U + 1U) * exponent_one;
  const auto small =
      std::bit_cast<Floats<lanes>>(number + exponent_one) - std::bit_cast<Floats<lanes>>(origin);
  to = std::bit_cast<Floats<lanes>>((number & ~is_small) | (std::bit_cast<Word>(small) & is_small) |
                                    (bits & 0x8000U) << 16);
#endif
}

/// The same numbers as `T`.
template <class T, class From>
LOCKSTEP_ALWAYS_INLINE auto converted(const From& floats) {
#if defined(EIGEN_VECTORIZE_SSE)
  // g++ converts two floats one after the other.
  if constexpr (std::same_as<T, double> && sizeof(From) == 2 * sizeof(float))
    return _mm_cvtps_pd(_mm_castpd_ps(_mm_set_sd(std::bit_cast<double>(floats))));
  else
#endif
    return __builtin_convertvector(floats, Register<T, sizeof(From) / sizeof(float)>);
}
#endif

/// Scalars of 16 bits that there is a conversion of whole registers for.
template <class G>
concept Narrow = std::same_as<G, Eigen::half> || std::same_as<G, Eigen::bfloat16>;

/// A register of scalars, each converted to `T` exactly. @tparam G `T`, 16 bits, or float where `T` is
/// double.
template <class T, class Packet, class G>
LOCKSTEP_ALWAYS_INLINE Pack<T, Packet> load_as(const G* from) {
  if constexpr (std::same_as<T, G>) {
    return Pack<T, Packet>::load(from);
  } else if constexpr (std::same_as<T, Packet>) {
    return Pack<T>(static_cast<T>(*from));
  } else {
    constexpr std::size_t lanes = Eigen::internal::unpacket_traits<Packet>::size;
#if defined(__GNUC__)
    Floats<lanes> floats;
    if constexpr (Narrow<G>) {
      Halves<lanes> narrow;
      std::memcpy(&narrow, from, sizeof(narrow));
      widen<lanes>(narrow, G(), floats);
    } else {
      static_assert(std::same_as<G, float>);
      std::memcpy(&floats, from, sizeof(floats));
    }
    return Pack<T, Packet>::of(std::bit_cast<Packet>(converted<T>(floats)));
#else
    alignas(k_alignment) T lane[lanes];
    for (std::size_t i = 0; i < lanes; ++i) lane[i] = static_cast<T>(from[i]);
    return Pack<T, Packet>::load(lane);
#endif
  }
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
