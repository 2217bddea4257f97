// SPDX-License-Identifier: MIT
/// @file
/// A contribution on its way into a round.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/finite.hpp>
#include <lockstep/optimizers/float_environment.hpp>
#include <lockstep/protocol/place.hpp>
#include <lockstep/sync/options.hpp>

#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// What became of a contribution whose caller does not know it yet.
enum class Pending : std::uint8_t {
  nothing,
  offer,    ///< it has not reached the round
  refusal,  ///< the round has not taken it, and the replica may not go on yet
  outcome   ///< it is in the round
};

/// What a replica offers to the round; the same until it is taken or refused.
struct Offer {
  std::int64_t batches = 1;
  bool is_finite = true;        ///< otherwise it only takes part
  bool poisons = false;         ///< the round must not change anything because of it
  bool flush = false;           ///< it asks to close the window
  std::int64_t merged_in = -1;  ///< round whose published contribution has been merged into this one
};

/// Tests and clips a contribution, as the options say: once, before it is offered.
template <class G>
Offer prepare_offer(Contribution<G>& staged, NonFinite policy, double clip_contribution_norm) {
  ContributionHeader& header = staged.header();
  header.merged = 1;  // however many micro-batches are in it
  Offer offer{.is_finite = policy == NonFinite::propagate || all_finite(staged)};
  offer.poisons = !offer.is_finite && policy == NonFinite::skip_update;
  if (offer.is_finite && clip_contribution_norm > 0) {
    const FloatEnvironment same_everywhere;
    const double mean =
        header.unit / header.total;  // times the data: the gradient that this contribution stands for
    header.unit *= clip_factor(squared_norm(staged) * mean * mean, clip_contribution_norm);
  }
  return offer;
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
