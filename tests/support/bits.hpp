// SPDX-License-Identifier: MIT
/// @file
/// Comparison that tells -0 from 0 and takes a NaN for equal to itself.
#pragma once

#include <cstring>
#include <vector>

namespace lockstep::test {

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace lockstep::test
