// SPDX-License-Identifier: MIT
/// @file
/// Kernels: the sum of sources at one position, in registers.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/fetch.hpp>
#include <lockstep/gradients/pack.hpp>
#include <lockstep/gradients/sources.hpp>
#include <lockstep/gradients/widen.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Most sources for which there is a kernel of each number of them.
inline constexpr std::size_t k_counted_sources = 4;
/// Most sources of a kernel that has a register for each of their addresses.
inline constexpr std::size_t k_register_sources = 8;

/// \f$\sum_i c_i\, g_i\f$ of `least` to `most` sources at one position, in the order of the list; all
/// coefficients are 1 unless it is `weighted`. Positions count from element `start` of the layout. Addresses
/// and coefficients have registers, so there is no loop over a list of them, which would be read anew for
/// each line (docs/design/006).
template <class T, class G, bool weighted, std::size_t least, std::size_t most>
class SumOf {
 public:
  SumOf(const Sources<T, G>& sources, Index start)
      : count_(static_cast<std::size_t>(sources.count)), far_(sources.far) {
    for (std::size_t k = 0; k < std::min(count_, most); ++k) {
      data_[k] = sources.data[k] + start;
      if constexpr (weighted) coefficient_[k] = sources.coefficient[k];
    }
  }

  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE Pack<T, Packet> at(Index i) const {
    Pack<T, Packet> sum = term<0, Packet>(i);
    add_from<1>(sum, i);
    return sum;
  }
  /// Brings the sources nearer that are needed at this position, which may lie outside the arrays.
  LOCKSTEP_ALWAYS_INLINE void fetch(Index i) const { fetch_from<0>(i); }
  bool is_far() const { return far_; }
  static constexpr std::size_t k_most_arrays = most;

 protected:
  template <std::size_t k, class Packet>
  LOCKSTEP_ALWAYS_INLINE void add_from(Pack<T, Packet>& sum, Index i) const {
    if constexpr (k < most)
      if (has<k>()) {
        sum += term<k, Packet>(i);
        add_from<k + 1>(sum, i);
      }
  }

 private:
  template <std::size_t k>
  LOCKSTEP_ALWAYS_INLINE bool has() const {
    return k < least || k < count_;
  }
  template <std::size_t k, class Packet>
  LOCKSTEP_ALWAYS_INLINE Pack<T, Packet> term(Index i) const {
    const Pack<T, Packet> gradient = load_as<T, Packet>(data_[k] + i);
    if constexpr (weighted)
      return Pack<T, Packet>(coefficient_[k]) * gradient;
    else
      return gradient;
  }
  template <std::size_t k>
  LOCKSTEP_ALWAYS_INLINE void fetch_from(Index i) const {
    if constexpr (k < most)
      if (has<k>()) {
        fetch_for_reading(address_of(data_[k], i));
        fetch_from<k + 1>(i);
      }
  }

  std::array<const G*, most> data_{};
  [[no_unique_address]] std::array<T, weighted ? most : 0> coefficient_{};
  std::size_t count_;
  bool far_;
};

/// The same of up to as many sources as have registers, after a window of wider scalars.
template <class T, class G>
class SumAfterWindow : public SumOf<T, G, true, 0, k_register_sources> {
  using Sum = SumOf<T, G, true, 0, k_register_sources>;

 public:
  SumAfterWindow(const Sources<T, G>& sources, Index start)
      : Sum(sources, start), window_(sources.wide + start) {}

  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE Pack<T, Packet> at(Index i) const {
    Pack<T, Packet> sum = Pack<T, Packet>::load(window_ + i);
    this->template add_from<0>(sum, i);
    return sum;
  }
  /// As that of `SumOf`.
  LOCKSTEP_ALWAYS_INLINE void fetch(Index i) const {
    fetch_for_reading(address_of(window_, i));
    Sum::fetch(i);
  }
  static constexpr std::size_t k_most_arrays = 1 + Sum::k_most_arrays;

 private:
  const T* window_;
};

/// The same of any number of sources, after the window if there is one: all is read from the list. Only for
/// expressions, which cannot go part by part.
template <class T, class G>
class AnySum {
 public:
  AnySum(const Sources<T, G>& sources, Index start) : sources_(&sources), start_(start) {}

  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE Pack<T, Packet> at(Index i) const {
    using P = Pack<T, Packet>;
    int k = 0;
    P sum = sources_->wide ? P::load(sources_->wide + start_ + i) : term<Packet>(k++, i);
    for (; k < sources_->count; ++k) sum += term<Packet>(k, i);
    return sum;
  }

 private:
  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE Pack<T, Packet> term(int k, Index i) const {
    const auto at = static_cast<std::size_t>(k);
    return Pack<T, Packet>(sources_->coefficient[at]) * load_as<T, Packet>(sources_->data[at] + start_ + i);
  }

  const Sources<T, G>* sources_;
  Index start_;
};

/// Calls `f(sum)` with the kernel for `count` sources or more.
template <std::size_t count, class T, class G, class F>
void with_plain_sum(const Sources<T, G>& sources, Index start, F&& f) {
  if constexpr (count > k_counted_sources)
    f(SumOf<T, G, false, count, k_register_sources>(sources, start));
  else if (sources.count == static_cast<int>(count))
    f(SumOf<T, G, false, count, count>(sources, start));
  else
    with_plain_sum<count + 1>(sources, start, f);
}

/// There is a kernel that has registers for all of them.
template <class T, class G>
bool are_few(const Sources<T, G>& sources) {
  return sources.count <= static_cast<int>(k_register_sources) && (!sources.wide || !std::same_as<T, G>);
}

/// Calls `f(sum)` with the narrowest kernel for a few sources from element `start` on. All kernels give the
/// same bits. @pre are_few(sources)
template <class T, class G, class F>
void with_few(const Sources<T, G>& sources, Index start, F&& f) {
  if constexpr (!std::same_as<T, G>)
    if (sources.wide) return f(SumAfterWindow<T, G>(sources, start));
  if (sources.weighted)
    f(SumOf<T, G, true, 1, k_register_sources>(sources, start));
  else
    with_plain_sum<1>(sources, start, f);
}

/// The same for any number of sources.
template <class T, class G, class F>
void with_sum(const Sources<T, G>& sources, Index start, F&& f) {
  if (are_few(sources))
    with_few(sources, start, f);
  else
    f(AnySum<T, G>(sources, start));
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
