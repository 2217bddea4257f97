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
    now_ = at_ = 0;
    find(batches_[0]);
    find(batches_[1]);
  }

  /// The row to be visited, valid until `next`; null if there is none.
  const MergedRow<T, G>* row() const {
    return at_ < batches_[now_].count ? &batches_[now_].rows[at_] : nullptr;
  }
  /// Elements of a row that are in the range: the first one counts from that of the row.
  std::pair<Index, Index> inside(const MergedRow<T, G>& row) const {
    return {std::max(begin_ - row.begin, Index{0}), std::min(end_ - row.begin, width_)};
  }
  /// Goes to the next one. @pre row()
  void next() {
    if (++at_ < batches_[now_].count) return;
    find(batches_[now_]);
    now_ = 1 - now_;
    at_ = 0;
  }

 private:
  /// What one contribution has.
  struct Source {
    RowSet rows;
    const G* data;  // row 0, or the first packed row
    T coefficient;
    double total;
    bool dense, packed;
    std::uint64_t word;  // of the 64 rows that are looked at
    Index number;        // of the next packed row among these
  };
  /// An open window of wider scalars.
  struct Wide {
    Presence presence = Presence::absent;
    RowSet rows;
    const T* data;
    std::uint64_t word = 0;
  };

  static constexpr std::size_t k_most_rows = 16;
  /// Of all rows of a batch, and so that one row fits whatever the number of replicas.
  static constexpr std::size_t k_most_listed = 256;
  static_assert(k_max_sources <= static_cast<int>(k_most_listed));

  struct Batch {
    std::array<MergedRow<T, G>, k_most_rows> rows;
    std::size_t count;
    std::array<const G*, k_most_listed> sources;
    std::array<T, k_most_listed> coefficients;
  };

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
      source.packed = !source.dense && contribution.is_packed(id);
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

  /// Fills a batch with the next rows.
  void find(Batch& batch) {
    batch.count = 0;
    std::size_t listed = 0;
    while (batch.count < most_rows_ && (bits_ != 0 || find_word())) {
      const int bit = std::countr_zero(bits_);
      bits_ &= bits_ - 1;
      const Index row = word_ * 64 + bit;
      MergedRow<T, G>& merged = batch.rows[batch.count++];
      merged.begin = offset_ + row * width_;
      merged.wide = (wide_.word >> bit & 1) != 0 ? wide_.data + row * width_ : nullptr;
      merged.sources = batch.sources.data() + listed;
      merged.coefficients = batch.coefficients.data() + listed;
      const std::size_t first = listed;
      double total = 0;
      // Without branches, because nobody can foretell who has a row: what is listed of one who has not is
      // written over.
      for (std::size_t i = 0; i < count_; ++i) {
        Source& source = sources_[i];
        const auto has = source.word >> bit & 1;
        const Index number = source.packed ? source.number : row;
        batch.sources[listed] = static_cast<const G*>(detail::address_of(source.data, number * width_));
        batch.coefficients[listed] = source.coefficient;
        source.number += static_cast<Index>(has);
        listed += has;
        total += has != 0 ? source.total : 0;
      }
      merged.count = static_cast<int>(listed - first);
      merged.scale = by_present_ ? static_cast<T>(factor_ / total) : scale_;
    }
    fetch(batch);
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
  /// Rows of the word that somebody has. Notes who has which, and where its packed ones begin.
  std::uint64_t united_word() {
    if (wide_.presence != Presence::absent)
      wide_.word = wide_.presence == Presence::dense ? k_all : wide_.rows.word(word_);
    std::uint64_t word = wide_.word;
    const Index first = std::max(first_row_, word_ * 64);
    for (std::size_t i = 0; i < count_; ++i) {
      Source& source = sources_[i];
      source.word = source.dense ? k_all : source.rows.word(word_);
      if (source.packed) source.number = source.rows.number(first);
      word |= source.word;
    }
    return word;
  }

  /// The first line of all rows, then the next ones: each row is in a page of its own, and so the walks
  /// through the page table overlap. Sources come one after the other, which processors see by themselves.
  /// Inlined, because g++ takes a function that only fetches for one without effect, and drops its calls.
  LOCKSTEP_ALWAYS_INLINE void fetch(const Batch& batch) const {
    const Index most = std::min(width_, k_most_fetched);
    for (T* const array : fetched_)
      for (Index i = 0; i < most; i += k_line)
        for (std::size_t k = 0; k < batch.count; ++k)
          detail::fetch_for_writing(array + batch.rows[k].begin + i);
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
  std::size_t most_rows_ = 1;     // of a batch
  std::array<Batch, 2> batches_;  // the one that is visited, and the one after it
  std::size_t now_ = 0, at_ = 0;
};

LOCKSTEP_NAMESPACE_END
