// SPDX-License-Identifier: MIT
/// @file
/// Numbered places at which a test can kill the process. Nothing in any other program.
#pragma once

#include <lockstep/config.hpp>

#if defined(LOCKSTEP_FAULT_POINTS)
/// Defined by the test program: may end the process.
void lockstep_fault_point(const char* name);
#endif

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

LOCKSTEP_ALWAYS_INLINE void fault_point([[maybe_unused]] const char* name) {
#if defined(LOCKSTEP_FAULT_POINTS)
  ::lockstep_fault_point(name);
#endif
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
