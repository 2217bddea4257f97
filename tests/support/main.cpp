// SPDX-License-Identifier: MIT
/// @file
/// Ends each test program's output with the line `test cases: N passed, N failed, N skipped`, which
/// scripts/tally.py reads. Catch2 calls this listener after a fatal signal too, so that a crash still names
/// and counts its test case. main() itself comes from Catch2's library, or from this file where
/// CATCH_CONFIG_MAIN is defined.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include "support/catch.hpp"

#include <cstddef>
#include <iostream>

namespace {

#if __has_include(<catch2/catch_all.hpp>)
using ListenerBase = Catch::EventListenerBase;
#else
using ListenerBase = Catch::TestEventListenerBase;
#endif

std::size_t skipped_in(const auto& test_cases) {
  if constexpr (requires { test_cases.skipped; }) {
    return static_cast<std::size_t>(test_cases.skipped);
  } else {
    return 0;
  }
}

class Tally : public ListenerBase {
 public:
  using ListenerBase::ListenerBase;

#if !__has_include(<catch2/catch_all.hpp>)
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ListenerBase::testCaseEnded(stats);
    if (lockstep::test::skip_requested) emulated_skips_ += stats.totals.testCases.passed;
    lockstep::test::skip_requested = false;
  }
#endif

  void testRunEnded(const Catch::TestRunStats& stats) override {
    const auto& cases = stats.totals.testCases;
    std::cout << "test cases: " << cases.passed + cases.failedButOk - emulated_skips_ << " passed, "
              << cases.failed << " failed, " << skipped_in(cases) + emulated_skips_ << " skipped"
              << std::endl;
    ListenerBase::testRunEnded(stats);
  }

 private:
  std::size_t emulated_skips_ = 0;  // version 2 counts them as passed
};

}  // namespace

CATCH_REGISTER_LISTENER(Tally)
