// SPDX-License-Identifier: MIT
/// @file
/// Wishes for large pages: a processor looks up fewer of them, and touching new memory takes fewer faults.
/// All of it works without them as well.
#pragma once

#include <lockstep/config.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

inline constexpr std::size_t k_large_page = std::size_t{2} << 20;

/// Bytes from an address to the next multiple of `boundary`.
inline std::size_t bytes_to(std::size_t boundary, const void* address) {
  return (boundary - reinterpret_cast<std::uintptr_t>(address) % boundary) % boundary;
}

/// Private memory that nobody has touched, from the boundary of a large page on.
inline void ask_for_large_pages([[maybe_unused]] std::byte* start, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
  ::madvise(start, bytes / k_large_page * k_large_page, MADV_HUGEPAGE);
#endif
}

#if defined(__linux__)

/// Where a mapping of so many bytes has room from the boundary of a large page on. A hint: another thread may
/// take the place. Null if there is none, and for what is smaller than a large page.
inline void* room_for_large_pages(std::size_t bytes) {
  if (bytes < k_large_page) return nullptr;
  const std::size_t room = bytes + k_large_page;
  void* const hole = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (hole == MAP_FAILED) return nullptr;
  ::munmap(hole, room);
  return static_cast<std::byte*>(hole) + bytes_to(k_large_page, hole);
}

/// Moves the pages of a file in memory, mapped from the boundary of a large page on, to large ones; others
/// may use them meanwhile. Ends at the moment `end`, or when the system has no more.
inline void move_to_large_pages(std::byte* start, std::size_t bytes,
                                std::chrono::steady_clock::time_point end) {
#if defined(MADV_COLLAPSE)
  constexpr int k_collapse = MADV_COLLAPSE;
#else
  constexpr int k_collapse = 25;  // MADV_COLLAPSE of Linux 6.1, which older C libraries do not name
#endif
  std::size_t left = bytes / k_large_page * k_large_page;
  while (left > 0 && std::chrono::steady_clock::now() < end) {
    const std::size_t piece = std::min(left, 8 * k_large_page);
    if (::madvise(start, piece, k_collapse) != 0 && errno != EAGAIN) return;
    start += piece;
    left -= piece;
  }
}

#endif  // Linux

}  // namespace detail

LOCKSTEP_NAMESPACE_END
