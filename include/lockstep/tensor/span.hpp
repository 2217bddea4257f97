// SPDX-License-Identifier: MIT
/// @file
/// Plain contiguous memory as variables and gradients: `std::span`, `std::vector`, `std::array`, and `NdSpan`
/// with a shape.
#pragma once

#include <lockstep/tensor/element_count.hpp>
#include <lockstep/tensor/traits.hpp>

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Contiguous row-major elements with a shape of any rank.
template <class T>
struct NdSpan {
  std::span<T> elements;     ///< row-major
  std::vector<Index> shape;  ///< extents, outermost first; empty for a scalar

  /// @throws ShapeMismatch if the shape has another number of elements.
  NdSpan(std::span<T> all, std::vector<Index> extents) : elements(all), shape(std::move(extents)) {
    const Index size = detail::element_count(shape);
    if (size < 0 || size > detail::k_most_elements)
      detail::throw_error<ShapeMismatch>("NdSpan: shape ", detail::shape_text(shape),
                                         size < 0 ? " has a negative extent" : " is too large", ", got ",
                                         elements.size(), " elements");
    if (size != static_cast<Index>(elements.size()))
      detail::throw_error<ShapeMismatch>("NdSpan: shape ", detail::shape_text(shape), " has ", size,
                                         " elements, got ", elements.size());
  }
  /// First element.
  T* data() const { return elements.data(); }
  /// Over the elements.
  auto begin() const { return elements.begin(); }
  /// Behind the elements.
  auto end() const { return elements.end(); }
  /// Number of elements.
  std::size_t size() const { return elements.size(); }
  /// Element `i` in row-major order.
  T& operator[](std::size_t i) const { return elements[i]; }
};

/// @cond members as the primary templates in tensor/traits.hpp say
template <class T>
struct TensorOf<NdSpan<T>> {
  using type = NdSpan<std::remove_const_t<T>>;
};

template <class T>
requires(!std::is_const_v<T>) struct TensorTraits<NdSpan<T>, T> {
  using Scalar = T;
  using Shape = std::vector<Index>;
  using View = NdSpan<T>;
  using ConstView = NdSpan<const T>;
  template <class G>
  using GradientView = NdSpan<G>;
  static constexpr bool contiguous_rows = true;

  template <class U>
  static Shape shape_of(const NdSpan<U>& tensor) {
    return tensor.shape;
  }
  static std::vector<Index> extents(const Shape& shape) { return shape; }
  static View view(T* data, const Shape& shape) { return {std::span<T>(data, count(shape)), shape}; }
  static ConstView view(const T* data, const Shape& shape) {
    return {std::span<const T>(data, count(shape)), shape};
  }
  template <class G>
  static NdSpan<G> gradient_view(G* data, const Shape& shape) {
    return {std::span<G>(data, count(shape)), shape};
  }
  template <class Range>
  static const Range& contiguous(const Range& range) {
    return range;
  }
  template <class G, class U>
  static void assign(G* data, const Shape&, const NdSpan<U>& tensor) {
    std::transform(tensor.elements.begin(), tensor.elements.end(), data,
                   [](const U& value) { return static_cast<G>(value); });
  }

 private:
  static std::size_t count(const Shape& shape) {
    return static_cast<std::size_t>(detail::element_count(shape));
  }
};

namespace detail {
template <class T>
struct FlatElement {};
template <class T, std::size_t N>
struct FlatElement<std::span<T, N>> {
  using type = std::remove_const_t<T>;
};
template <class T, class A>
struct FlatElement<std::vector<T, A>> {
  using type = T;
};
template <class T, std::size_t N>
struct FlatElement<std::array<T, N>> {
  using type = T;
};
}  // namespace detail

/// One-dimensional contiguous memory; the handle remembers `std::span<T>`.
template <class Range>
requires requires { typename detail::FlatElement<Range>::type; }
struct TensorOf<Range> {
  using type = std::span<typename detail::FlatElement<Range>::type>;
};

template <class T>
requires(!std::is_const_v<T>) struct TensorTraits<std::span<T>, T> {
  using Scalar = T;
  using Shape = Index;
  using View = std::span<T>;
  using ConstView = std::span<const T>;
  template <class G>
  using GradientView = std::span<G>;
  static constexpr bool contiguous_rows = true;

  template <class Range>
  static Shape shape_of(const Range& range) {
    return static_cast<Index>(range.size());
  }
  static std::vector<Index> extents(const Shape& shape) { return {shape}; }
  static View view(T* data, Shape shape) { return {data, static_cast<std::size_t>(shape)}; }
  static ConstView view(const T* data, Shape shape) { return {data, static_cast<std::size_t>(shape)}; }
  template <class G>
  static std::span<G> gradient_view(G* data, Shape shape) {
    return {data, static_cast<std::size_t>(shape)};
  }
  template <class Range>
  static const Range& contiguous(const Range& range) {
    return range;
  }
  template <class G, class Range>
  static void assign(G* data, Shape, const Range& range) {
    std::transform(range.begin(), range.end(), data, [](const auto& value) { return static_cast<G>(value); });
  }
};
/// @endcond

LOCKSTEP_NAMESPACE_END
