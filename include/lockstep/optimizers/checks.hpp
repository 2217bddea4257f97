// SPDX-License-Identifier: MIT
/// @file
/// Range checks of rule options, in one wording.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <cmath>
#include <string_view>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

// Every condition is written so that NaN fails it.

inline void expect_option(bool holds, std::string_view rule, std::string_view option, std::string_view range,
                          double value) {
  if (!holds) throw_error<InvalidArgument>(rule, ": ", option, " must be ", range, ", got ", value);
}

inline void expect_below_one(std::string_view rule, std::string_view option, double value) {
  expect_option(value >= 0 && value < 1, rule, option, "in [0, 1)", value);
}

inline void expect_at_most_one(std::string_view rule, std::string_view option, double value) {
  expect_option(value >= 0 && value <= 1, rule, option, "in [0, 1]", value);
}

inline void expect_not_negative(std::string_view rule, std::string_view option, double value) {
  expect_option(value >= 0 && std::isfinite(value), rule, option, "finite and at least 0", value);
}

inline void expect_positive(std::string_view rule, std::string_view option, double value) {
  expect_option(value > 0 && std::isfinite(value), rule, option, "finite and greater than 0", value);
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
