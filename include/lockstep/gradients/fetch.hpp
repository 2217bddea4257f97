// SPDX-License-Identifier: MIT
/// @file
/// Cache lines that are brought nearer before they are needed. Nothing here changes memory. All of it is
/// inlined: g++ takes a function that only fetches for one without effect, and drops its calls.
#pragma once

#include <lockstep/config.hpp>

#include <algorithm>
#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Elements of a cache line.
template <class T>
inline constexpr Index k_line = k_alignment / sizeof(T);

/// Brings nearer a line that is going to be written.
LOCKSTEP_ALWAYS_INLINE void fetch_for_writing(const void* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address, 1);
#else
  (void)address;
#endif
}
/// The same for a line that is not written.
LOCKSTEP_ALWAYS_INLINE void fetch_for_reading(const void* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address, 0);
#else
  (void)address;
#endif
}
/// The address of an element that may lie outside the array, only to be brought nearer.
template <class T>
LOCKSTEP_ALWAYS_INLINE const void* address_of(const T* array, Index element) {
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(array) +
                                       static_cast<std::uintptr_t>(element) * sizeof(T));
}

/// Brings nearer a row of a table, of a long row the first lines: rows lie far apart, so nothing else tells
/// the processor which comes next.
template <bool is_written, class T>
LOCKSTEP_ALWAYS_INLINE void fetch_elements(const T* row, Index size) {
  const Index end = std::min(size, 16 * k_line<T>);
  for (Index i = 0; i < end; i += k_line<T>)
    if constexpr (is_written)
      fetch_for_writing(row + i);
    else
      fetch_for_reading(row + i);
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
