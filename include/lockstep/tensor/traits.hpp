// SPDX-License-Identifier: MIT
/// @file
/// The customization points by which a tensor library becomes views of the flat layout.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <concepts>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Maps the type of an expression to the plain tensor type that a handle remembers: `type`.
/// Specialise it for each tensor library; the primary template knows nothing.
template <class Expr>
struct TensorOf {};

/// What the library must know of a plain tensor type:
/// - `Scalar`, `Shape` (a regular type), `View` and `ConstView`;
/// - `shape_of(expr)`: the shape of an expression;
/// - `extents(shape)`: the extents as a `std::vector<Index>`, outermost first;
/// - `view(T* data, shape)` and `view(const T* data, shape)`: contiguous views of 64-byte aligned memory;
/// - `assign(T* data, shape, expr)`: evaluates the expression once into that memory;
/// - `GradientView<G>` and `gradient_view(G* data, shape)`: the same for gradients of another scalar;
/// - `contiguous(expr)`: something with row-major `data()` and `size()` that holds the values of the
/// expression;
/// - `contiguous_rows`: whether row i of the first dimension is one contiguous run of memory, which it is if
/// the last index runs fastest. If not, the first index must.
template <class Tensor, class T>
struct TensorTraits {};

/// The plain tensor type of an expression.
template <class Expr>
using tensor_of_t = typename TensorOf<std::remove_cvref_t<Expr>>::type;

/// An expression that can be evaluated into a tensor of `T`.
template <class E, class T>
concept TensorExpression = requires {
  typename TensorTraits<tensor_of_t<E>, T>::Shape;
};

namespace detail {

/// @throws ShapeMismatch with both shapes if they differ.
template <class Shape>
void expect_shape(const Shape& declared, const Shape& found, std::string_view variable,
                  std::string_view what) {
  const auto describe = [](const Shape& shape) {
    if constexpr (std::integral<Shape>)
      return shape_text(std::span<const Shape>(&shape, 1));
    else
      return shape_text(shape);
  };
  if (!(declared == found))
    throw_error<ShapeMismatch>(what, " of variable '", variable, "': expected shape ", describe(declared),
                               ", got ", describe(found));
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
