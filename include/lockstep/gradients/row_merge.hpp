// SPDX-License-Identifier: MIT
/// @file
/// The k-way merge of the rows that the contributions of one round have for a variable.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/contributors.hpp>
#include <lockstep/gradients/mean.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

/// One row of a merge: \f$s\,(w + \sum_i c_i\, g_i)\f$ over those who have it.
template <class T, class G>
struct MergedRow {
  Index begin;              ///< its first element, as the layout counts
  const T* wide;            ///< its first element in an open window of wider scalars, or null; comes first
  const G* const* sources;  ///< its first element in each contribution that has it, in replica order
  const T* coefficients;    ///< of each of these
  int count;                ///< of these
  T scale;                  ///< applied to the sum
};

/// Visits the rows that somebody has, in ascending order. Rows are found some at a time and fetched while the
/// ones before are worked on: they lie far apart, so nothing but this tells the processor which comes next.
/// @code{.cpp}
/// for (merge.start(info, contributors, begin, end); const MergedRow<T, G>* row = merge.row(); merge.next())
/// @endcode
template <class T, class G>
class RowMerge {
 public:
  /// @param fetched arrays of the layout whose rows are fetched as well, to be written.
  explicit RowMerge(std::span<T* const> fetched = {}) : fetched_(fetched) {}

  /// Begins with the first row that has elements in [begin, end), a range of the variable without its
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
    find();
  }

  /// The row to be visited, valid until `next`; null if there is none.
  const MergedRow<T, G>* row() const { return at_ < found_ ? &rows_[at_] : nullptr; }
  /// Elements of a row that are in the range: the first one counts from that of the row.
  std::pair<Index, Index> inside(const MergedRow<T, G>& row) const {
    return {std::max(begin_ - row.begin, Index{0}), std::min(end_ - row.begin, width_)};
  }
  /// Goes to the next one. @pre row()
  LOCKSTEP_ALWAYS_INLINE void next() {
    if (at_ + k_ahead < found_) fetch(rows_[at_ + k_ahead]);
    if (++at_ == found_) find();
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

  /// Rows that are found at once, and how far ahead of its visit one of them is fetched.
  static constexpr std::size_t k_most_rows = 128, k_ahead = 16;
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

  /// Finds the next rows, and fetches the first of them.
  void find() {
    at_ = found_ = 0;
    std::size_t listed = 0;
    while (found_ < most_rows_ && (bits_ != 0 || find_word())) {
      const int bit = std::countr_zero(bits_);
      bits_ &= bits_ - 1;
      const Index row = word_ * 64 + bit;
      MergedRow<T, G>& merged = rows_[found_++];
      merged.begin = offset_ + row * width_;
      merged.wide = (wide_.word >> bit & 1) != 0 ? wide_.data + row * width_ : nullptr;
      merged.sources = listed_sources_.data() + listed;
      merged.coefficients = listed_coefficients_.data() + listed;
      const std::size_t first = listed;
      // Without branches, because nobody can foretell who has a row: what is listed of one who has not is
      // written over.
      for (std::size_t i = 0; i < count_; ++i) {
        Source& source = sources_[i];
        const auto has = static_cast<Index>(source.word >> bit & 1);
        listed_sources_[listed] = static_cast<const G*>(detail::address_of(source.data, row * source.by_row));
        listed_coefficients_[listed] = source.coefficient;
        source.data = static_cast<const G*>(detail::address_of(source.data, source.by_member & -has));
        listed += static_cast<std::size_t>(has);
      }
      merged.count = static_cast<int>(listed - first);
      merged.scale = by_present_ ? static_cast<T>(factor_ / total_of(bit)) : scale_;
    }
    for (std::size_t k = 0; k < std::min(found_, k_ahead); ++k) fetch(rows_[k]);
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
    std::uint64_t word = wide_.word;
    for (std::size_t i = 0; i < count_; ++i) {
      Source& source = sources_[i];
      source.word = source.dense ? k_all : source.rows.word(word_);
      word |= source.word;
    }
    return word;
  }

  /// Inlined, because g++ takes a function that only fetches for one without effect, and drops its calls.
  LOCKSTEP_ALWAYS_INLINE void fetch(const MergedRow<T, G>& row) const {
    const Index most = std::min(width_, k_most_fetched);
    for (T* const array : fetched_)
      for (Index i = 0; i < most; i += k_line) detail::fetch_for_writing(array + row.begin + i);
  }

  static constexpr std::uint64_t k_all = ~std::uint64_t{0};
  static constexpr Index k_line = k_alignment / sizeof(T), k_most_fetched = 16 * k_line;

  std::span<T* const> fetched_;
  Index offset_ = 0, width_ = 0, begin_ = 0, end_ = 0, first_row_ = 0, last_row_ = 0;
  Index group_ = 0, word_ = 0;
  std::uint64_t words_ = 0, bits_ = 0;  // of the group, of the word: those still to be looked at
  std::array<Source, k_max_sources> sources_;
  std::size_t count_ = 0;
  Wide wide_;
  bool by_present_ = false;
  double factor_ = 1;
  T scale_ = 1;
  std::size_t most_rows_ = 1;  // that are found at once
  std::size_t found_ = 0, at_ = 0;
  std::array<MergedRow<T, G>, k_most_rows> rows_;
  std::array<const G*, k_most_listed> listed_sources_;
  std::array<T, k_most_listed> listed_coefficients_;
};

LOCKSTEP_NAMESPACE_END
