// SPDX-License-Identifier: MIT
/// @file
/// One replica number, as the round knows it.
#pragma once

#include <lockstep/config.hpp>

#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

namespace protocol {

/// Whether somebody sits at a place. `vacant` places are still expected to join.
enum class Seat : std::uint8_t { vacant, active, left, dead };

/// What became of a contribution; docs/protocol.md says in which order the questions are asked.
enum class Verdict : std::uint8_t { accepted, stale, not_needed, old_generation };

/// Contributions of a place, by what became of them. `last_arrivals` counts rounds that it was the last to
/// complete.
struct Counters {
  std::int64_t accepted = 0, stale = 0, not_needed = 0, skipped = 0, last_arrivals = 0;
};

/// No slot of this place belongs to the open round.
inline constexpr std::int8_t k_unpublished = -1;

/// What the round knows of one replica number. Outlives the replicas that sit there one after the other.
struct Place {
  /// Whether somebody sits there.
  Seat seat = Seat::vacant;
  std::int8_t published = k_unpublished;  ///< slot that belongs to the open round
  std::int8_t replaced = k_unpublished;   ///< the one before the last contribution
  bool can_withdraw = false;              ///< its last contribution, which nobody has built on
  bool last_poisons = false;              ///< that contribution is poisoning
  std::int64_t last_batches = 0;          ///< of that contribution
  std::uint32_t incarnation = 0;          ///< counts joins
  std::int32_t quota = 0;                 ///< contributions it may make to the open round
  std::int32_t tokens = 0;                ///< of these, by spare tokens
  std::int32_t served = 0;                ///< of the quota, accepted
  std::int32_t poisons = 0;               ///< of those accepted, poisoning
  std::int32_t left_out = 0;              ///< of those accepted, without a slot and doing no harm
  std::int32_t holds = 0;                 ///< as a reader
  std::int64_t local_step = 0;            ///< step whose variables it computes with
  /// Generation of the variables it computes with.
  std::int64_t local_generation = 0;
  std::int64_t sequence = 0;  ///< batches in accepted contributions of all incarnations
  /// Over all who sat there.
  Counters counters;
};

}  // namespace protocol

LOCKSTEP_NAMESPACE_END
