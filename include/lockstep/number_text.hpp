// SPDX-License-Identifier: MIT
/// @file
/// Numbers as text that another process reads or compares.
#pragma once

#include <lockstep/config.hpp>

#include <array>
#include <charconv>
#include <string>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// The shortest text from which the same bits are read, whatever the locale.
template <class Number>
std::string number_text(Number number) {
  std::array<char, 40> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  return {buffer.data(), result.ptr};
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
