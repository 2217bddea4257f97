// SPDX-License-Identifier: MIT
/// @file
/// What a state may hold that was found in memory which others can write.
#pragma once

#include <lockstep/config.hpp>

#include <cstring>

LOCKSTEP_NAMESPACE_BEGIN

namespace protocol {

/// The byte of this flag is that of `false` or `true`. Reading any other one as a `bool` is undefined.
inline bool is_bool(const bool& flag) {
  static_assert(sizeof(bool) == 1);
  unsigned char byte = 0;
  std::memcpy(&byte, &flag, 1);
  return byte <= 1;
}

}  // namespace protocol

LOCKSTEP_NAMESPACE_END
