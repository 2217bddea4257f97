// SPDX-License-Identifier: MIT
/// @file
/// The dense conditional accumulator.
#pragma once

#include <lockstep/accumulators/accumulator_base.hpp>
#include <lockstep/accumulators/tensor.hpp>
#include <lockstep/transport/build.hpp>
#include <lockstep/transport/in_process.hpp>
#include <lockstep/transport/memory.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// @throws ShapeMismatch if a gradient does not fit the declared shape.
template <class T>
void require_declared_shape(const TensorView<const T>& gradient, const Shape& declared) {
  if (gradient.shape.size() != declared.size() || !extents_match(gradient.shape, declared))
    throw_error<ShapeMismatch>("apply_grad: the gradient has shape ", shape_text(gradient.shape),
                               ", the accumulator was declared with ", shape_text(declared));
}

/// The running sum of dense gradients, in the memory of this process.
template <class T>
class DenseSum {
 public:
  using Gradient = TensorView<const T>;
  using Result = Tensor<T>;

  explicit DenseSum(const AccumulatorOptions& options) : options_(options) {}

  void check(const Gradient& gradient, bool is_first) const {
    require_well_formed("the gradient's elements", gradient);
    if (!is_first && gradient.shape != sum_.shape)
      throw_error<ShapeMismatch>("apply_grad: the gradient has shape ", shape_text(gradient.shape),
                                 ", the sum so far has ", shape_text(sum_.shape));
    if (options_.shape) require_declared_shape(gradient, *options_.shape);
  }

  void add(const Gradient& gradient, bool is_first) {
    if (is_first)
      sum_ = {{gradient.elements.begin(), gradient.elements.end()}, gradient.shape};
    else
      as_array(std::span(sum_.elements)) += as_array(gradient.elements);
  }

  Result hand_out(Index count) noexcept {
    if (options_.reduction == Reduction::mean) as_array(std::span(sum_.elements)) /= static_cast<T>(count);
    return std::exchange(sum_, {});
  }

 private:
  AccumulatorOptions options_;
  Tensor<T> sum_;
};

/// Dense gradients of one known shape, in buffers of a session.
template <class T>
class SharedDenseSum {
 public:
  using Gradient = TensorView<const T>;
  using Result = Tensor<T>;

  /// @throws InvalidArgument unless the shape is declared with all its extents, and sums of it fit.
  explicit SharedDenseSum(const AccumulatorOptions& options)
      : shape_(require_known_extents(options.shape)),
        size_(shared_element_count(options, shape_, sizeof(T))),
        reduction_(options.reduction) {}

  std::size_t bytes() const {
    Carver size;
    size.array<T>(size_);
    return size.used();
  }
  std::string description() const {
    return text("accumulator: dense, ", scalar_text<T>(), ", shape ", shape_text(shape_));
  }

  void check(const Gradient& gradient) const {
    require_well_formed("the gradient's elements", gradient);
    require_declared_shape(gradient, shape_);
  }
  void add(const Gradient& gradient, const std::byte* sum, std::byte* into) const {
    if (sum)
      as_array(elements(into)) = as_array(elements(sum)) + as_array(gradient.elements);
    else
      as_array(elements(into)) = as_array(gradient.elements);
  }
  Result result(const std::byte* sum, Index count) const {
    Result result{std::vector<T>(size_), shape_};
    if (reduction_ == Reduction::mean)
      as_array(std::span(result.elements)) = as_array(elements(sum)) / static_cast<T>(count);
    else
      as_array(std::span(result.elements)) = as_array(elements(sum));
    return result;
  }

 private:
  std::span<T> elements(std::byte* buffer) const { return {reinterpret_cast<T*>(buffer), size_}; }
  std::span<const T> elements(const std::byte* buffer) const {
    return {reinterpret_cast<const T*>(buffer), size_};
  }

  Shape shape_;
  std::size_t size_;
  Reduction reduction_;
};

template <class T, Transport Net>
using DenseStore = AccumulatorStore<DenseSum<T>, SharedDenseSum<T>, Net>;

}  // namespace detail

/// @brief Sums or averages dense gradients, refuses stale ones, and hands the aggregate to takers in their
/// order.
///
/// \f$ \mathit{result} = \frac{1}{c} \sum_{i=1}^{c} g_i \f$ over all `c` gradients since the last take, added
/// in order of arrival, in the arithmetic of `T`; without the division for `Reduction::sum`. The result is
/// never an alias of the running sum.
/// @tparam T    models AccumulatedScalar: float, double or Eigen::half.
/// @tparam Net  models lockstep::Transport. Over `SharedMemory` all processes that name the same session use
/// one accumulator: its sum lies in the session and is whole whoever is killed, a taker that dies gives its
/// place up, and a result that was for a dead taker is lost. Each accumulator has a session of its own.
/// @par Thread safety every function may be called by any number of threads; sums are made under one mutex.
/// @par Determinism with one order of arrival the result is always the same; rounding depends on that order.
/// @par Source TensorFlow `ConditionalAccumulator`. Ours also tells the caller whether a gradient was
/// accepted, and every wait has a deadline.
/// @code{.cpp}
/// lockstep::ConditionalAccumulator<float> accumulator({.shape = lockstep::Shape{3}});
/// accumulator.apply_grad(Eigen::Vector3f(1, 2, 3), 0);
/// accumulator.apply_grad(Eigen::Vector3f(3, 2, 1), 0);
/// const lockstep::Tensor<float> mean = accumulator.take_grad(2);   // 2, 2, 2
/// accumulator.apply_grad(Eigen::Vector3f(9, 9, 9), 0);             // false: stale, the step is 1 now
/// @endcode
template <AccumulatedScalar T = float, Transport Net = InProcess>
class ConditionalAccumulator : public detail::AccumulatorBase<detail::DenseStore<T, Net>, Net> {
  using Base = detail::AccumulatorBase<detail::DenseStore<T, Net>, Net>;

 public:
  /// What the constructor takes.
  using Options = AccumulatorOptions;

  /// @throws InvalidArgument if a declared extent is below -1. Between processes also if one is unknown,
  /// `max_takers` is not from 1 to 64, or the sums need more than 2^46 bytes; LayoutMismatch if the session
  /// was made with other options; CapacityExceeded if too many are attached; and as the transport's session.
  explicit ConditionalAccumulator(const Options& options = {}, const Net& net = {}) : Base(net, options) {}

  /// @brief Adds a gradient. Never waits for takers; may serve one.
  /// @param gradient    any shape that fits the declared one, and the shape of the other gradients of this
  /// sum.
  /// @param local_step  the step at which the gradient was computed.
  /// @return true if it was added; false if it is stale (`local_step < step()`), in which case nothing is
  /// checked.
  /// @throws ShapeMismatch if the shape does not fit; the accumulator is unchanged.
  bool apply_grad(const TensorView<const T>& gradient, Index local_step) {
    return Base::apply(gradient, local_step);
  }

  /// @brief Adds an Eigen expression: rank 1 if it is a vector at compile time, else rank 2 with rows
  /// outermost. Evaluated once, outside the mutex.
  template <class Derived>
  requires std::same_as<typename Derived::Scalar, T>
  bool apply_grad(const Eigen::DenseBase<Derived>& gradient, Index local_step) {
    return Base::apply(detail::row_major(gradient), local_step);
  }
};

LOCKSTEP_NAMESPACE_END
