// SPDX-License-Identifier: MIT
/// @file
/// Counts heap allocations, for tests of what must not allocate, and makes them fail. Needs
/// support/allocations.cpp in the program.
#pragma once

#include <cstdint>

namespace lockstep::test {

/// Calls of operator new so far by the calling thread.
std::uint64_t allocations();

/// Whether they are counted and can fail here.
bool are_allocations_counted();

/// While it lives, one call of operator new by its thread fails: the n-th from its start, counted from 1.
class FailingAllocation {
 public:
  explicit FailingAllocation(std::uint64_t n);
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;
  ~FailingAllocation();
};

}  // namespace lockstep::test
