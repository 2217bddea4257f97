// SPDX-License-Identifier: MIT
/// @file
/// The window of gradient aggregation: when k micro-batches make an update, in the default way and in five
/// historical ones.
#pragma once

#include <lockstep/config.hpp>

#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

/// Which counter decides that a window is full, and what `global_step` counts.
enum class AggregationVariant : std::uint8_t {
  own_counter,  ///< the k-th micro-batch of a window closes it; the divisor is what was really added; global
                ///< step = updates
  gpu,          ///< global step, which counts every micro-batch, is k-1 modulo k
  tpu,  ///< an own counter of all micro-batches is k-1 modulo k; global step counts micro-batches as well
  mlperf_v1,  ///< as `tpu`, but global step counts updates
  early,      ///< as `gpu`, with a counter of updates
  lingvo,     ///< as `mlperf_v1`, and k = 1 is the plain optimizer
};

namespace protocol {

/// Counters of one window. All are integers, so none stops counting.
struct Window {
  std::int64_t global_step = 0;  ///< what the variant calls global step
  std::int64_t counter = 0;      ///< the variant's own counter
  std::int64_t pending = 0;      ///< micro-batches in the open window
  std::int64_t updates = 0;      ///< windows applied

  /// The historical variants divide each micro-batch by k; the default divides the sum by what was added.
  static constexpr bool divides_by_k(AggregationVariant variant) {
    return variant != AggregationVariant::own_counter;
  }

  /// Whether the next micro-batch closes the window.
  bool closes(AggregationVariant variant, std::int64_t k) const {
    switch (variant) {
      case AggregationVariant::own_counter:
        return pending + 1 >= k;
      case AggregationVariant::gpu:
      case AggregationVariant::early:
        return global_step % k == k - 1;
      case AggregationVariant::tpu:
      case AggregationVariant::mlperf_v1:
        return counter % k == k - 1;
      case AggregationVariant::lingvo:
        return (counter + 1) % k == 0;
    }
    return true;
  }

  /// A micro-batch was taken in; `applied` if it closed the window.
  void advance(AggregationVariant variant, std::int64_t k, bool applied) {
    const bool counts_micro_batches = variant == AggregationVariant::gpu ||
                                      variant == AggregationVariant::tpu ||
                                      variant == AggregationVariant::early;
    if (counts_micro_batches || applied) ++global_step;
    const bool counts_updates = variant == AggregationVariant::early;
    const bool counts_nothing =
        variant == AggregationVariant::gpu || (variant == AggregationVariant::lingvo && k == 1);
    if (!counts_nothing && (!counts_updates || applied)) ++counter;
    pending = applied ? 0 : pending + 1;
    if (applied) ++updates;
  }
};

}  // namespace protocol

LOCKSTEP_NAMESPACE_END
