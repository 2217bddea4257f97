// SPDX-License-Identifier: MIT
/// @file
/// Whether a gradient fits the variable that it is for.
#pragma once

#include <lockstep/accumulators/tensor.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/layout.hpp>
#include <lockstep/per_variable/gradient.hpp>

#include <variant>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

inline void expect_gradient_shape(const VariableInfo& info, const Shape& expected, const Shape& found) {
  if (found != expected)
    throw_error<ShapeMismatch>("gradient of variable '", info.name, "': expected shape ",
                               shape_text(expected), ", got ", shape_text(found));
}

/// The shape of `count` rows of a variable.
inline Shape rows_shape(const VariableInfo& info, Index count) {
  Shape shape{count};
  if (info.rank() > 1) shape.insert(shape.end(), info.shape.begin() + 1, info.shape.end());
  return shape;
}

/// @param is_trainable  anything is right for a frozen variable, since it is ignored.
/// @throws UsageError for a gradient of another kind than declared; InvalidArgument for a wrong shape or row.
template <class T>
void check_gradient(const VariableInfo& info, GradientKind declared, bool is_trainable,
                    const VariableGradient<T>& gradient) {
  const auto* dense = std::get_if<TensorView<const T>>(&gradient);
  const auto* rows = std::get_if<SparseGradient<T>>(&gradient);
  if (!is_trainable || (!dense && !rows)) return;
  const GradientKind found = dense ? GradientKind::dense : GradientKind::sparse;
  if (found != declared)
    throw_error<UsageError>("gradient of '", info.name, "': declared with ", to_string(declared),
                            " gradients, got a ", to_string(found), " one; see VariableOptions::sparse");
  if (dense) {
    expect_gradient_shape(info, info.shape, dense->shape);
    require_well_formed("the gradient's elements", *dense);
    return;
  }
  const auto count = static_cast<Index>(rows->indices.elements.size());
  if (rows->indices.shape != Shape{count})
    throw_error<ShapeMismatch>("gradient of variable '", info.name, "': expected indices of shape (", count,
                               "), got ", shape_text(rows->indices.shape));
  if (rows->dense_shape) expect_gradient_shape(info, info.shape, *rows->dense_shape);
  expect_gradient_shape(info, rows_shape(info, count), rows->values.shape);
  require_well_formed("the values", rows->values);
  for (const Index row : rows->indices.elements)
    if (row < 0 || row >= info.rows())
      throw_error<InvalidArgument>("rows of variable '", info.name, "': index must be in [0, ", info.rows(),
                                   "), got ", row);
}

/// @param seen by variable number. @throws InvalidArgument for the second gradient of a variable in a list.
inline void expect_first(const VariableInfo& info, std::vector<bool>& seen) {
  if (seen[info.id]) throw_error<InvalidArgument>("gradients: variable '", info.name, "' is named twice");
  seen[info.id] = true;
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
