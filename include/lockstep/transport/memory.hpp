// SPDX-License-Identifier: MIT
/// @file
/// Zeroed, aligned memory of one process, and a cursor that lays out typed arrays in a block of bytes.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/transport/large_pages.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {
/// Most bytes of one part of a session: more than any memory has.
inline constexpr std::uint64_t k_most_session_bytes = std::uint64_t{1} << 46;
/// Bytes of a page.
inline constexpr std::size_t k_page = 4096;
}  // namespace detail

/// `bytes` zeroed bytes on a 64-byte boundary. Pages that nobody touches cost no physical memory. Blocks of
/// 64 MiB and more are on large pages where the system gives them to those who ask, because rows that are far
/// apart would miss the translation buffer on small ones.
class ZeroedMemory {
 public:
  /// @throws SystemError if there is no memory.
  explicit ZeroedMemory(std::size_t bytes) : bytes_(bytes) {
    const bool is_large = bytes >= k_large_block;
    const std::size_t boundary = is_large ? detail::k_large_page : k_alignment;
    raw_.reset(std::calloc(bytes + boundary, 1));
    if (!raw_) throw SystemError(detail::text("memory: cannot allocate ", bytes, " bytes"));
    start_ = static_cast<std::byte*>(raw_.get()) + detail::bytes_to(boundary, raw_.get());
    if (is_large) detail::ask_for_large_pages(start_, bytes);
  }
  /// All of it.
  std::span<std::byte> bytes() { return {start_, bytes_}; }

 private:
  static constexpr std::size_t k_large_block = 32 * detail::k_large_page;

  struct Free {
    void operator()(void* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<void, Free> raw_;
  std::byte* start_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Lays out arrays one after the other, each on a 64-byte boundary. Run once over a null base to learn the
/// size, then over the memory itself to get the pointers: both runs make the same sequence of calls.
class Carver {
 public:
  /// Over the memory itself, or over null to count only.
  explicit Carver(std::byte* base = nullptr) : base_(reinterpret_cast<std::uintptr_t>(base)) {}

  /// The next `count` elements. Over null the result must not be used.
  template <class T>
  T* array(std::size_t count) {
    // In integers, so that a run over a null base computes addresses that nobody uses instead of branching.
    const std::uintptr_t at = base_ + used_;
    used_ += (count * sizeof(T) + k_alignment - 1) / k_alignment * k_alignment;
    return reinterpret_cast<T*>(at);
  }
  /// What comes next shares no page with what came before. Processors fetch the lines of a page ahead, also
  /// those that another core is writing, which then has to get them back.
  void next_page() { used_ += detail::k_page; }
  /// Bytes laid out so far, with their padding.
  std::size_t used() const { return used_; }

 private:
  std::uintptr_t base_;
  std::size_t used_ = 0;
};

LOCKSTEP_NAMESPACE_END
