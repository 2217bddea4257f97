// SPDX-License-Identifier: MIT
/// @file
/// Eigen matrices, vectors and arrays as variables and gradients.
#pragma once

#include <lockstep/tensor/traits.hpp>

#include <Eigen/Core>

#include <array>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {
template <class Derived>
void as_dense(const Eigen::DenseBase<Derived>&);  // not defined

/// A dense Eigen expression, also one whose class derives from another expression, as that of `v.head(n)`
/// does.
template <class Expr>
concept DenseEigen = requires(const Expr& expr) {
  as_dense(expr);
};

/// The expression itself if its coefficients lie in memory already, else what it evaluates to.
template <DenseEigen Expr>
decltype(auto) evaluated_once(const Expr& expr) {
  if constexpr ((Expr::Flags & Eigen::DirectAccessBit) != 0)
    return (expr);
  else
    return expr.eval();
}
}  // namespace detail

/// @cond members as the primary templates in tensor/traits.hpp say
/// Any dense Eigen expression; the handle remembers its plain object type.
template <detail::DenseEigen Expr>
struct TensorOf<Expr> {
  using type = typename Expr::PlainObject;
};

template <class Plain, class T>
requires std::derived_from<Plain, Eigen::PlainObjectBase<Plain>> && std::same_as<typename Plain::Scalar, T>
struct TensorTraits<Plain, T> {
  using Scalar = T;
  using Shape = std::array<Index, 2>;  // rows, columns
  using View = Eigen::Map<Plain, Eigen::Unaligned>;
  using ConstView = Eigen::Map<const Plain, Eigen::Unaligned>;
  static constexpr bool is_vector = Plain::IsVectorAtCompileTime;
  /// Row i is contiguous in row-major matrices and in vectors, where a row is one element.
  static constexpr bool contiguous_rows = is_vector || Plain::IsRowMajor;

  /// The same plain type with another scalar, for gradients in a narrower type.
  template <class G>
  using Rebound =
      Eigen::Map<std::conditional_t<
                     std::derived_from<Plain, Eigen::ArrayBase<Plain>>,
                     Eigen::Array<G, Plain::RowsAtCompileTime, Plain::ColsAtCompileTime, Plain::Options>,
                     Eigen::Matrix<G, Plain::RowsAtCompileTime, Plain::ColsAtCompileTime, Plain::Options>>,
                 Eigen::Unaligned>;
  template <class G>
  using GradientView = Rebound<G>;

  template <class Expr>
  static Shape shape_of(const Expr& expr) {
    return {expr.rows(), expr.cols()};
  }
  static std::vector<Index> extents(const Shape& shape) {
    if (is_vector) return {shape[0] * shape[1]};
    return {shape[0], shape[1]};
  }
  static View view(T* data, const Shape& shape) { return View(data, shape[0], shape[1]); }
  static ConstView view(const T* data, const Shape& shape) { return ConstView(data, shape[0], shape[1]); }
  template <class G>
  static Rebound<G> gradient_view(G* data, const Shape& shape) {
    return Rebound<G>(data, shape[0], shape[1]);
  }
  /// Evaluates once, straight into `data`; an expression that reads `data` itself is evaluated aside first.
  template <class G, class Expr>
  static void assign(G* data, const Shape& shape, const Expr& expr) {
    auto target = gradient_view(data, shape);
    using Value = typename Expr::Scalar;
    if constexpr (std::same_as<Value, G>) {
      if constexpr (std::derived_from<Expr, Eigen::MatrixBase<Expr>>)
        target.matrix() = expr.matrix();
      else
        target.array() = expr.array();
    } else {
      target.array() = expr.array().template cast<G>();
    }
  }
};
/// @endcond

LOCKSTEP_NAMESPACE_END
