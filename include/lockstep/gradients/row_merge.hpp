// SPDX-License-Identifier: MIT
/// @file
/// The k-way merge of the rows that the contributions of one round have for a variable.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/contributors.hpp>
#include <lockstep/gradients/fetch.hpp>
#include <lockstep/gradients/sources.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

LOCKSTEP_NAMESPACE_BEGIN

/// What a merge visits of one row: \f$s\,(w + \sum_i c_i\, g_i)\f$ over those who have it.
template <class T, class G>
struct MergedRow {
  Index begin;              ///< its first element in the range of the merge, as the layout counts
  Index size;               ///< elements in the range: fewer than the row has where the range cuts it
  const T* wide;            ///< the first element in an open window of wider scalars, or null; comes first
  const G* const* sources;  ///< the first element in each contribution that has the row, in replica order
  const T* coefficients;    ///< of each of these
  int count;                ///< of these
  T scale;                  ///< applied to the sum
};

/// Finds the rows that somebody has, in ascending order, some at a time: so it is known which ones come next,
/// and a loop over them has nothing else to do.
/// @code{.cpp}
/// for (merge.start(info, contributors, begin, end); !merge.rows().empty(); merge.next())
///   for (const MergedRow<T, G>& row : merge.rows()) use(row);
/// @endcode
template <class T, class G>
class RowMerge {
 public:
  /// Begins with the first rows that have elements in [begin, end), a range of the variable without its
  /// padding.
  void start(const VariableInfo& info, const Contributors<T, G>& from, Index begin, Index end) {
    offset_ = info.offset;
    width_ = info.row_size();
    begin_ = begin;
    end_ = end;
    first_row_ = (begin - offset_) / width_;
    last_row_ = begin < end ? (end - 1 - offset_) / width_ : -1;
    group_ = first_row_ / 4096 - 1;
    words_ = bits_ = 0;
    list_sources(info.id, from);
    next();
  }

  /// The rows that were found, valid until `next`; empty if there are no more.
  std::span<const MergedRow<T, G>> rows() const { return {rows_.data(), found_}; }
  /// Finds the next ones.
  void next() {
    found_ = 0;
    std::size_t listed = 0;
    while (found_ < most_rows_ && (bits_ != 0 || find_word())) {
      const int bit = std::countr_zero(bits_);
      bits_ &= bits_ - 1;
      const Index row = word_ * 64 + bit, first = offset_ + row * width_;
      MergedRow<T, G>& merged = rows_[found_++];
      merged.begin = std::max(first, begin_);
      merged.size = std::min(first + width_, end_) - merged.begin;
      const Index cut = merged.begin - first;
      merged.wide = (wide_.word >> bit & 1) != 0 ? wide_.data + row * width_ + cut : nullptr;
      merged.sources = listed_sources_.data() + listed;
      merged.coefficients = listed_coefficients_.data() + listed;
      const std::size_t listed_before = listed;
      // Without branches on who has a row, because nobody can foretell it: what is listed of one who has not
      // is written over.
      const auto list = [&](Source& source, Index has) {
        listed_sources_[listed] =
            static_cast<const G*>(detail::address_of(source.data, row * source.by_row + cut));
        listed_coefficients_[listed] = source.coefficient;
        source.data = static_cast<const G*>(detail::address_of(source.data, source.by_member & -has));
        listed += static_cast<std::size_t>(has);
      };
      if (is_disjoint_)
        list(sources_[only_source_of(bit)], 1);
      else
        for (std::size_t i = 0; i < count_; ++i)
          list(sources_[i], static_cast<Index>(sources_[i].word >> bit & 1));
      merged.count = static_cast<int>(listed - listed_before);
      merged.scale = by_present_ ? static_cast<T>(factor_ / total_of(bit)) : scale_;
    }
  }

 private:
  /// What one contribution has.
  struct Source {
    std::uint64_t word;  // of the 64 rows that are looked at
    const G* data;       // row 0, or the next packed row
    Index by_row;        // elements from row to row of the table; 0 if they are packed
    Index by_member;     // from one row that it has to the next one, if they are packed
    T coefficient;
    bool dense;
    double total;
    RowSet rows;
  };
  /// An open window of wider scalars.
  struct Wide {
    Presence presence = Presence::absent;
    RowSet rows;
    const T* data;
    std::uint64_t word = 0;
  };

  /// Rows that are found at once.
  static constexpr std::size_t k_most_rows = 128;
  /// Of all rows that are found at once, and so that one row fits whatever the number of replicas.
  static constexpr std::size_t k_most_listed = 512;
  static_assert(k_max_sources <= static_cast<int>(k_most_listed));

  void list_sources(std::uint32_t id, const Contributors<T, G>& from) {
    count_ = 0;
    for (std::size_t i = 0; i < from.all.size(); ++i) {
      const Contribution<G>& contribution = *from.all[i];
      const Presence presence = contribution.presence(id);
      if (presence == Presence::absent) continue;
      Source& source = sources_[count_++];
      source.rows = contribution.rows(id);
      source.data = contribution.data() + offset_;
      source.coefficient = static_cast<T>(from.coefficient[i]);
      source.total = from.total[i];
      source.dense = presence == Presence::dense;
      const bool packed = !source.dense && contribution.is_packed(id);
      source.by_row = packed ? 0 : width_;
      source.by_member = packed ? width_ : 0;
      if (packed && first_row_ <= last_row_) source.data += source.rows.number_from(first_row_) * width_;
    }
    wide_.presence = from.window ? from.window->presence(id) : Presence::absent;
    wide_.word = 0;
    if (wide_.presence != Presence::absent) {
      wide_.rows = from.window->rows(id);
      wide_.data = from.window->data() + offset_;
    }
    by_present_ = from.by_present;
    factor_ = from.factor;
    scale_ = static_cast<T>(from.scale);
    most_rows_ = std::clamp<std::size_t>(k_most_listed / std::max<std::size_t>(count_, 1), 1, k_most_rows);
  }

  /// Who has a row of the word. @pre is_disjoint_
  std::size_t only_source_of(int bit) const {
    std::size_t only = 0;
    for (std::size_t i = 1; i < count_; ++i) only |= (0 - (sources_[i].word >> bit & 1)) & i;
    return only;
  }
  /// Weight of those who have a row of the word.
  double total_of(int bit) const {
    double total = 0;
    for (std::size_t i = 0; i < count_; ++i)
      if ((sources_[i].word >> bit & 1) != 0) total += sources_[i].total;
    return total;
  }

  /// The next word with rows that somebody has.
  bool find_word() {
    while (bits_ == 0) {
      while (words_ == 0) {
        if (++group_ * 4096 > last_row_) return false;
        words_ = inside(group_ * 64, first_row_ / 64, last_row_ / 64) & united_summary();
      }
      word_ = group_ * 64 + std::countr_zero(words_);
      words_ &= words_ - 1;
      bits_ = inside(word_ * 64, first_row_, last_row_) & united_word();
    }
    return true;
  }
  /// Bit i says whether `base + i` is in [first, last]. @pre first - base < 64, last >= base
  static std::uint64_t inside(Index base, Index first, Index last) {
    std::uint64_t bits = ~std::uint64_t{0};
    if (first > base) bits <<= first - base;
    if (last < base + 63) bits &= (std::uint64_t{2} << (last - base)) - 1;
    return bits;
  }
  /// Words of the group in which somebody has rows; all of them if some contribution is dense.
  std::uint64_t united_summary() const {
    std::uint64_t summary = wide_.presence == Presence::dense  ? k_all
                            : wide_.presence == Presence::rows ? wide_.rows.summary(group_)
                                                               : 0;
    for (std::size_t i = 0; i < count_; ++i)
      summary |= sources_[i].dense ? k_all : sources_[i].rows.summary(group_);
    return summary;
  }
  /// Rows of the word that somebody has. Notes who has which.
  std::uint64_t united_word() {
    if (wide_.presence != Presence::absent)
      wide_.word = wide_.presence == Presence::dense ? k_all : wide_.rows.word(word_);
    std::uint64_t word = wide_.word, shared = wide_.word;
    for (std::size_t i = 0; i < count_; ++i) {
      Source& source = sources_[i];
      source.word = source.dense ? k_all : source.rows.word(word_);
      shared |= word & source.word;
      word |= source.word;
    }
    is_disjoint_ = shared == 0;
    return word;
  }

  static constexpr std::uint64_t k_all = ~std::uint64_t{0};

  Index offset_ = 0, width_ = 0, begin_ = 0, end_ = 0, first_row_ = 0, last_row_ = 0;
  Index group_ = 0, word_ = 0;
  std::uint64_t words_ = 0, bits_ = 0;  // of the group, of the word: those still to be looked at
  bool is_disjoint_ = false;            // each row of the word has one source
  std::array<Source, k_max_sources> sources_;
  std::size_t count_ = 0;
  Wide wide_;
  bool by_present_ = false;
  double factor_ = 1;
  T scale_ = 1;
  std::size_t most_rows_ = 1;  // that are found at once
  std::size_t found_ = 0;
  std::array<MergedRow<T, G>, k_most_rows> rows_;
  std::array<const G*, k_most_listed> listed_sources_;
  std::array<T, k_most_listed> listed_coefficients_;
};

LOCKSTEP_NAMESPACE_END
