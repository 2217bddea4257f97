// SPDX-License-Identifier: MIT
/// @file
/// What an accumulator is made from, and the request of one taker.
#pragma once

#include <lockstep/accumulators/tensor.hpp>
#include <lockstep/config.hpp>
#include <lockstep/protocol/fifo.hpp>
#include <lockstep/reduction.hpp>

#include <optional>

LOCKSTEP_NAMESPACE_BEGIN

/// What an accumulator is made from. Over a transport between processes the sums lie in the session, so their
/// size must be known: `shape` must be given with all its extents (the first one of a sparse accumulator may
/// be unknown if `max_rows` is given).
struct AccumulatorOptions {
  std::optional<Shape> shape = std::nullopt;  ///< declared shape of the gradients; absent = of any rank
  Reduction reduction = Reduction::mean;      ///< what `take_grad` gives
  /// Between processes: how many takers may be in line or not collected at once, 1 to 64. The session holds
  /// as many results, and two sums.
  int max_takers = 4;
  /// Between processes, sparse: most rows of the sum. 0: the first extent of `shape`.
  Index max_rows = 0;
};

namespace detail {

enum class TakerPhase { waiting, served, cancelled, taken };

/// The request of one taker, in the memory of its process. Guarded by the session.
struct TakerSeat {
  protocol::Ticket ticket = 0;
  Index num_required = 0;
  TakerPhase phase = TakerPhase::waiting;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
