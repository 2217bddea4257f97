// SPDX-License-Identifier: MIT
/// @file
/// The floating-point mode of an update: the same in whichever thread runs it.
#pragma once

#include <lockstep/config.hpp>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

LOCKSTEP_NAMESPACE_BEGIN

/// Rounds to nearest and keeps denormals while it lives, then restores the mode of the thread. A user program
/// that flushes denormals in one replica would otherwise change the bits of the tiles that this replica does.
class FloatEnvironment {
 public:
#if defined(__SSE__)
  FloatEnvironment() : before_(_mm_getcsr()) {
    if (differs()) _mm_setcsr(k_default);
  }
  ~FloatEnvironment() {
    if (differs()) _mm_setcsr(before_);
  }

 private:
  /// Writing the register stops the processor for a while, so it is only written where there is a difference.
  bool differs() const { return (before_ & ~k_flags) != k_default; }

  static constexpr unsigned k_default = 0x1F80;  // all exceptions masked, nearest, no flush to zero
  static constexpr unsigned k_flags = 0x3F;      // exceptions that have happened
  unsigned before_;
#elif defined(__aarch64__)
  FloatEnvironment() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" ::"r"(std::uint64_t{0}));
  }
  ~FloatEnvironment() { asm volatile("msr fpcr, %0" ::"r"(before_)); }

 private:
  std::uint64_t before_;
#else
  FloatEnvironment() {}
#endif

 public:
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;
};

LOCKSTEP_NAMESPACE_END
