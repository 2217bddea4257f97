// SPDX-License-Identifier: MIT
/// @file
/// Claims on the items of an update: one word each, without a lock.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/transport/store_in_order.hpp>

#include <atomic>
#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// The truth about an item is its word: (stage, position, owner, state). A word of an older stage means free,
/// so nothing is ever reset, and a worker that wakes up stages later fails its exchange. Words have the low
/// bits of a stage: no item is left out in a stage, so none is half of their range older than another. An
/// item whose owner has died is freed within its stage, and its word says with which of its elements to go
/// on.
class Tiles {
 public:
  using Word = std::atomic<std::uint64_t>;
  /// Places in an item with which a new owner can go on: from 0 to its end.
  static constexpr Index k_positions = 131072;

  Tiles(Word* words, Index count) : words_(words), count_(count) {}
  Index count() const { return count_; }

  /// Claims item `i` of `stage` for `owner`, a replica number or `protocol::k_nobody`.
  bool claim(Index i, std::uint64_t stage, int owner) {
    std::uint64_t seen = words_[i].load(std::memory_order_relaxed);
    const std::int64_t age = age_of(seen, stage);
    const bool freed = age == 0 && state_of(seen) == k_free;
    return (age > 0 || freed) &&
           words_[i].compare_exchange_strong(
               seen, word(stage, freed ? position_of(seen) : 0, owner, k_claimed), std::memory_order_acq_rel);
  }
  /// The element of a claimed item with which its owner begins: not 0 if an earlier owner has died.
  Index first(Index i) const { return position_of(words_[i].load(std::memory_order_relaxed)); }
  /// Marks a claimed item as done, in order with what was written before, without waiting for it.
  void finish(Index i, std::uint64_t stage, int owner) {
    words_[i].store(word(stage, 0, owner, k_done), std::memory_order_release);
  }
  /// The same for the last item before a worker looks whether all are done. Sequentially consistent: of two
  /// workers that get there at the same time at least one sees all words of the other.
  void finish_last(Index i, std::uint64_t stage, int owner) {
    words_[i].exchange(word(stage, 0, owner, k_done), std::memory_order_seq_cst);
  }
  /// Frees the items that `owner` has claimed and can no longer do. `settle(i, first)` gets the element with
  /// which the owner began, and says with which to go on.
  template <class F>
  void release_claims(std::uint64_t stage, int owner, F&& settle) {
    for (Index i = 0; i < count_; ++i) {
      const std::uint64_t seen = words_[i].load(std::memory_order_acquire);
      const Index first = position_of(seen);
      if (seen != word(stage, first, owner, k_claimed)) continue;
      const Index next = settle(i, first);
      store_in_order(words_[i], word(stage, next, k_no_owner, k_free));
    }
  }
  bool all_done(std::uint64_t stage) const {
    for (Index i = 0; i < count_; ++i)
      if (!is_done(words_[i].load(std::memory_order_seq_cst), stage)) return false;
    return true;
  }
  /// Calls `f(owner)` for each item that is claimed and not done.
  template <class F>
  void for_each_claimed(std::uint64_t stage, F&& f) const {
    for (Index i = 0; i < count_; ++i) {
      const std::uint64_t seen = words_[i].load(std::memory_order_acquire);
      if (age_of(seen, stage) == 0 && state_of(seen) == k_claimed)
        f(static_cast<int>(seen >> k_owner & 0xFF) - 1);
    }
  }

 private:
  static constexpr std::uint64_t k_free = 0, k_claimed = 1, k_done = 2;
  static constexpr int k_no_owner = -1;
  static_assert(k_max_replicas < 0xFF);
  static constexpr int k_stage = 27, k_position = 10, k_owner = 2;  // lowest bits
  static_assert(k_positions == 1 << (k_stage - k_position));

  /// Stages since that of the word.
  static std::int64_t age_of(std::uint64_t word, std::uint64_t stage) {
    return static_cast<std::int64_t>((stage << k_stage) - (word >> k_stage << k_stage)) >> k_stage;
  }
  static Index position_of(std::uint64_t word) {
    return static_cast<Index>(word >> k_position) & (k_positions - 1);
  }
  static std::uint64_t state_of(std::uint64_t word) { return word & 3; }
  static std::uint64_t word(std::uint64_t stage, Index position, int owner, std::uint64_t state) {
    return stage << k_stage | static_cast<std::uint64_t>(position & (k_positions - 1)) << k_position |
           static_cast<std::uint64_t>(owner + 1) << k_owner | state;
  }
  static bool is_done(std::uint64_t word, std::uint64_t stage) {
    const std::int64_t age = age_of(word, stage);
    return age < 0 || (age == 0 && state_of(word) == k_done);
  }

  Word* words_;
  Index count_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
