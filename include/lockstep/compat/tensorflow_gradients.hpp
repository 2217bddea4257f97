// SPDX-License-Identifier: MIT
/// @file
/// Gradients as TensorFlow programs pass them: a list of (gradient, variable), where a gradient may be
/// anything.
#pragma once

#include <lockstep/accumulators/tensor.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/per_variable/gradient.hpp>
#include <lockstep/per_variable/gradient_check.hpp>

#include <any>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// The names of TensorFlow. Opt-in: `#include <lockstep/compat/tensorflow.hpp>`.
namespace tensorflow {

/// What Python calls TypeError: a gradient that must not be None.
struct TypeError : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

/// What Python calls RuntimeError here: variables of the model have no value yet.
struct NotInitialized : UsageError {
  using UsageError::UsageError;
};

/// No gradient.
inline constexpr std::nullptr_t None = nullptr;

/// A row-sparse gradient: row `indices[i]` has gradient `values[i]`.
template <class T>
struct IndexedSlices {
  Tensor<T> values;            ///< shape (rows, ...): one slice per index
  std::vector<Index> indices;  ///< rows of the variable
  std::optional<Shape> dense_shape =
      std::nullopt;  ///< shape of the variable; needed where a gradient is made dense
};

/// A gradient: `None`, a `Tensor<T>`, or `IndexedSlices<T>`. Anything else is refused where it is used, as in
/// Python.
using Gradient = std::any;

/// A gradient and the name of its variable.
struct GradAndVar {
  Gradient gradient;     ///< `None`, a tensor, or slices
  std::string variable;  ///< name of the variable
};
/// What `apply_gradients` takes: in any order, each variable once.
using GradsAndVars = std::vector<GradAndVar>;

namespace detail {

using lockstep::detail::throw_error;

/// The gradient as the library's own type; a view of what `pair` holds.
/// @throws InvalidArgument if it is of no known type.
template <class T>
VariableGradient<T> gradient_of(const GradAndVar& pair) {
  const Gradient& gradient = pair.gradient;
  if (!gradient.has_value() || std::any_cast<std::nullptr_t>(&gradient)) return std::monostate{};
  if (const auto* dense = std::any_cast<Tensor<T>>(&gradient)) return TensorView<const T>(*dense);
  if (const auto* rows = std::any_cast<IndexedSlices<T>>(&gradient))
    return SparseGradient<T>{
        .indices = rows->indices, .values = rows->values, .dense_shape = rows->dense_shape};
  throw_error<InvalidArgument>("gradient of '", pair.variable,
                               "': must be None, Tensor or IndexedSlices of the variables' ",
                               "scalar, got an object of another type");
}

/// A variable that is known by name only, as row-major elements.
template <class T>
Handle<NdSpan<T>, T> handle_of(const Variables<T>& variables, const VariableInfo& info) {
  return {info.id, info.offset, info.shape, &variables};
}

}  // namespace detail

/// A gradient as a dense tensor of the variable's shape; equal rows are summed.
/// @throws TypeError for None; InvalidArgument for slices without dense_shape, a row out of range, or an
/// object of another type; ShapeMismatch if it does not fit the variable.
template <class T>
Tensor<T> densify(const GradAndVar& pair, const VariableInfo& variable) {
  const VariableGradient<T> gradient = detail::gradient_of<T>(pair);
  const auto* dense_gradient = std::get_if<TensorView<const T>>(&gradient);
  const auto* rows = std::get_if<SparseGradient<T>>(&gradient);
  if (!dense_gradient && !rows)
    detail::throw_error<TypeError>("gradient of '", pair.variable, "': is None, which cannot be accumulated");
  if (rows && !rows->dense_shape)
    detail::throw_error<InvalidArgument>("gradient of '", pair.variable,
                                         "': IndexedSlices without dense_shape cannot be made dense");
  const GradientKind kind = rows ? GradientKind::sparse : GradientKind::dense;
  lockstep::detail::check_gradient(variable, kind, true, gradient);
  if (dense_gradient)
    return {{dense_gradient->elements.begin(), dense_gradient->elements.end()}, variable.shape};
  Tensor<T> dense{std::vector<T>(static_cast<std::size_t>(variable.size)), variable.shape};
  const auto width = static_cast<std::size_t>(variable.row_size());
  std::size_t from = 0;
  for (const Index row : rows->indices.elements) {
    const std::size_t to = static_cast<std::size_t>(row) * width;
    for (std::size_t i = 0; i < width; ++i) dense.elements[to + i] += rows->values.elements[from + i];
    from += width;
  }
  return dense;
}

}  // namespace tensorflow

LOCKSTEP_NAMESPACE_END
