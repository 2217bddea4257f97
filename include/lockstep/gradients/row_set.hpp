// SPDX-License-Identifier: MIT
/// @file
/// Which rows of a variable a row-sparse gradient has: one bit a row, and one summary bit for each 64 of
/// them.
#pragma once

#include <lockstep/config.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

/// A set of row numbers below `rows`, over memory that somebody else owns. Insertion, test and visiting in
/// ascending order cost what the members cost, not what the table costs.
class RowSet {
 public:
  /// No set: only to be assigned to.
  RowSet() = default;
  /// @param numbers memory for `number_members`, or null.
  RowSet(std::uint64_t* words, std::uint64_t* numbers, Index rows)
      : bits_(words), summary_(words + words_for(rows)), before_(numbers), taken_(numbers), rows_(rows) {
    if (numbers) taken_ += words_for(rows);
  }

  /// Words of memory for a table of `rows` rows.
  static Index memory_for(Index rows) { return words_for(rows) + words_for(words_for(rows)); }
  /// Words of memory for the numbers of its members.
  static Index numbers_for(Index rows) { return 2 * words_for(rows); }

  /// Whether the row is in the set. @pre 0 <= row < rows()
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

  /// Adds the members of a set for as many rows.
  void insert_all(const RowSet& other) {
    for (Index i = 0; i < words_for(words_for(rows_)); ++i)
      for_each_bit(other.summary_[i], [&](Index bit) { bits_[i * 64 + bit] |= other.bits_[i * 64 + bit]; }),
          summary_[i] |= other.summary_[i];
  }

  /// Empties the set. Costs what its members cost.
  void clear() {
    for (Index i = 0; i < words_for(words_for(rows_)); ++i) {
      for_each_bit(summary_[i], [&](Index bit) { bits_[i * 64 + bit] = 0; });
      summary_[i] = 0;
    }
  }

  /// Numbers the members in ascending order, for `number`. @return how many there are.
  Index number_members() {
    std::uint64_t count = 0;
    for (Index i = 0; i < words_for(words_for(rows_)); ++i)
      for_each_bit(summary_[i], [&](Index bit) {
        before_[i * 64 + bit] = count;
        count += static_cast<std::uint64_t>(std::popcount(bits_[i * 64 + bit]));
      });
    return static_cast<Index>(count);
  }
  /// Of a member, since `number_members` and before the set changes.
  Index number(Index row) const {
    const std::uint64_t below = bits_[row / 64] & ((std::uint64_t{1} << (row % 64)) - 1);
    return static_cast<Index>(before_[row / 64]) + std::popcount(below);
  }

  /// Of the first member that is not below `row`, if there is one. @pre as `number`; 0 <= row < rows()
  Index number_from(Index row) const {
    const Index word = row / 64, groups = words_for(words_for(rows_));
    if (bits_[word] != 0) return number(row);
    Index group = word / 64;
    std::uint64_t words = summary_[group] & (~std::uint64_t{0} << (word % 64));
    while (words == 0 && ++group < groups) words = summary_[group];
    return words != 0 ? static_cast<Index>(before_[group * 64 + std::countr_zero(words)]) : 0;
  }

  /// Takes a number. @return true if it was free.
  bool take(Index number) {
    std::uint64_t& word = taken_[number / 64];
    const std::uint64_t bit = std::uint64_t{1} << (number % 64);
    return (std::exchange(word, word | bit) & bit) == 0;
  }
  /// The first `count` numbers are free again.
  void give_back(Index count) { std::fill_n(taken_, words_for(count), std::uint64_t{0}); }

  /// Rows of the table: members are below.
  Index rows() const { return rows_; }
  /// 64 rows starting at 64 * i.
  std::uint64_t word(Index i) const { return bits_[i]; }
  /// Bit j says whether `word(64 * i + j)` has a member.
  std::uint64_t summary(Index i) const { return summary_[i]; }

  /// Calls `visit(row)` for the members, in ascending order.
  template <class F>
  void for_each(F&& visit) const {
    for (Index i = 0; i < words_for(words_for(rows_)); ++i)
      for_each_bit(summary_[i], [&](Index word) {
        for_each_bit(bits_[i * 64 + word], [&](Index bit) { visit((i * 64 + word) * 64 + bit); });
      });
  }
  /// The same, the last one first.
  template <class F>
  void for_each_backwards(F&& visit) const {
    const auto each = [](std::uint64_t word, auto&& f) {
      while (word != 0) {
        const int bit = 63 - std::countl_zero(word);
        word ^= std::uint64_t{1} << bit;
        f(static_cast<Index>(bit));
      }
    };
    for (Index i = words_for(words_for(rows_)) - 1; i >= 0; --i)
      each(summary_[i], [&](Index word) {
        each(bits_[i * 64 + word], [&](Index bit) { visit((i * 64 + word) * 64 + bit); });
      });
  }

  /// Calls `visit(i)` for each bit of `word` that is set, the lowest one first.
  template <class F>
  static void for_each_bit(std::uint64_t word, F&& visit) {
    for (; word != 0; word &= word - 1) visit(static_cast<Index>(std::countr_zero(word)));
  }

 private:
  static Index words_for(Index bits) { return (bits + 63) / 64; }

  std::uint64_t* bits_;
  std::uint64_t* summary_;
  std::uint64_t* before_;  // members before the word
  std::uint64_t* taken_;
  Index rows_;
};

LOCKSTEP_NAMESPACE_END
