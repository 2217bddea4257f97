// SPDX-License-Identifier: MIT
/// @file
/// Claims on the items of an update: one word each, without a lock.
#pragma once

#include <lockstep/config.hpp>

#include <atomic>
#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// The truth about an item is its word: (stage, owner, state). A word of an older stage means free, so
/// nothing is ever reset, and a worker that wakes up stages later fails its exchange. An item whose owner has
/// died is freed within its stage.
class Tiles {
 public:
  using Word = std::atomic<std::uint64_t>;

  Tiles(Word* words, Index count) : words_(words), count_(count) {}
  Index count() const { return count_; }

  /// Claims item `i` of `stage` for `owner`, a replica number or `protocol::k_nobody`.
  bool claim(Index i, std::uint64_t stage, int owner) {
    std::uint64_t seen = words_[i].load(std::memory_order_relaxed);
    return (stage_of(seen) < stage || seen == freed(stage)) &&
           words_[i].compare_exchange_strong(seen, word(stage, owner, k_claimed), std::memory_order_acq_rel);
  }
  /// Sequentially consistent: of two workers that finish at the same time at least one sees the other's word.
  void finish(Index i, std::uint64_t stage, int owner) {
    words_[i].exchange(word(stage, owner, k_done), std::memory_order_seq_cst);
  }
  /// Frees the items that `owner` has claimed and can no longer do, each after `before(i)`.
  template <class F>
  void release_claims(std::uint64_t stage, int owner, F&& before) {
    const std::uint64_t claimed = word(stage, owner, k_claimed);
    for (Index i = 0; i < count_; ++i) {
      if (words_[i].load(std::memory_order_acquire) != claimed) continue;
      before(i);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      words_[i].store(freed(stage), std::memory_order_release);
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
      if (stage_of(seen) == stage && (seen & 3) == k_claimed) f(static_cast<int>(seen >> 2 & 0x3FFF) - 1);
    }
  }

 private:
  static constexpr std::uint64_t k_claimed = 1, k_done = 2;
  static std::uint64_t stage_of(std::uint64_t word) { return word >> 16; }
  static std::uint64_t word(std::uint64_t stage, int owner, std::uint64_t state) {
    return stage << 16 | static_cast<std::uint64_t>(owner + 1) << 2 | state;
  }
  /// Free again in its stage, so that no sleeper of an older one can claim it.
  static std::uint64_t freed(std::uint64_t stage) { return stage << 16; }
  static bool is_done(std::uint64_t word, std::uint64_t stage) {
    return stage_of(word) > stage || (stage_of(word) == stage && (word & 3) == k_done);
  }

  Word* words_;
  Index count_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
