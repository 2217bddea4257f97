// SPDX-License-Identifier: MIT
/// @file
/// The transport of a test between threads, which support/over_shared_memory.hpp exchanges for a segment.
#pragma once

#include <lockstep/transport/in_process.hpp>

namespace lockstep::test {

#if defined(LOCKSTEP_TEST_OVER_SHARED_MEMORY)
using ThreadNet = InSegment;
#else
using ThreadNet = InProcess;
#endif

}  // namespace lockstep::test
