// SPDX-License-Identifier: MIT
/// @file
/// Splits a range of the layout into runs whose elements have the same sources, so that kernels see plain
/// arrays.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/mean.hpp>

#include <bitset>
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
  std::vector<const Contribution<G>*> all;
  std::vector<double> coefficient;  ///< of the data: unit / first unit
  std::vector<double> total;        ///< weight relative to the first unit, for divisors
  double scale = 1;                 ///< applied to the sum
  double factor = 1;  ///< of the clip; part of `scale` already, and applied when `by_present` replaces it
  bool by_present = false;  ///< Absent::excluded: the scale is one over the totals of those present

  void clear() {
    window = nullptr;
    all.clear();
    coefficient.clear();
    total.clear();
  }
  void add(const Contribution<G>& contribution, double relative_unit, double relative_total) {
    all.push_back(&contribution);
    coefficient.push_back(relative_unit);
    total.push_back(relative_total);
  }
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
  Runs(const Layout& layout, const Contributors<T, G>& contributors) : layout_(layout), from_(contributors) {
    dense_ = contributors.is_dense();
    if (dense_) select([](std::size_t) { return true; }, contributors.window != nullptr);
  }

  /// Calls `with(begin, size, sources)` and `without(begin, size, variable_is_present)` for the runs of
  /// variable `id` inside [begin, end).
  template <class With, class Without>
  void visit(std::uint32_t id, Index begin, Index end, With&& with, Without&& without) {
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
      visit_rows(id, begin, end, with, without);
    }
  }

  /// True if every run of every variable has the same sources: then runs may span variables.
  bool is_dense() const { return dense_; }
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
    chosen_.scale = static_cast<T>(from_.by_present ? from_.factor / total : from_.scale);
  }

  /// 64 rows at a time; a row belongs to those whose set has it and to all that are dense.
  template <class With, class Without>
  void visit_rows(std::uint32_t id, Index begin, Index end, With&& with, Without&& without) {
    const VariableInfo& info = layout_[id];
    const Index width = info.row_size();
    const Index stop = std::min(end, info.offset + info.size);
    Index done = begin;  // elements before this one have been visited
    const auto visit_row = [&](Index row) {
      const Index from = std::max(begin, info.offset + row * width);
      const Index to = std::min(stop, info.offset + (row + 1) * width);
      if (from >= to) return;
      if (from > done) without(done, from - done, true);
      select([&](std::size_t i) { return has_row(*from_.all[i], id, row); },
             from_.window && has_row(*from_.window, id, row));
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
          if (row >= first && row <= last && row < info.rows()) visit_row(row);
        });
      });
    }
    if (done < stop) without(done, stop - done, true);
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

  const Layout& layout_;
  const Contributors<T, G>& from_;
  Sources<T, G> chosen_;
  bool dense_ = false;
};

LOCKSTEP_NAMESPACE_END
