// SPDX-License-Identifier: MIT
/// @file
/// An update as one Eigen assignment: the mean is formed in a register and the rule runs on it there.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/fetch.hpp>
#include <lockstep/gradients/keep_lines.hpp>
#include <lockstep/gradients/mean.hpp>
#include <lockstep/gradients/row_merge.hpp>
#include <lockstep/gradients/sources.hpp>
#include <lockstep/gradients/stream.hpp>
#include <lockstep/gradients/sum.hpp>
#include <lockstep/optimizers/rule.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// No gradient at all: the rule gets zero.
template <class T>
struct ZeroSum {
  static constexpr std::size_t k_most_arrays = 0;
  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE Pack<T, Packet> at(Index) const {
    return Pack<T, Packet>(T(0));
  }
};

/// What an update of elements changes.
template <class T, std::size_t slots>
LOCKSTEP_ALWAYS_INLINE std::array<T*, slots + 1> changed_arrays(T* values,
                                                                const std::array<T*, slots>& of_slots) {
  std::array<T*, slots + 1> all{values};
  std::copy(of_slots.begin(), of_slots.end(), all.begin() + 1);
  return all;
}

/// A rule is held by value where that is free, so that its parameters stay in registers.
template <class R>
using HeldRule = std::conditional_t<std::is_trivially_copyable_v<R>, const R, const R&>;

/// For `stream`: loads variable and slots, forms the mean, runs the rule, stores the slots and returns the
/// new variable. Indices count from element `start` of the layout.
template <class T, class R, class Sum>
class UpdateFunctor {
 public:
  static constexpr std::size_t slot_count = slot_count_v<R>;
  /// Three arrays are worth fetching. Of more, each fetch takes the place of a load that the processor would
  /// look ahead to (docs/design/006).
  static constexpr bool k_fetches = Sum::k_most_arrays + slot_count <= 2;

  UpdateFunctor(const R& rule, const step_of_t<R>& step, T* values, const std::array<T*, slot_count>& slots,
                const Sum& sum, T scale, Index start)
      : rule_(rule), step_(step), values_(values + start), slots_(slots), sum_(sum), scale_(scale) {
    for (T*& slot : slots_) slot += start;
  }

  LOCKSTEP_ALWAYS_INLINE T operator()(Eigen::Index i) const {
    return run<T>(i, std::make_index_sequence<slot_count>());
  }
  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE Packet packetOp(Eigen::Index i) const {
    return run<Packet>(i, std::make_index_sequence<slot_count>());
  }
  /// Brings the line of each array nearer that is needed some lines later.
  LOCKSTEP_ALWAYS_INLINE void fetch(Eigen::Index i) const {
    fetch_for_writing(address_of(values_, i + k_ahead));
    for (const T* slot : slots_) fetch_for_writing(address_of(slot, i + k_ahead));
    if constexpr (requires { sum_.fetch(0); }) sum_.fetch(i + k_ahead);
  }
  /// All arrays that change, from element `start` on.
  LOCKSTEP_ALWAYS_INLINE std::array<T*, slot_count + 1> changed() const {
    return changed_arrays(values_, slots_);
  }
  /// It is worth while, though the run is short.
  bool is_far() const {
    if constexpr (requires { sum_.is_far(); }) return sum_.is_far();
    return false;
  }

 private:
  static constexpr Index k_ahead = 2048 / sizeof(T);  // how far all arrays are fetched

  template <class Packet, std::size_t... I>
  LOCKSTEP_ALWAYS_INLINE Packet run(Eigen::Index i, std::index_sequence<I...>) const {
    using P = Pack<T, Packet>;
    P w = P::load(values_ + i);
    [[maybe_unused]] std::array<P, slot_count> slot{P::load(slots_[I] + i)...};
    if constexpr (std::same_as<Sum, ZeroSum<T>>)
      rule_.update(step_, w, P(T(0)), slot[I]...);
    else
      rule_.update(step_, w, sum_.template at<Packet>(i) * P(scale_), slot[I]...);
    (slot[I].store(slots_[I] + i), ...);
    return w.packet();
  }

  HeldRule<R> rule_;
  step_of_t<R> step_;
  T* values_;
  std::array<T*, slot_count> slots_;
  Sum sum_;
  T scale_;
};

/// The same shape for elements without a gradient: only `rule.update_absent(step, w, slots...)` runs.
template <class R>
struct AbsentRule {
  const R& rule;
  static constexpr auto slots = R::slots;
  using Step = step_of_t<R>;
  Step prepare(const StepInfo& info) const { return prepare_step(rule, info); }
  LOCKSTEP_ALWAYS_INLINE void update(const Step& step, auto& w, auto, auto&... slot) const {
    rule.update_absent(step, w, slot...);
  }
};

template <class R, class Element, class Indices>
struct AbsentUpdates : std::false_type {};
template <class R, class Element, std::size_t... I>
struct AbsentUpdates<R, Element, std::index_sequence<I...>> {
  template <std::size_t>
  using Ref = Element&;
  static constexpr bool value = requires(const R& rule, const step_of_t<R>& step, Element& w) {
    rule.update_absent(step, w, std::declval<Ref<I>>()...);
  };
};

/// The rule has something to do where there is no gradient.
template <class R, class T>
concept UpdatesAbsent = AbsentUpdates<R, Pack<T>, std::make_index_sequence<slot_count_v<R>>>::value;

template <class T, class R, class Sum, class Keeper>
void stream_update(const R& rule, const step_of_t<R>& step, T* values,
                   const std::array<T*, slot_count_v<R>>& slots, const Sum& sum, T scale, Index start,
                   Index size, const Keeper& keeper) {
  const UpdateFunctor<T, R, Sum> functor(rule, step, values, slots, sum, scale, start);
  stream(values + start, keeper.over(functor, start), size);
}

/// Nullary functor of Eigen: an update with the mean of any sources. Its loop is chosen when it is assigned,
/// so that there is one type of expression for all of them, which compilers get through faster.
template <class T, class G, class R, class Keeper>
struct MeanUpdate {
  const R& rule;
  const step_of_t<R>& step;
  T* values;
  const std::array<T*, slot_count_v<R>>& slots;
  const Sources<T, G>& sources;
  Index start;
  const Keeper& keeper;

  void assign(Index size) const {
    for_sums(sources, start, size, [&](const auto& sum, Index i, Index count) {
      stream_update(rule, step, values, slots, sum, sources.scale, start + i, count, keeper);
    });
  }
};
template <class T, class G, class R, class Keeper>
inline constexpr bool is_streaming_functor<MeanUpdate<T, G, R, Keeper>> = true;

}  // namespace detail

/// Applies `rule` to elements [start, start + size) of variable and slots with the mean of `sources`.
/// One pass: each array is read once and written once; nothing is materialised.
/// @param keeper copies lines before they are changed, where somebody may have to put it back.
template <class T, class G, class R, class Keeper = detail::NothingKept>
void update_elements(const R& rule, const step_of_t<R>& step, T* values,
                     const std::array<T*, slot_count_v<R>>& slots, const Sources<T, G>& sources, Index start,
                     Index size, const Keeper& keeper = {}) {
  using Flat = Eigen::Array<T, Eigen::Dynamic, 1>;
  Eigen::Map<Flat>(values + start, size) = Flat::NullaryExpr(
      size, detail::MeanUpdate<T, G, R, Keeper>{rule, step, values, slots, sources, start, keeper});
}

namespace detail {

/// The scaled sum of a row that one contribution has: nothing but the row is read from memory.
template <class T, class G>
struct SingleRow {
  static constexpr Index k_unrolled = 4;  // registers of the row that are updated at a time
  const G* source;
  T coefficient, scale;
  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE Pack<T, Packet> at(Index i) const {
    using P = Pack<T, Packet>;
    return P(coefficient) * load_as<T, Packet>(source + i) * P(scale);
  }
};

/// The same of any row.
template <class T, class G>
struct SharedRow {
  static constexpr Index k_unrolled = 1;  // it has a loop of its own for each register
  const MergedRow<T, G>& row;
  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE Pack<T, Packet> at(Index i) const {
    using P = Pack<T, Packet>;
    int k = 0;
    P sum = row.wide ? P::load(row.wide + i) : weighted<Packet>(k++, i);
    for (; k < row.count; ++k) sum += weighted<Packet>(k, i);
    return sum * P(row.scale);
  }
  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE Pack<T, Packet> weighted(int k, Index i) const {
    return Pack<T, Packet>(row.coefficients[k]) * load_as<T, Packet>(row.sources[k] + i);
  }
};

/// How many rows ahead of its update a row is fetched.
inline constexpr std::size_t k_rows_fetched_ahead = 16;

/// Brings nearer what the update of a row reads and writes.
template <class T, class G, std::size_t count>
LOCKSTEP_ALWAYS_INLINE void fetch_row(const MergedRow<T, G>& row, const std::array<T*, count>& changed) {
  for (const T* array : changed) fetch_elements<true>(array + row.begin, row.size);
  for (int k = 0; k < row.count; ++k) fetch_elements<false>(row.sources[k], row.size);
}

template <class T, class Packet, class R, class Sum, std::size_t... I>
LOCKSTEP_ALWAYS_INLINE void update_pack(const R& rule, const step_of_t<R>& step, T* values,
                                        const std::array<T*, slot_count_v<R>>& slots, const Sum& sum,
                                        Index at, Index i, std::index_sequence<I...>) {
  using P = Pack<T, Packet>;
  P w = P::load(values + at + i);
  [[maybe_unused]] std::array<P, slot_count_v<R>> slot{P::load(slots[I] + at + i)...};
  rule.update(step, w, sum.template at<Packet>(i), slot[I]...);
  w.store(values + at + i);
  (slot[I].store(slots[I] + at + i), ...);
}

/// Applies a rule to elements of one row. A type of its own for `for_lines`, because g++ does not inline a
/// lambda of this length.
template <class T, class R, class Sum>
struct RowUpdate {
  const R& rule;
  const step_of_t<R>& step;
  T* values;
  const std::array<T*, slot_count_v<R>>& slots;
  const Sum& sum;
  Index row;  // its first element, as the layout counts

  LOCKSTEP_ALWAYS_INLINE void operator()(Index i, Index end) const {
    using Packet = BestPacket<T>;
    constexpr Index lanes = Eigen::internal::unpacket_traits<Packet>::size;
    constexpr Index at_once = Sum::k_unrolled * lanes;
    for (; i + at_once <= end; i += at_once) {
#pragma GCC unroll 4
      for (Index k = 0; k < at_once; k += lanes) update<Packet>(i + k);
    }
    for (; i + lanes <= end; i += lanes) update<Packet>(i);
    for (; i < end; ++i) update<T>(i);
  }
  template <class Packet>
  LOCKSTEP_ALWAYS_INLINE void update(Index i) const {
    update_pack<T, Packet>(rule, step, values, slots, sum, row, i,
                           std::make_index_sequence<slot_count_v<R>>());
  }
};

template <class T, class G, class R, class Sum, class Keeper>
LOCKSTEP_ALWAYS_INLINE void update_row(const R& rule, const step_of_t<R>& step, T* values,
                                       const std::array<T*, slot_count_v<R>>& slots,
                                       const MergedRow<T, G>& row, const Sum& sum, const Keeper& keeper) {
  keeper.for_lines(0, row.size, row.begin, changed_arrays(values, slots),
                   RowUpdate<T, R, Sum>{rule, step, values, slots, sum, row.begin});
}

}  // namespace detail

/// Applies `rule` to the rows of a merge. All that were found in one loop, which stores nothing but rows:
/// what else it stored, such as the arguments of a call for each row or the list of the next ones, would wait
/// until all rows before are written (docs/design/006).
/// @param keeper as in `update_elements`.
template <class T, class G, class R, class Keeper = detail::NothingKept>
void update_rows(const R& rule, const step_of_t<R>& step, T* values,
                 const std::array<T*, slot_count_v<R>>& slots, RowMerge<T, G>& merge,
                 const Keeper& keeper = {}) {
  const detail::HeldRule<R> held = rule;
  const step_of_t<R> held_step = step;
  const auto changed = detail::changed_arrays(values, slots);
  constexpr std::size_t ahead = detail::k_rows_fetched_ahead;
  for (; !merge.rows().empty(); merge.next()) {
    const std::span<const MergedRow<T, G>> rows = merge.rows();
    for (std::size_t k = 0; k < std::min(ahead, rows.size()); ++k) detail::fetch_row(rows[k], changed);
    for (std::size_t k = 0; k < rows.size(); ++k) {
      if (k + ahead < rows.size()) detail::fetch_row(rows[k + ahead], changed);
      const MergedRow<T, G>& row = rows[k];
      if (row.count == 1 && !row.wide)
        detail::update_row(held, held_step, values, slots, row,
                           detail::SingleRow<T, G>{row.sources[0], row.coefficients[0], row.scale}, keeper);
      else
        detail::update_row(held, held_step, values, slots, row, detail::SharedRow<T, G>{row}, keeper);
    }
  }
}

/// `update_elements` with a gradient of zero.
template <class T, class R, class Keeper = detail::NothingKept>
void update_elements_by_zero(const R& rule, const step_of_t<R>& step, T* values,
                             const std::array<T*, slot_count_v<R>>& slots, Index start, Index size,
                             const Keeper& keeper = {}) {
  detail::stream_update<T>(rule, step, values, slots, detail::ZeroSum<T>{}, T(1), start, size, keeper);
}

/// What the rule does to elements that have no gradient: nothing, unless it has `update_absent`.
template <class T, class R, class Keeper = detail::NothingKept>
void update_elements_absent(const R& rule, const step_of_t<R>& step, T* values,
                            const std::array<T*, slot_count_v<R>>& slots, Index start, Index size,
                            const Keeper& keeper = {}) {
  if constexpr (detail::UpdatesAbsent<R, T>) {
    const detail::AbsentRule<R> absent{rule};
    detail::stream_update<T>(absent, step, values, slots, detail::ZeroSum<T>{}, T(1), start, size, keeper);
  }
}

LOCKSTEP_NAMESPACE_END
