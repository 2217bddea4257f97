// SPDX-License-Identifier: MIT
/// @file
/// Registers of the compiler, for what Eigen has no packets for: bits, and scalars of other sizes.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/pack.hpp>

#include <algorithm>
#include <cstddef>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

#if defined(__GNUC__)
template <class S, std::size_t lanes>
struct RegisterOf {
  using Type [[gnu::vector_size(lanes * sizeof(S))]] = S;
};
/// Its operators work on all elements. A comparison has all bits of an element or none.
template <class S, std::size_t lanes>
using Register = typename RegisterOf<S, lanes>::Type;

/// Elements of the registers that the processor has.
template <class S>
inline constexpr std::size_t k_lanes = std::max<std::size_t>(sizeof(BestPacket<float>), 16) / sizeof(S);
#endif

}  // namespace detail

LOCKSTEP_NAMESPACE_END
