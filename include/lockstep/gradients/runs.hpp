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
#include <cstdint>
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

/// What a run is: elements that nobody has a gradient for, or elements with these sources.
template <class T, class G>
class Runs {
 public:
  /// Both arguments must outlive it.
  Runs(const Layout& layout, const Contributors<T, G>& contributors) : layout_(layout), from_(contributors) {
    dense_ = contributors.is_dense();
    if (dense_) select([](std::size_t) { return true; }, contributors.window != nullptr);
  }

  /// Calls `with(begin, size, sources)` and `without(begin, size, variable_is_present)` for the runs of
  /// variable `id` inside [begin, end). Single rows are announced by `soon(begin, size)` some rows before.
  template <class With, class Without, class Soon>
  void visit(std::uint32_t id, Index begin, Index end, With&& with, Without&& without, Soon&& soon) {
    if (dense_) {
      with(begin, end - begin, chosen_);
      return;
    }
    bool any_rows = false, any = false;
    for_each_presence(id, [&](Presence presence) {
      any_rows = any_rows || presence == Presence::rows;
      any = any || presence != Presence::absent;
    });
    if (!any) {
      without(begin, end - begin, false);
    } else if (!any_rows) {
      select([&](std::size_t i) { return from_.all[i]->presence(id) == Presence::dense; },
             from_.window && from_.window->presence(id) == Presence::dense);
      with(begin, end - begin, chosen_);
    } else {
      visit_rows(id, begin, end, with, without, soon);
    }
  }
  /// The same, without announcements.
  template <class With, class Without>
  void visit(std::uint32_t id, Index begin, Index end, With&& with, Without&& without) {
    visit(id, begin, end, with, without, [](Index, Index) {});
  }

  /// True if every run of every variable has the same sources: then runs may span variables.
  bool is_dense() const { return dense_; }
  /// Of a round that is dense for everybody: the sources of every element.
  const Sources<T, G>& all_sources() const { return chosen_; }

 private:
  template <class F>
  void for_each_presence(std::uint32_t id, F&& f) const {
    if (from_.window) f(from_.window->presence(id));
    for (const auto* contribution : from_.all) f(contribution->presence(id));
  }

  /// Fills `chosen_` with those that `has` says are present.
  template <class Has>
  void select(Has&& has, bool has_window) {
    chosen_.clear();
    double total = 0;
    if (has_window) chosen_.wide = from_.window->data();
    for (std::size_t i = 0; i < from_.all.size(); ++i) {
      if (!has(i)) continue;
      chosen_.add(from_.all[i]->data(), static_cast<T>(from_.coefficient[i]));
      total += from_.total[i];
    }
    set_scale(total);
  }

  /// 64 rows at a time; a row belongs to those whose set has it and to all that are dense.
  template <class With, class Without, class Soon>
  void visit_rows(std::uint32_t id, Index begin, Index end, With&& with, Without&& without, Soon&& soon) {
    const VariableInfo& info = layout_[id];
    const Index width = info.row_size();
    const Index stop = std::min(end, info.offset + info.size);
    Index done = begin;  // elements before this one have been visited
    std::array<Index, k_rows_ahead> announced;
    std::size_t found = 0;
    const auto visit_row = [&](Index row) {
      const Index from = std::max(begin, info.offset + row * width);
      const Index to = std::min(stop, info.offset + (row + 1) * width);
      if (from >= to) return;
      if (from > done) without(done, from - done, true);
      select_row(id, row, info.offset + row * width);
      with(from, to - from, chosen_);
      done = to;
    };
    const Index first = (begin - info.offset) / width;
    const Index last = (stop - 1 - info.offset) / width;
    for (Index group = first / 4096; group <= last / 4096; ++group) {
      const std::uint64_t words = united(id, [&](const RowSet& rows) { return rows.summary(group); });
      RowSet::for_each_bit(words, [&](Index in_group) {
        const Index word = group * 64 + in_group;
        if (word < first / 64 || word > last / 64) return;
        const std::uint64_t bits = united(id, [&](const RowSet& rows) { return rows.word(word); });
        RowSet::for_each_bit(bits, [&](Index bit) {
          const Index row = word * 64 + bit;
          if (row < first || row > last || row >= info.rows()) return;
          if (found >= k_rows_ahead) visit_row(announced[found % k_rows_ahead]);
          soon(info.offset + row * width, width);
          announced[found++ % k_rows_ahead] = row;
        });
      });
    }
    for (std::size_t i = found - std::min(found, k_rows_ahead); i < found; ++i)
      visit_row(announced[i % k_rows_ahead]);
    if (done < stop) without(done, stop - done, true);
  }

  /// Fills `chosen_` with those that have the row, whose first element is `element` of the layout.
  void select_row(std::uint32_t id, Index row, Index element) {
    chosen_.clear();
    double total = 0;
    if (from_.window && has_row(*from_.window, id, row)) chosen_.wide = from_.window->data();
    for (std::size_t i = 0; i < from_.all.size(); ++i) {
      const Contribution<G>& from = *from_.all[i];
      if (!has_row(from, id, row)) continue;
      const bool is_packed = from.presence(id) == Presence::rows && from.is_packed(id);
      chosen_.add(is_packed ? shifted(from.row_data(id, row), element) : from.data(),
                  static_cast<T>(from_.coefficient[i]));
      total += from_.total[i];
    }
    set_scale(total);
  }
  void set_scale(double total) {
    chosen_.scale = static_cast<T>(from_.by_present ? from_.factor / total : from_.scale);
  }
  /// Where element 0 of the layout would be, if `at` were element `element`. In integers: nothing is there.
  static const G* shifted(const G* at, Index element) {
    return reinterpret_cast<const G*>(reinterpret_cast<std::uintptr_t>(at) -
                                      static_cast<std::uintptr_t>(element) * sizeof(G));
  }

  template <class C>
  static bool has_row(const C& contribution, std::uint32_t id, Index row) {
    const Presence presence = contribution.presence(id);
    return presence == Presence::dense || (presence == Presence::rows && contribution.rows(id).contains(row));
  }

  /// OR of a word over all row sets of the variable; all ones if some contribution is dense.
  template <class F>
  std::uint64_t united(std::uint32_t id, F&& word_of) const {
    std::uint64_t word = 0;
    const auto take = [&](const auto& contribution) {
      const Presence presence = contribution.presence(id);
      if (presence == Presence::dense) word = ~std::uint64_t{0};
      if (presence == Presence::rows) word |= word_of(contribution.rows(id));
    };
    if (from_.window) take(*from_.window);
    for (const auto* contribution : from_.all) take(*contribution);
    return word;
  }

  static constexpr std::size_t k_rows_ahead = 8;

  const Layout& layout_;
  const Contributors<T, G>& from_;
  Sources<T, G> chosen_;
  bool dense_ = false;
};

LOCKSTEP_NAMESPACE_END
