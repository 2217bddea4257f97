// SPDX-License-Identifier: MIT
/// @file
/// The contributions of one round, in the order in which they are added.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/fixed_list.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/sources.hpp>

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
  detail::FixedList<const Contribution<G>*, k_max_sources> all;  ///< in replica order
  detail::FixedList<double, k_max_sources> coefficient;          ///< of the data: unit / first unit
  detail::FixedList<double, k_max_sources> total;  ///< weight relative to the first unit, for divisors
  double scale = 1;                                ///< applied to the sum
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

LOCKSTEP_NAMESPACE_END
