// SPDX-License-Identifier: MIT
/// @file
/// The policies for replicas that leave or die.
#pragma once

#include <lockstep/config.hpp>

#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

/// What a departure of a replica changes for the others.
enum class Departure : std::uint8_t {
  redistribute,  ///< R stays: the others make up the missing contributions, so the batch of an update keeps
                 ///< its size
  shrink,        ///< R follows those who are left
  wait,          ///< the place is kept for a replacement, up to the deadline
  fail,          ///< all others get an error that names it
  stop,          ///< training ends for all, with the same status everywhere
};

/// "redistribute", "shrink" and so on.
constexpr const char* to_string(Departure departure) {
  switch (departure) {
    case Departure::redistribute:
      return "redistribute";
    case Departure::shrink:
      return "shrink";
    case Departure::wait:
      return "wait";
    case Departure::fail:
      return "fail";
    case Departure::stop:
      return "stop";
  }
  return "?";
}

LOCKSTEP_NAMESPACE_END
