// SPDX-License-Identifier: MIT
/// @file
/// Stores that tell those who go on after a killed process how far it had come.
#pragma once

#include <lockstep/config.hpp>

#include <atomic>
#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// What a killed process has stored is what its program stored before: the compiler must keep the order.
LOCKSTEP_ALWAYS_INLINE void store_in_order(std::atomic<std::uint64_t>& word, std::uint64_t value) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  word.store(value, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
