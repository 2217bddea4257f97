// SPDX-License-Identifier: MIT
/// @file
/// Splits a range of the layout into runs whose elements have the same sources, so that kernels see plain
/// arrays.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/contributors.hpp>
#include <lockstep/gradients/fetch.hpp>
#include <lockstep/gradients/row_merge.hpp>
#include <lockstep/gradients/sources.hpp>
#include <lockstep/gradients/stream.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

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
  /// Over contributions of this layout, which must outlive it, as the layout must.
  Runs(const Layout& layout, const Contributors<T, G>& contributors)
      : layout_(layout), from_(contributors), dense_(contributors.is_dense()) {
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

  /// After `start`: somebody has rows of the variable.
  bool is_by_rows() const { return by_rows_; }
  /// The rows of the range, to be visited instead of its runs. @pre is_by_rows()
  RowMerge<T, G>& rows() { return rows_; }

 private:
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

  // ---- variables with rows

  void start_rows(std::uint32_t id) {
    const VariableInfo& info = layout_[id];
    end_ = std::min(end_, info.offset + info.size);  // rows have no padding
    rows_.start(info, from_, end_of_run_, end_);
    next_row_ = 0;
  }

  /// Sets what the run is that begins at `begin_`. @return its end.
  Index next_in_rows() {
    if (rows_.rows().empty()) return leave_out(end_);
    const MergedRow<T, G>& row = rows_.rows()[next_row_];
    if (row.begin > begin_) return leave_out(row.begin);
    has_gradient_ = true;
    sources_.clear();
    sources_.scale = row.scale;
    if (row.wide) sources_.wide = shifted(row.wide, begin_);
    for (int i = 0; i < row.count; ++i) sources_.add(shifted(row.sources[i], begin_), row.coefficients[i]);
    const Index end = begin_ + row.size;
    if (++next_row_ == rows_.rows().size()) {
      rows_.next();
      next_row_ = 0;
    }
    return end;
  }
  Index leave_out(Index end) {
    has_gradient_ = false;
    return end;
  }
  /// Where element 0 of the layout would be, if `at` were element `element`: nothing need be there.
  template <class S>
  static const S* shifted(const S* at, Index element) {
    return static_cast<const S*>(detail::address_of(at, -element));
  }

  const Layout& layout_;
  const Contributors<T, G>& from_;
  Sources<T, G> sources_;
  bool dense_;
  bool by_rows_ = false, has_gradient_ = false, in_present_variable_ = false;
  Index begin_ = 0, end_of_run_ = 0, end_ = 0;
  RowMerge<T, G> rows_;
  std::size_t next_row_ = 0;  // of those that were found
};

LOCKSTEP_NAMESPACE_END
