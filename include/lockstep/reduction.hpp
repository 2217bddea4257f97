// SPDX-License-Identifier: MIT
/// @file
/// How several gradients become one: their mean or their sum.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <cstddef>
#include <string_view>

LOCKSTEP_NAMESPACE_BEGIN

/// `mean` divides the sum by the number of gradients in it, `sum` does not divide.
enum class Reduction { mean, sum };

/// "MEAN" or "SUM", as TensorFlow writes it.
constexpr const char* to_string(Reduction reduction) {
  switch (reduction) {
    case Reduction::mean:
      return "MEAN";
    case Reduction::sum:
      return "SUM";
  }
  return "?";
}

/// The reduction named `name`: MEAN or SUM, in upper or lower case.
/// @throws InvalidArgument for any other name.
/// @par Source TensorFlow's `reduction_type`, which must be upper case there.
inline Reduction parse_reduction(std::string_view name) {
  const auto is = [name](std::string_view upper) {
    if (name.size() != upper.size()) return false;
    for (std::size_t i = 0; i < name.size(); ++i) {
      const char c = name[i];
      const char raised = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
      if (raised != upper[i]) return false;
    }
    return true;
  };
  if (is("MEAN")) return Reduction::mean;
  if (is("SUM")) return Reduction::sum;
  detail::throw_error<InvalidArgument>("reduction: must be MEAN or SUM, got \"", name, "\"");
}

LOCKSTEP_NAMESPACE_END
