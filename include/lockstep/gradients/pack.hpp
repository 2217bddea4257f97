// SPDX-License-Identifier: MIT
/// @file
/// `Pack`: one SIMD register (or one scalar) of values, with the arithmetic that update rules are written in.
#pragma once

#include <lockstep/config.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <type_traits>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

template <class T>
concept Arithmetic = std::is_arithmetic_v<T>;

/// What Eigen holds large arrays in.
template <class T>
using BestPacket = typename Eigen::internal::find_best_packet<T, Eigen::Dynamic>::type;

/// Keeps a product from being contracted with a following sum, so that every compiler gives the same bits.
template <class Packet>
LOCKSTEP_ALWAYS_INLINE void keep_rounded(Packet& product) {
#if defined(__GNUC__) && defined(__x86_64__)
  asm("" : "+v"(product));
#elif defined(__GNUC__) && defined(__aarch64__)
  asm("" : "+w"(product));
#endif
}

/// Correctly rounded square root, one overload for each kind of register. Eigen's own is an approximation for
/// float.
template <class Packet>
LOCKSTEP_ALWAYS_INLINE Packet exact_sqrt(const Packet& x) {
  if constexpr (std::is_arithmetic_v<Packet>)
    return std::sqrt(x);
  else
    return Eigen::internal::psqrt(x);
}
#if defined(EIGEN_VECTORIZE_SSE)
LOCKSTEP_ALWAYS_INLINE Eigen::internal::Packet4f exact_sqrt(const Eigen::internal::Packet4f& x) {
  return _mm_sqrt_ps(x);
}
LOCKSTEP_ALWAYS_INLINE Eigen::internal::Packet2d exact_sqrt(const Eigen::internal::Packet2d& x) {
  return _mm_sqrt_pd(x);
}
#endif
#if defined(EIGEN_VECTORIZE_AVX)
LOCKSTEP_ALWAYS_INLINE Eigen::internal::Packet8f exact_sqrt(const Eigen::internal::Packet8f& x) {
  return _mm256_sqrt_ps(x);
}
LOCKSTEP_ALWAYS_INLINE Eigen::internal::Packet4d exact_sqrt(const Eigen::internal::Packet4d& x) {
  return _mm256_sqrt_pd(x);
}
#endif
#if defined(EIGEN_VECTORIZE_AVX512)
LOCKSTEP_ALWAYS_INLINE Eigen::internal::Packet16f exact_sqrt(const Eigen::internal::Packet16f& x) {
  return _mm512_sqrt_ps(x);
}
LOCKSTEP_ALWAYS_INLINE Eigen::internal::Packet8d exact_sqrt(const Eigen::internal::Packet8d& x) {
  return _mm512_sqrt_pd(x);
}
#endif

}  // namespace detail

/// One register of elements of type `T`. `Packet` is an Eigen packet of `T`, or `T` itself for a single
/// element. Operations are elementwise and correctly rounded: +, -, *, /, sqrt, square, abs, min, max, sign.
/// Scalars on either side are converted to `T` first, so a rule may use its `double` parameters as they are.
template <class T, class Packet = T>
class Pack {
 public:
  /// Type of an element.
  using Scalar = T;

  LOCKSTEP_ALWAYS_INLINE Pack() : value_(Eigen::internal::pset1<Packet>(T(0))) {}
  /// All elements are `scalar`, converted to `T`.
  template <detail::Arithmetic S>
  LOCKSTEP_ALWAYS_INLINE Pack(S scalar) : value_(Eigen::internal::pset1<Packet>(static_cast<T>(scalar))) {}
  /// The elements of a packet.
  LOCKSTEP_ALWAYS_INLINE static Pack of(const Packet& packet) { return Pack(packet, Raw{}); }
  /// Reads a register from memory, which need not be aligned.
  LOCKSTEP_ALWAYS_INLINE static Pack load(const T* from) { return of(Eigen::internal::ploadu<Packet>(from)); }
  /// Writes it to memory, which need not be aligned.
  LOCKSTEP_ALWAYS_INLINE void store(T* to) const { Eigen::internal::pstoreu(to, value_); }
  /// The Eigen packet, or the element, inside.
  LOCKSTEP_ALWAYS_INLINE const Packet& packet() const { return value_; }

  /// Elementwise sum.
  friend LOCKSTEP_ALWAYS_INLINE Pack operator+(Pack a, Pack b) {
    return of(Eigen::internal::padd(a.value_, b.value_));
  }
  /// Elementwise difference.
  friend LOCKSTEP_ALWAYS_INLINE Pack operator-(Pack a, Pack b) {
    return of(Eigen::internal::psub(a.value_, b.value_));
  }
  /// Elementwise product; not fused with what follows.
  friend LOCKSTEP_ALWAYS_INLINE Pack operator*(Pack a, Pack b) {
    Packet product = Eigen::internal::pmul(a.value_, b.value_);
    detail::keep_rounded(product);
    return of(product);
  }
  /// Elementwise quotient.
  friend LOCKSTEP_ALWAYS_INLINE Pack operator/(Pack a, Pack b) {
    return of(Eigen::internal::pdiv(a.value_, b.value_));
  }
  /// Flips the sign bit: Eigen's AVX-512 negation is 0 - x, which loses the sign of zero.
  friend LOCKSTEP_ALWAYS_INLINE Pack operator-(Pack a) {
    return of(Eigen::internal::pxor(a.value_, Eigen::internal::pset1<Packet>(T(-0.0))));
  }
  /// Elementwise, as the operator without `=`.
  LOCKSTEP_ALWAYS_INLINE Pack& operator+=(Pack b) { return *this = *this + b; }
  /// Elementwise, as the operator without `=`.
  LOCKSTEP_ALWAYS_INLINE Pack& operator-=(Pack b) { return *this = *this - b; }
  /// Elementwise, as the operator without `=`; not fused with what follows.
  LOCKSTEP_ALWAYS_INLINE Pack& operator*=(Pack b) { return *this = *this * b; }
  /// Elementwise, as the operator without `=`.
  LOCKSTEP_ALWAYS_INLINE Pack& operator/=(Pack b) { return *this = *this / b; }

  /// Correctly rounded root.
  friend LOCKSTEP_ALWAYS_INLINE Pack sqrt(Pack a) { return of(detail::exact_sqrt(a.value_)); }
  /// `a * a`.
  friend LOCKSTEP_ALWAYS_INLINE Pack square(Pack a) { return a * a; }
  /// Without sign.
  friend LOCKSTEP_ALWAYS_INLINE Pack abs(Pack a) { return of(Eigen::internal::pabs(a.value_)); }
  /// The smaller one.
  friend LOCKSTEP_ALWAYS_INLINE Pack min(Pack a, Pack b) {
    return of(Eigen::internal::pmin(a.value_, b.value_));
  }
  /// The larger one.
  friend LOCKSTEP_ALWAYS_INLINE Pack max(Pack a, Pack b) {
    return of(Eigen::internal::pmax(a.value_, b.value_));
  }
  /// -1, 0 or 1.
  friend LOCKSTEP_ALWAYS_INLINE Pack sign(Pack a) {
    const Pack one(T(1)), none(T(0));
    const Packet positive = Eigen::internal::pcmp_lt(none.value_, a.value_);
    const Packet negative = Eigen::internal::pcmp_lt(a.value_, none.value_);
    return of(Eigen::internal::psub(Eigen::internal::pand(positive, one.value_),
                                    Eigen::internal::pand(negative, one.value_)));
  }

 private:
  struct Raw {};
  LOCKSTEP_ALWAYS_INLINE Pack(const Packet& packet, Raw) : value_(packet) {}
  Packet value_;
};

LOCKSTEP_NAMESPACE_END
