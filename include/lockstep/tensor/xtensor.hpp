// SPDX-License-Identifier: MIT
/// @file
/// xtensor arrays as variables and gradients. Opt-in: include it beside the other headers.
#pragma once

#include <lockstep/tensor/traits.hpp>

#if __has_include(<xtensor/containers/xadapt.hpp>)
#include <xtensor/containers/xadapt.hpp>
#include <xtensor/containers/xarray.hpp>
#include <xtensor/containers/xtensor.hpp>
#include <xtensor/core/xnoalias.hpp>
#include <xtensor/core/xoperation.hpp>
#elif __has_include(<xtensor/xadapt.hpp>)
#include <xtensor/xadapt.hpp>
#include <xtensor/xarray.hpp>
#include <xtensor/xnoalias.hpp>
#include <xtensor/xoperation.hpp>
#include <xtensor/xtensor.hpp>
#else
#error \
    "lockstep/tensor/xtensor.hpp needs the xtensor library: install it (Debian: libxtensor-dev) or leave this header out"
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

template <class Expr>
concept XtensorExpression = xt::is_xexpression<Expr>::value && requires {
  typename Expr::value_type;
  typename Expr::shape_type;
};

/// Number of dimensions of a shape type; `k_dynamic_rank` if only the value knows.
inline constexpr std::size_t k_dynamic_rank = static_cast<std::size_t>(-1);
template <class Shape>
inline constexpr std::size_t k_rank = k_dynamic_rank;
template <class Shape>
requires requires { std::tuple_size<Shape>::value; }
inline constexpr std::size_t k_rank<Shape> = std::tuple_size<Shape>::value;

template <class T, std::size_t rank>
struct XtensorPlain {
  using type = xt::xtensor<T, rank>;
};
template <class T>
struct XtensorPlain<T, k_dynamic_rank> {
  using type = xt::xarray<T>;
};

/// Row-major, contiguous views with a fixed or a dynamic number of dimensions.
template <std::size_t rank>
struct XtensorViews {
  using Extents = std::array<std::size_t, rank>;
  static Extents extents(std::size_t) { return {}; }
};
template <>
struct XtensorViews<k_dynamic_rank> {
  using Extents = xt::dynamic_shape<std::size_t>;
  static Extents extents(std::size_t count) { return Extents(count); }
};

template <class U, class Extents>
auto xtensor_view(U* data, std::size_t size, const Extents& extents) {
  // Moved, because adapt keeps a reference to a pointer that is an lvalue.
  return xt::adapt<xt::layout_type::row_major>(std::move(data), size, xt::no_ownership(), extents);
}

/// The traits that `xt::xtensor<T, N>` and `xt::xarray<T>` share.
template <class T, std::size_t rank>
struct XtensorTraits {
  using Views = XtensorViews<rank>;
  using Extents = typename Views::Extents;
  template <class U>
  using ViewOf = decltype(xtensor_view(std::declval<U*>(), std::size_t{}, std::declval<const Extents&>()));

  using Scalar = T;
  /// Extents, outermost first. Inline up to eight dimensions, so that checking a shape allocates nothing.
  using Shape = xt::svector<Index, 8>;
  using View = ViewOf<T>;
  using ConstView = ViewOf<const T>;
  template <class G>
  using GradientView = ViewOf<G>;
  static constexpr bool contiguous_rows = true;

  template <class Expr>
  static Shape shape_of(const Expr& expr) {
    Shape shape(expr.dimension());
    std::transform(expr.shape().begin(), expr.shape().end(), shape.begin(),
                   [](auto extent) { return static_cast<Index>(extent); });
    return shape;
  }
  static std::vector<Index> extents(const Shape& shape) { return {shape.begin(), shape.end()}; }
  static View view(T* data, const Shape& shape) { return view_of(data, shape); }
  static ConstView view(const T* data, const Shape& shape) { return view_of(data, shape); }
  template <class G>
  static ViewOf<G> gradient_view(G* data, const Shape& shape) {
    return view_of(data, shape);
  }

  /// Evaluates once, straight into `data`, without a temporary: the expression must not read elements of
  /// `data` other than the one it gives. Allocates nothing, but for run-time shapes of more than four
  /// dimensions.
  template <class G, class Expr>
  static void assign(G* data, const Shape& shape, const Expr& expr) {
    auto target = view_of(data, shape);
    // Not `target = expr`: from another view of the same type that rebinds the view and writes nothing.
    if constexpr (std::is_same_v<typename Expr::value_type, G>)
      xt::noalias(target) = expr;
    else
      xt::noalias(target) = xt::cast<G>(expr);
  }
  /// The values of an xtensor expression in row-major memory of their own; other ranges are that already.
  template <class Range>
  static decltype(auto) contiguous(const Range& range) {
    if constexpr (XtensorExpression<Range>)
      return xt::xarray<std::remove_cv_t<typename Range::value_type>, xt::layout_type::row_major>(range);
    else
      return (range);
  }

 private:
  template <class U>
  static ViewOf<U> view_of(U* data, const Shape& shape) {
    Extents extents = Views::extents(shape.size());
    std::size_t size = 1;
    for (std::size_t i = 0; i < extents.size(); ++i) {
      extents[i] = static_cast<std::size_t>(shape[i]);
      size *= extents[i];
    }
    return xtensor_view(data, size, extents);
  }
};

}  // namespace detail

/// @cond members as the primary templates in tensor/traits.hpp say
/// Any xtensor expression; the handle remembers `xt::xtensor<T, N>`, or `xt::xarray<T>` if the number of
/// dimensions is known at run time only. Memory is row-major whatever the layout of the expression.
template <detail::XtensorExpression Expr>
struct TensorOf<Expr> {
  using type = typename detail::XtensorPlain<std::remove_cv_t<typename Expr::value_type>,
                                             detail::k_rank<typename Expr::shape_type>>::type;
};

template <class T, std::size_t N>
struct TensorTraits<xt::xtensor<T, N>, T> : detail::XtensorTraits<T, N> {};
template <class T>
struct TensorTraits<xt::xarray<T>, T> : detail::XtensorTraits<T, detail::k_dynamic_rank> {};
/// @endcond

LOCKSTEP_NAMESPACE_END
