// SPDX-License-Identifier: MIT
/// @file
/// Splits a range of the layout into runs whose elements have the same sources, so that kernels see plain
/// arrays.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/mean.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Which mean a variable or row gets that only some contributions have.
enum class Absent {
  zero,      ///< a missing gradient counts as zero: the divisor is all weight, as one big batch would have it
  excluded,  ///< the divisor is the weight of those that have it, as TensorFlow's sparse accumulator does per
             ///< row
};

/// The contributions of one round in replica order, with their coefficients relative to the first one.
template <class T, class G>
struct Contributors {
  const Contribution<T>* window =
      nullptr;  ///< an open window, first in the order, if it has other scalars than `G`
  std::vector<const Contribution<G>*> all;  ///< in replica order
  std::vector<double> coefficient;          ///< of the data: unit / first unit
  std::vector<double> total;                ///< weight relative to the first unit, for divisors
  double scale = 1;                         ///< applied to the sum
  double factor = 1;  ///< of the clip; part of `scale` already, and applied when `by_present` replaces it
  bool by_present = false;  ///< Absent::excluded: the scale is one over the totals of those present

  /// No contributions.
  void clear() {
    window = nullptr;
    all.clear();
    coefficient.clear();
    total.clear();
  }
  /// Appends a contribution, with its unit and total weight relative to the first unit.
  void add(const Contribution<G>& contribution, double relative_unit, double relative_total) {
    all.push_back(&contribution);
    coefficient.push_back(relative_unit);
    total.push_back(relative_total);
  }
  /// Each of them has a dense gradient for every variable.
  bool is_dense() const {
    for (const auto* contribution : all)
      if (!contribution->is_dense()) return false;
    return !window || window->is_dense();
  }
};

/// Goes over a range run by run: elements that the same contributions have a gradient for, or that nobody has
/// one for.
/// @code{.cpp}
/// for (runs.start(id, begin, end); runs.next();)
///   if (runs.has_gradient()) use(runs.begin(), runs.size(), runs.sources());
/// @endcode
/// Without callbacks, so that it is compiled once for all its users.
template <class T, class G>
class Runs {
 public:
  /// @param fetched arrays of the layout of which single rows are fetched some rows before their run.
  Runs(const Layout& layout, const Contributors<T, G>& contributors, std::span<T* const> fetched = {})
      : layout_(layout), from_(contributors), fetched_(fetched), dense_(contributors.is_dense()) {
    if (!dense_) return;
    select([](const auto&) { return true; });
    sources_.far = layout.size() > detail::k_cached<T>;
  }

  /// True if every run of every variable has the same sources: then runs may span variables.
  bool is_dense() const { return dense_; }
  /// Of a round that is dense for everybody: the sources of every element.
  const Sources<T, G>& all_sources() const { return sources_; }

  /// Begins with [begin, end), inside the padded range of variable `id`.
  void start(std::uint32_t id, Index begin, Index end) {
    end_of_run_ = begin;
    end_ = end;
    by_rows_ = false;
    has_gradient_ = in_present_variable_ = true;
    if (dense_) return;
    bool any = false;
    const auto look = [&](const auto& contribution) {
      const Presence presence = contribution.presence(id);
      by_rows_ = by_rows_ || presence == Presence::rows;
      any = any || presence != Presence::absent;
    };
    if (from_.window) look(*from_.window);
    for (const auto* contribution : from_.all) look(*contribution);
    if (by_rows_) return start_rows(id);
    has_gradient_ = in_present_variable_ = any;
    if (any) select([id](const auto& contribution) { return contribution.presence(id) == Presence::dense; });
  }

  /// Goes to the next run. False if there is none.
  bool next() {
    if (end_of_run_ >= end_) return false;
    begin_ = end_of_run_;
    end_of_run_ = by_rows_ ? next_in_rows() : end_;
    return true;
  }

  /// First element of the run, as the layout counts.
  Index begin() const { return begin_; }
  /// Elements of the run.
  Index size() const { return end_of_run_ - begin_; }
  /// Somebody has a gradient for these elements.
  bool has_gradient() const { return has_gradient_; }
  /// Somebody has a gradient for some elements of the variable.
  bool in_present_variable() const { return in_present_variable_; }
  /// Who has a gradient for these elements; valid until `next`.
  const Sources<T, G>& sources() const { return sources_; }

 private:
  /// What one contribution has for a variable with rows.
  struct RowSource {
    RowSet rows;
    const G* data;  // element 0 of the layout, or the first packed row
    T coefficient;
    double total;
    bool dense, packed;
  };

  /// The sources are those that `has` says are present.
  template <class Has>
  void select(Has&& has) {
    sources_.clear();
    double total = 0;
    if (from_.window && has(*from_.window)) sources_.wide = from_.window->data();
    for (std::size_t i = 0; i < from_.all.size(); ++i) {
      if (!has(*from_.all[i])) continue;
      sources_.add(from_.all[i]->data(), static_cast<T>(from_.coefficient[i]));
      total += from_.total[i];
    }
    set_scale(total);
  }
  void set_scale(double total) {
    sources_.scale = static_cast<T>(from_.by_present ? from_.factor / total : from_.scale);
  }

  // ---- variables with rows: 64 rows at a time

  void start_rows(std::uint32_t id) {
    const VariableInfo& info = layout_[id];
    offset_ = info.offset;
    width_ = info.row_size();
    end_ = std::min(end_, info.offset + info.size);  // rows have no padding
    if (end_of_run_ >= end_) return;
    first_row_ = (end_of_run_ - offset_) / width_;
    last_row_ = (end_ - 1 - offset_) / width_;
    group_ = first_row_ / 4096 - 1;
    words_ = bits_ = 0;
    found_ = visited_ = 0;
    row_sources_ = 0;
    for (std::size_t i = 0; i < from_.all.size(); ++i) {
      const Contribution<G>& from = *from_.all[i];
      const Presence presence = from.presence(id);
      if (presence == Presence::absent) continue;
      const bool packed = presence == Presence::rows && from.is_packed(id);
      row_source_[row_sources_++] = {
          from.rows(id),  from.data() + (packed ? offset_ : 0), static_cast<T>(from_.coefficient[i]),
          from_.total[i], presence == Presence::dense,          packed};
    }
    window_presence_ = from_.window ? from_.window->presence(id) : Presence::absent;
    if (from_.window) window_rows_ = from_.window->rows(id);
  }

  /// Sets what the run is that begins at `begin_`. @return its end.
  Index next_in_rows() {
    look_ahead();
    has_gradient_ = visited_ < found_;
    if (!has_gradient_) return end_;
    const Index row = ahead_[visited_ % k_rows_ahead];
    const Index element = offset_ + row * width_;
    has_gradient_ = element <= begin_;
    if (!has_gradient_) return element;
    ++visited_;
    select_row(row, element);
    return std::min(end_, element + width_);
  }

  /// Finds and fetches rows, as long as few wait to be visited.
  void look_ahead() {
    while (found_ - visited_ < k_rows_ahead && (bits_ != 0 || find_word())) {
      const Index row = word_ * 64 + std::countr_zero(bits_);
      bits_ &= bits_ - 1;
      ahead_[found_++ % k_rows_ahead] = row;
      fetch(offset_ + row * width_);
    }
  }
  /// The next word with rows that somebody has.
  bool find_word() {
    while (bits_ == 0) {
      while (words_ == 0) {
        if (++group_ > last_row_ / 4096) return false;
        words_ = inside(group_ * 64, first_row_ / 64, last_row_ / 64) &
                 united([this](const RowSet& rows) { return rows.summary(group_); });
      }
      word_ = group_ * 64 + std::countr_zero(words_);
      words_ &= words_ - 1;
      bits_ = inside(word_ * 64, first_row_, last_row_) &
              united([this](const RowSet& rows) { return rows.word(word_); });
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
  /// OR of a word over all row sets of the variable; all ones if some contribution is dense.
  template <class F>
  std::uint64_t united(F&& word_of) const {
    std::uint64_t word = window_presence_ == Presence::dense  ? ~std::uint64_t{0}
                         : window_presence_ == Presence::rows ? word_of(window_rows_)
                                                              : 0;
    for (std::size_t i = 0; i < row_sources_; ++i)
      word |= row_source_[i].dense ? ~std::uint64_t{0} : word_of(row_source_[i].rows);
    return word;
  }
  /// Rows lie far apart, so nothing but this tells the processor which comes next.
  void fetch(Index element) const {
    for (const T* array : fetched_)
      for (Index i = 0; i < std::min(width_, k_most_fetched<T>); i += k_line<T>)
        detail::fetch_for_writing(array + element + i);
  }

  /// The sources are those that have the row, whose first element is `element` of the layout.
  void select_row(Index row, Index element) {
    sources_.clear();
    double total = 0;
    if (window_presence_ == Presence::dense ||
        (window_presence_ == Presence::rows && window_rows_.contains(row)))
      sources_.wide = from_.window->data();
    for (std::size_t i = 0; i < row_sources_; ++i) {
      const RowSource& from = row_source_[i];
      if (!from.dense && !from.rows.contains(row)) continue;
      sources_.add(from.packed ? shifted(packed_row(from, row), element) : from.data, from.coefficient);
      total += from.total;
    }
    set_scale(total);
  }
  /// Fetches a later one of its rows, because each contribution is read a little at a time.
  const G* packed_row(const RowSource& from, Index row) const {
    const Index number = from.rows.number(row);
    const G* later = from.data + std::min(number + k_packed_ahead, from.rows.rows() - 1) * width_;
    for (Index i = 0; i < std::min(width_, k_most_fetched<G>); i += k_line<G>)
      detail::fetch_for_reading(later + i);
    return from.data + number * width_;
  }
  /// Where element 0 of the layout would be, if `at` were element `element`. In integers: nothing is there.
  static const G* shifted(const G* at, Index element) {
    return reinterpret_cast<const G*>(reinterpret_cast<std::uintptr_t>(at) -
                                      static_cast<std::uintptr_t>(element) * sizeof(G));
  }

  static constexpr std::size_t k_rows_ahead = 8;
  static constexpr Index k_packed_ahead = 4;
  template <class S>
  static constexpr Index k_line = k_alignment / sizeof(S);
  template <class S>
  static constexpr Index k_most_fetched = 16 * k_line<S>;

  const Layout& layout_;
  const Contributors<T, G>& from_;
  std::span<T* const> fetched_;
  Sources<T, G> sources_;
  bool dense_;
  bool by_rows_ = false, has_gradient_ = false, in_present_variable_ = false;
  Index begin_ = 0, end_of_run_ = 0, end_ = 0;

  // Of the variable, if it has rows.
  Index offset_ = 0, width_ = 0, first_row_ = 0, last_row_ = 0;
  std::size_t row_sources_ = 0;
  std::array<RowSource, k_max_sources> row_source_;
  Presence window_presence_ = Presence::absent;
  RowSet window_rows_;
  Index group_ = 0, word_ = 0;
  std::uint64_t words_ = 0, bits_ = 0;     // of the group, of the word: those still to be looked at
  std::array<Index, k_rows_ahead> ahead_;  // found, and not visited yet
  std::size_t found_ = 0, visited_ = 0;    // rows
};

LOCKSTEP_NAMESPACE_END
