// SPDX-License-Identifier: MIT
/// @file
/// What the replicas of a trainer agree on, what they read without agreeing, and what each needs of its own.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/runs.hpp>
#include <lockstep/optimizers/updater.hpp>
#include <lockstep/protocol/round.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// What became of one round.
struct Outcome {
  int contributions = 0;
  int culprit = -1;
  bool applied = true;
  bool skipped = false;
  bool restored = false;  ///< given up because of a restore

  std::uint64_t packed(std::int64_t round) const {
    const auto flags = static_cast<std::uint64_t>(applied) | static_cast<std::uint64_t>(skipped) << 1 |
                       static_cast<std::uint64_t>(restored) << 2;
    return static_cast<std::uint64_t>(round + 1) << 32 | flags << 28 |
           static_cast<std::uint64_t>(culprit + 1) << 16 | static_cast<std::uint64_t>(contributions);
  }
  /// Unknown outcomes, of rounds too long ago, read as applied with no count.
  static Outcome unpacked(std::uint64_t word, std::int64_t round) {
    if (word >> 32 != static_cast<std::uint32_t>(round + 1)) return {};
    return {.contributions = static_cast<int>(word & 0xFFFF),
            .culprit = static_cast<int>(word >> 16 & 0xFFF) - 1,
            .applied = (word >> 28 & 1) != 0,
            .skipped = (word >> 29 & 1) != 0,
            .restored = (word >> 30 & 1) != 0};
  }
};

/// What those who wait for a commit read without exclusion. Written inside it, before the progress word is
/// bumped.
struct alignas(k_alignment) Board {
  /// Of the last rounds, by round modulo their number; a word carries the low half of its round, so an old
  /// one is known.
  std::array<std::atomic<std::uint64_t>, 16> outcomes{};
  std::atomic<std::int64_t> round{0};       ///< id of the open round
  std::atomic<std::int64_t> round_step{0};  ///< updates applied, as rounds label gradients
  std::atomic<std::int64_t> step{0};        ///< global step, as the optimizer counts it
  std::atomic<std::int64_t> generation{0};
};

/// Everything that replicas agree on: a trivially copyable value under the transport's mutual exclusion.
struct Control {
  protocol::Round round;
  UpdaterState updater;
  UpdatePlan plan;
  double clip_factor = 1;
  std::uint64_t stage = 0;    ///< one number per pass over the items, never reused
  bool measures = false;      ///< the open stage sums squares; otherwise it writes the update
  bool flush = false;         ///< a contribution asks to close the window
  std::int32_t planner = -1;  ///< who makes the plan of the closed round
  std::int32_t committer = -1;
};

/// What one participant needs of its own to take part in updates; kept so that no step allocates.
template <class T, class G>
struct Worker {
  explicit Worker(int number) : place(number) {
    contributions.reserve(k_max_replicas);
    sources.all.reserve(k_max_sources);
    sources.coefficient.reserve(k_max_sources);
    sources.total.reserve(k_max_sources);
  }
  int place;
  std::vector<const Contribution<G>*> contributions;
  Contributors<T, G> sources;
  // The round or stage it is at, as read inside the exclusion.
  UpdaterState state;
  UpdatePlan plan;
  std::uint64_t stage = 0;
  double factor = 1;
  bool measures = false, flush = false, skips = false;
};

static_assert(std::is_trivially_copyable_v<Control>);

}  // namespace detail

LOCKSTEP_NAMESPACE_END
