// SPDX-License-Identifier: MIT
/// @file
/// The weighted mean of contributions as an Eigen expression that is never materialised.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/fetch.hpp>
#include <lockstep/gradients/pack.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>

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

namespace detail {

template <class T, class Packet, class G>
LOCKSTEP_ALWAYS_INLINE Pack<T, Packet> load_as(const G* from) {
  if constexpr (std::same_as<T, G>) {
    return Pack<T, Packet>::load(from);
  } else {
    constexpr std::size_t lanes = Eigen::internal::unpacket_traits<Packet>::size;
    alignas(k_alignment) T lane[lanes];
    for (std::size_t i = 0; i < lanes; ++i) lane[i] = static_cast<T>(from[i]);
    return Pack<T, Packet>::load(lane);
  }
}

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
  template <std::size_t k, class Packet>
  LOCKSTEP_ALWAYS_INLINE void add_from(Pack<T, Packet>& sum, Index i) const {
    if constexpr (k < most)
      if (has<k>()) {
        sum += term<k, Packet>(i);
        add_from<k + 1>(sum, i);
      }
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

/// The same of any number of sources, after the window if there is one: all is read from the list.
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
  /// As that of `SumOf`.
  LOCKSTEP_ALWAYS_INLINE void fetch(Index i) const {
    for (int k = 0; k < sources_->count; ++k)
      fetch_for_reading(address_of(sources_->data[static_cast<std::size_t>(k)], start_ + i));
  }
  bool is_far() const { return sources_->far; }
  static constexpr std::size_t k_most_arrays = k_max_sources;

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

/// Calls `f(sum)` with the narrowest kernel for these sources from element `start` on. All kernels give the
/// same bits.
template <class T, class G, class F>
void with_sum(const Sources<T, G>& sources, Index start, F&& f) {
  if (sources.wide || sources.count > static_cast<int>(k_register_sources))
    f(AnySum<T, G>(sources, start));
  else if (sources.weighted)
    f(SumOf<T, G, true, 1, k_register_sources>(sources, start));
  else
    with_plain_sum<1>(sources, start, f);
}

/// Marks the nullary functors of this library, whose assignment is the plain loop below.
template <class Functor>
inline constexpr bool is_streaming_functor = false;

/// Elements of an array of 64 KiB, which is taken to be in a cache.
template <class T>
inline constexpr Index k_cached = 65'536 / sizeof(T);
/// Lines and elements that are copied at a time where a loop may be stopped half-way (keep_lines.hpp).
inline constexpr Index k_kept_lines = 4;
template <class T>
inline constexpr Index k_kept = k_kept_lines* k_line<T>;

/// Elements [i, i + size) of a target, without a loop.
template <class Packet, Index size, class T, class Functor>
LOCKSTEP_ALWAYS_INLINE void store_packets(T* target, const Functor& functor, Index i) {
  constexpr Index lanes = Eigen::internal::unpacket_traits<Packet>::size;
#pragma GCC unroll 16
  for (Index packet = 0; packet < size; packet += lanes)
    Eigen::internal::pstoreu(target + i + packet, functor.template packetOp<Packet>(i + packet));
}

/// `to`, as the functor has it if it says what it changes: loads and stores then share a pointer.
template <class T, class Functor>
LOCKSTEP_ALWAYS_INLINE T* target_of(T* to, const Functor& functor) {
  if constexpr (requires { functor.changed(); })
    return functor.changed().front();
  else
    return to;
}

/// Assigns a functor, two cache lines at a time. Lines are unrolled, which compilers do not do by themselves
/// at -O2. The functor is copied here, so that compilers keep its parts in registers: Eigen's own loop leaves
/// it in memory on most settings, which measured 1.1x to 3.3x the time. One with `k_fetches` fetches what is
/// needed some lines later; not for short runs, unless it says that they are part of something larger. One
/// whose lines are kept (keep_lines.hpp) always does, and copies what they were before they are stored.
template <class T, class Functor>
void stream(T* to, const Functor& from, Index size) {
  using Packet = typename Eigen::internal::find_best_packet<T, Eigen::Dynamic>::type;
  constexpr Index lanes = Eigen::internal::unpacket_traits<Packet>::size;
  constexpr Index line = std::max(lanes, k_line<T>), two = 2 * line;
  const Functor functor = from;
  T* const target = target_of(to, functor);
  Index i = 0;
  if constexpr (requires { functor.keep_rest(0, 0); }) {
    static_assert(line == k_line<T>);
    for (; i + k_kept<T> <= size; i += k_kept<T>) {
      if constexpr (requires { functor.fetch(0); })
        for (Index k = 0; k < k_kept<T>; k += line) functor.fetch(i + k);
      functor.template keep_whole<Packet>(i);
      store_packets<Packet, k_kept<T>>(target, functor, i);
    }
    if (i < size) functor.keep_rest(i, size - i);
  } else if constexpr (requires { requires Functor::k_fetches; }) {
    if (size > k_cached<T> || functor.is_far())
      for (; i + two <= size; i += two) {
        functor.fetch(i);
        functor.fetch(i + line);
        store_packets<Packet, two>(target, functor, i);
      }
  }
  for (; i + two <= size; i += two) store_packets<Packet, two>(target, functor, i);
  for (; i + lanes <= size; i += lanes)
    Eigen::internal::pstoreu(target + i, functor.template packetOp<Packet>(i));
  for (; i < size; ++i) target[i] = functor(i);
}

/// What Eigen calls for such an expression. A functor with `assign(size)` has the loop in which it ends up.
template <class T, class Functor>
void assign(T* to, const Functor& from, Index size) {
  if constexpr (requires { from.assign(size); })
    from.assign(size);
  else
    stream(to, from, size);
}

/// Where nobody has to put back what a loop has changed half-way: threads die together. The other keeper is
/// in keep_lines.hpp.
struct NothingKept {
  /// The functor that does the work of `functor` from element `start` of the layout on.
  template <class Functor>
  LOCKSTEP_ALWAYS_INLINE const Functor& over(const Functor& functor, Index start) const {
    (void)start;
    return functor;
  }
  /// Calls what does the work of elements [begin, end), counted from `origin`: `f(begin, end)`.
  template <class Arrays, class F>
  LOCKSTEP_ALWAYS_INLINE void for_lines(Index begin, Index end, Index origin, const Arrays& arrays,
                                        F&& f) const {
    (void)origin, (void)arrays;
    f(begin, end);
  }
};

/// For `stream`: a copy, in a loop that is part of its caller.
template <class T>
struct Copy {
  const T* from;

  LOCKSTEP_ALWAYS_INLINE T operator()(Index i) const { return from[i]; }
  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE Packet packetOp(Index i) const {
    return Eigen::internal::ploadu<Packet>(from + i);
  }
};

/// Nullary functor of Eigen: the scaled sum at an index.
template <class T, class Sum>
struct MeanFunctor {
  Sum sum;
  T scale;

  LOCKSTEP_ALWAYS_INLINE T operator()(Eigen::Index i) const {
    return (sum.template at<T>(i) * Pack<T>(scale)).packet();
  }
  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE Packet packetOp(Eigen::Index i) const {
    return (sum.template at<Packet>(i) * Pack<T, Packet>(scale)).packet();
  }
};
template <class T, class Sum>
inline constexpr bool is_streaming_functor<MeanFunctor<T, Sum>> = true;

/// The same with the array that it is written to.
template <class T, class Sum>
struct SumInto : MeanFunctor<T, Sum> {
  T* target;  // of the first index
  LOCKSTEP_ALWAYS_INLINE std::array<T*, 1> changed() const { return {target}; }
};

}  // namespace detail

/// The mean over elements [start, start + size) as an Eigen expression, shape (size,), with packet access.
/// Called with the expression, because its type depends on the number of sources.
template <class T, class G, class F>
void with_mean(const Sources<T, G>& sources, Index start, Index size, F&& f) {
  detail::with_sum(sources, start, [&](auto sum) {
    using Functor = detail::MeanFunctor<T, decltype(sum)>;
    f(Eigen::Array<T, Eigen::Dynamic, 1>::NullaryExpr(size, Functor{sum, sources.scale}));
  });
}

namespace detail {

/// Writes elements [start, start + size) of the scaled sum of `sources` to `to`, shape (size,).
template <class T, class G, class Keeper = NothingKept>
void write_sum(const Sources<T, G>& sources, Index start, Index size, T* to, const Keeper& keeper = {}) {
  with_sum(sources, start, [&](const auto& sum) {
    const SumInto<T, std::remove_cvref_t<decltype(sum)>> functor{{sum, sources.scale}, to};
    stream(to, keeper.over(functor, start), size);
  });
}

}  // namespace detail

/// Writes the scaled sum of `sources` to elements [start, start + size) of `target`, which may be one of the
/// sources. @param keeper copies lines before they are changed, where somebody may have to put it back.
template <class T, class G, class Keeper = detail::NothingKept>
void sum_elements(const Sources<T, G>& sources, T* target, Index start, Index size,
                  const Keeper& keeper = {}) {
  detail::write_sum(sources, start, size, target + start, keeper);
}

LOCKSTEP_NAMESPACE_END

namespace Eigen::internal {
template <class T, class Sum>
struct functor_traits<lockstep::detail::MeanFunctor<T, Sum>> {
  enum { Cost = 10, PacketAccess = packet_traits<T>::Vectorizable, IsRepeatable = true };
};
template <class T, class Sum>
struct functor_has_linear_access<lockstep::detail::MeanFunctor<T, Sum>> {
  enum { ret = 1 };
};

/// @cond not ours: a part of Eigen
/// `map = nullary expression of ours`: one streaming loop, chosen when it runs where that depends on the
/// sources.
template <class Target, class Functor, class Plain, class T>
requires lockstep::detail::is_streaming_functor<Functor>
struct Assignment<Target, CwiseNullaryOp<Functor, Plain>, assign_op<T, T>, Dense2Dense> {
  static void run(Target& target, const CwiseNullaryOp<Functor, Plain>& source, const assign_op<T, T>&) {
    resize_if_allowed(target, source, assign_op<T, T>());
    lockstep::detail::assign(target.data(), source.functor(), static_cast<lockstep::Index>(target.size()));
  }
};
/// @endcond
}  // namespace Eigen::internal
