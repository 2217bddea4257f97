// SPDX-License-Identifier: MIT
/// @file
/// What a mean is formed of: addresses and coefficients, in the order of addition.
#pragma once

#include <lockstep/config.hpp>

#include <array>
#include <cstddef>

LOCKSTEP_NAMESPACE_BEGIN

/// Most sources of one mean: a contribution of each replica, and an open window.
inline constexpr int k_max_sources = k_max_replicas + 1;

/// Sources of one run of the layout: \f$s \sum_i c_i\, g_i\f$, added in the order of the list.
/// Pointers are to element 0 of the layout.
template <class T, class G>
struct Sources {
  const T* wide =
      nullptr;    ///< comes first with coefficient 1; an open window of wider scalars than the gradients
  int count = 0;  ///< sources in `data`
  bool weighted = false;  ///< some coefficient is not 1
  bool far = false;       ///< the arrays are larger than a cache, whatever a run of them is
  T scale = 1;            ///< applied to the sum
  std::array<const G*, k_max_sources> data;  ///< first element of each source, in the order of addition
  std::array<T, k_max_sources> coefficient;  ///< of each source

  /// No sources.
  void clear() {
    wide = nullptr;
    count = 0;
    weighted = false;
  }
  /// Appends a source.
  void add(const G* source, T coefficient_of_source) {
    const auto at = static_cast<std::size_t>(count++);
    data[at] = source;
    coefficient[at] = coefficient_of_source;
    weighted = weighted || coefficient_of_source != T(1);
  }
  /// There is nothing to add up.
  bool empty() const { return count == 0 && wide == nullptr; }
};

LOCKSTEP_NAMESPACE_END
