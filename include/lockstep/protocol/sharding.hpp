// SPDX-License-Identifier: MIT
/// @file
/// The axis along which an accumulated gradient is cut into partitions.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <optional>
#include <span>

LOCKSTEP_NAMESPACE_BEGIN

namespace protocol {

/// @brief The axis to cut, or nothing if the tensor stays whole.
///
/// Rank 3: axis 1. Rank 2: the longer axis, the first one of two equal ones. Other ranks stay whole, and so
/// does everything if `num_partitions` is absent or 0. The axis need not be divisible.
/// @throws InvalidArgument if the axis is shorter than the number of partitions.
/// @par Source the sharding annotation of TensorFlow's `GradientAggregationOptimizer`.
constexpr std::optional<int> sharded_axis(std::span<const Index> shape, std::optional<Index> num_partitions) {
  if (num_partitions.value_or(0) == 0) return std::nullopt;
  if (shape.size() != 2 && shape.size() != 3) return std::nullopt;
  const int axis = shape.size() == 3 || shape[0] < shape[1] ? 1 : 0;
  const Index extent = shape[static_cast<std::size_t>(axis)];
  if (extent < *num_partitions)
    throw InvalidArgument(detail::text("sharded_axis: axis ", axis, " of shape ", detail::shape_text(shape),
                                       " is shorter than the ", *num_partitions, " partitions"));
  return axis;
}

}  // namespace protocol

LOCKSTEP_NAMESPACE_END
