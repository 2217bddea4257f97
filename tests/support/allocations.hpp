// SPDX-License-Identifier: MIT
/// @file
/// Counts heap allocations, for tests of what must not allocate. Needs support/allocations.cpp in the
/// program.
#pragma once

#include <cstdint>

namespace lockstep::test {

/// Calls of operator new so far by the calling thread.
std::uint64_t allocations();

}  // namespace lockstep::test
