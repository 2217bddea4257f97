// SPDX-License-Identifier: MIT
/// @file
/// The one include for Catch2 in tests: version 2 and version 3 look the same behind it.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)

#include <catch2/catch_all.hpp>

using Catch::Approx;

#else

#include <catch2/catch.hpp>

#include <string>

namespace Catch::Matchers {
/// The name that version 3 gives to `Contains` for strings.
inline auto ContainsSubstring(const std::string& text,
                              CaseSensitive::Choice sensitivity = CaseSensitive::Yes) {
  return Contains(text, sensitivity);
}
}  // namespace Catch::Matchers

namespace lockstep::test {
/// Set by SKIP, read and cleared by the tally in main.cpp at the end of each test case.
inline bool skip_requested = false;
}  // namespace lockstep::test

/// As in version 3: ends the test case, which counts as skipped and not as passed. On the main thread only.
#define SKIP(reason)                       \
  do {                                     \
    lockstep::test::skip_requested = true; \
    WARN("skipped: " << reason);           \
    throw Catch::TestFailureException{};   \
  } while (false)

#endif
