// SPDX-License-Identifier: MIT
/// @file
/// Shapes, row-major tensors, views of them, and row-sparse gradients, as the accumulators take and give
/// them.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/tensor/element_count.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Extents, outermost first; () is a scalar. In a declared shape `k_unknown` is an extent that may be
/// anything.
using Shape = std::vector<Index>;
/// An extent of a declared shape that may be anything.
inline constexpr Index k_unknown = -1;

/// Types that gradients are accumulated in, and the arithmetic is done in.
template <class T>
concept AccumulatedScalar = std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, Eigen::half>;

/// An array that owns its elements, in row-major order.
template <class T>
struct Tensor {
  std::vector<T> elements;  ///< row-major
  Shape shape;              ///< extents
  /// Equal elements and shape.
  friend bool operator==(const Tensor&, const Tensor&) = default;
};

/// A row-major array that somebody else owns; cheap to make, valid while the elements live.
template <class T>
struct TensorView {
  std::span<T> elements;  ///< row-major
  Shape shape;            ///< extents

  /// @pre the shape has as many elements as there are
  TensorView(std::span<T> row_major, Shape extents) : elements(row_major), shape(std::move(extents)) {}
  /// A vector: shape (n,).
  template <class Range>
  requires std::convertible_to<const Range&, std::span<T>> TensorView(const Range& vector)
      : elements(vector), shape{static_cast<Index>(elements.size())} {}
  /// A view of a tensor, which must outlive it.
  TensorView(const Tensor<std::remove_const_t<T>>& tensor) requires std::is_const_v<T>
      : elements(tensor.elements), shape(tensor.shape) {}
};

/// A gradient that is zero outside some rows. Ascending `indices` give ascending results.
template <class T>
struct SparseGradient {
  TensorView<const Index> indices;  ///< shape (rows,): which row of the variable each slice belongs to
  TensorView<const T> values;       ///< shape (rows, ...): one slice per index
  std::optional<Shape> dense_shape = std::nullopt;  ///< shape of the whole gradient, if the caller knows it
};

/// The aggregate of row-sparse gradients.
template <class T>
struct SparseTensor {
  std::vector<Index> indices;  ///< (rows,)
  Tensor<T> values;            ///< shape (rows, ...)
  Shape dense_shape;           ///< rank of `values`; the first extent is `k_unknown` if it was not declared
  /// Equal elements and shape.
  friend bool operator==(const SparseTensor&, const SparseTensor&) = default;
};

namespace detail {

/// Whether a shape fits a declared one from axis `first` on; the rank is not looked at beyond the declared
/// one.
inline bool extents_match(const Shape& shape, const Shape& declared, std::size_t first = 0) {
  for (std::size_t axis = first; axis < declared.size(); ++axis)
    if (declared[axis] != k_unknown && declared[axis] != shape[axis]) return false;
  return true;
}

inline void require_valid_declaration(const std::optional<Shape>& declared) {
  if (declared &&
      std::any_of(declared->begin(), declared->end(), [](Index extent) { return extent < k_unknown; }))
    throw_error<InvalidArgument>("accumulator: extents must be at least 0, or -1 for unknown, got ",
                                 shape_text(*declared));
}

/// @return the shape, for a sum whose size must be known.
inline Shape require_known_extents(const std::optional<Shape>& declared, std::size_t first = 0) {
  if (!declared || declared->size() < first ||
      std::find(declared->begin() + static_cast<std::ptrdiff_t>(first), declared->end(), k_unknown) !=
          declared->end())
    throw_error<InvalidArgument>(
        "accumulator: between processes the shape must be declared with all its extents, got ",
        declared ? shape_text(*declared) : "none");
  return *declared;
}

template <class T>
void require_well_formed(const char* what, const TensorView<T>& view) {
  if (element_count(view.shape) != static_cast<Index>(view.elements.size()))
    throw_error<ShapeMismatch>("apply_grad: ", what, " have shape ", shape_text(view.shape), " but ",
                               view.elements.size(), " elements");
}

/// Row-major elements as one Eigen array, for whole-array arithmetic.
template <class T>
auto as_array(std::span<T> elements) {
  using Array = Eigen::Array<std::remove_const_t<T>, Eigen::Dynamic, 1>;
  using Mapped = std::conditional_t<std::is_const_v<T>, const Array, Array>;
  return Eigen::Map<Mapped>(elements.data(), static_cast<Eigen::Index>(elements.size()));
}

/// A rank 1 or rank 2 Eigen expression as a row-major tensor. Vectors, fixed at compile time, have rank 1.
template <class Derived>
Tensor<typename Derived::Scalar> row_major(const Eigen::DenseBase<Derived>& expression) {
  using T = typename Derived::Scalar;
  Tensor<T> result;
  result.elements.resize(static_cast<std::size_t>(expression.size()));
  if constexpr (Derived::IsVectorAtCompileTime)
    result.shape = {expression.size()};
  else
    result.shape = {expression.rows(), expression.cols()};
  // A column vector cannot be stored by rows; its elements are in the same order either way.
  constexpr int order = Derived::ColsAtCompileTime == 1 ? Eigen::ColMajor : Eigen::RowMajor;
  using Plain = Eigen::Matrix<T, Derived::RowsAtCompileTime, Derived::ColsAtCompileTime, order>;
  Eigen::Map<Plain> target(result.elements.data(), expression.rows(), expression.cols());
  if constexpr (std::is_base_of_v<Eigen::MatrixBase<Derived>, Derived>)
    target = expression.derived();
  else
    target.array() = expression.derived();
  return result;
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
