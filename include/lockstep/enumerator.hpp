// SPDX-License-Identifier: MIT
/// @file
/// The check of options that are enumerators.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <cstdint>
#include <type_traits>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// @param last the last enumerator: they count from 0.
/// @throws InvalidArgument for a number that was cast and is none of them.
template <class E>
requires std::is_enum_v<E>
void expect_enumerator(const char* option, E value, E last) {
  const auto number = static_cast<std::int64_t>(value), most = static_cast<std::int64_t>(last);
  if (number < 0 || number > most)
    throw_error<InvalidArgument>(option, ": must be an enumerator, 0 to ", most, ", got ", number);
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
