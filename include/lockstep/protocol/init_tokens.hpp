// SPDX-License-Identifier: MIT
/// @file
/// How many tokens an update gives out, and how many there are before the first update.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <algorithm>
#include <optional>

LOCKSTEP_NAMESPACE_BEGIN

namespace protocol {

/// The `num_tokens` that means: as many as `replicas_to_aggregate`.
inline constexpr Index k_default_init_tokens = -1;

/// Tokens that one update enqueues: \f$\max(R, N)\f$, where absent N is R.
constexpr Index tokens_per_step(Index replicas_to_aggregate, std::optional<Index> total_num_replicas) {
  return std::max(replicas_to_aggregate, total_num_replicas.value_or(replicas_to_aggregate));
}

/// @brief Tokens to enqueue before the first update.
///
/// N replicas can contribute once without a token, every further contribution needs one; so the first update
/// comes about only if \f$N + \mathit{num\_tokens} \ge R\f$. A negative number that passes this test adds
/// nothing.
/// @param num_tokens  `k_default_init_tokens`, or a number, which must be at least R - N.
/// @throws InvalidArgument if there are too few tokens for the first update.
/// @par Source TensorFlow `SyncReplicasOptimizer.get_init_tokens_op`.
constexpr Index init_tokens(Index replicas_to_aggregate, std::optional<Index> total_num_replicas,
                            Index num_tokens = k_default_init_tokens) {
  if (num_tokens == k_default_init_tokens) return std::max<Index>(replicas_to_aggregate, 0);
  const Index replicas = total_num_replicas.value_or(replicas_to_aggregate);
  if (num_tokens < replicas_to_aggregate - replicas)
    throw InvalidArgument(detail::text("init_tokens: num_tokens is ", num_tokens, ", but to aggregate ",
                                       replicas_to_aggregate, " replicas of ", replicas,
                                       " it must be at least ", replicas_to_aggregate - replicas));
  return std::max<Index>(num_tokens, 0);
}

}  // namespace protocol

LOCKSTEP_NAMESPACE_END
