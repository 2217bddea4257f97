// SPDX-License-Identifier: MIT
/// @file
/// What a chief is told.
#pragma once

#include <lockstep/config.hpp>

#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

/// What `init_chief` has done.
struct ChiefInit {
  Index tokens_added;        ///< tokens put into the queue
  bool step_went_backwards;  ///< some accumulator was ahead of the global step
};

/// An update as the chief sees it.
struct VariableUpdate {
  std::int64_t global_step;  ///< after the update
  Index tokens_added;        ///< tokens put into the queue
};

LOCKSTEP_NAMESPACE_END
