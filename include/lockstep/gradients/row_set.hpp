// SPDX-License-Identifier: MIT
/// @file
/// Which rows of a variable a row-sparse gradient has: one bit a row, and one summary bit for each 64 of
/// them.
#pragma once

#include <lockstep/config.hpp>

#include <bit>
#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

/// A set of row numbers below `rows`, over memory that somebody else owns. Insertion, test and visiting in
/// ascending order cost what the members cost, not what the table costs.
class RowSet {
 public:
  RowSet(std::uint64_t* words, Index rows) : bits_(words), summary_(words + words_for(rows)), rows_(rows) {}

  /// Words of memory for a table of `rows` rows.
  static Index memory_for(Index rows) { return words_for(rows) + words_for(words_for(rows)); }

  bool contains(Index row) const { return (bits_[row / 64] >> (row % 64) & 1) != 0; }

  /// @return true if the row was not yet in the set.
  bool insert(Index row) {
    std::uint64_t& word = bits_[row / 64];
    const std::uint64_t bit = std::uint64_t{1} << (row % 64);
    if ((word & bit) != 0) return false;
    word |= bit;
    summary_[row / 4096] |= std::uint64_t{1} << (row / 64 % 64);
    return true;
  }

  void insert_all(const RowSet& other) {
    for (Index i = 0; i < words_for(words_for(rows_)); ++i)
      for_each_bit(other.summary_[i], [&](Index bit) { bits_[i * 64 + bit] |= other.bits_[i * 64 + bit]; }),
          summary_[i] |= other.summary_[i];
  }

  void clear() {
    for (Index i = 0; i < words_for(words_for(rows_)); ++i) {
      for_each_bit(summary_[i], [&](Index bit) { bits_[i * 64 + bit] = 0; });
      summary_[i] = 0;
    }
  }

  Index rows() const { return rows_; }
  /// 64 rows starting at 64 * i.
  std::uint64_t word(Index i) const { return bits_[i]; }
  /// Bit j says whether `word(64 * i + j)` has a member.
  std::uint64_t summary(Index i) const { return summary_[i]; }

  template <class F>
  static void for_each_bit(std::uint64_t word, F&& visit) {
    for (; word != 0; word &= word - 1) visit(static_cast<Index>(std::countr_zero(word)));
  }

 private:
  static Index words_for(Index bits) { return (bits + 63) / 64; }

  std::uint64_t* bits_;
  std::uint64_t* summary_;
  Index rows_;
};

LOCKSTEP_NAMESPACE_END
