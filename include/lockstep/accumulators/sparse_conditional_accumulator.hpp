// SPDX-License-Identifier: MIT
/// @file
/// The conditional accumulator of row-sparse gradients.
#pragma once

#include <lockstep/accumulators/accumulator_base.hpp>
#include <lockstep/accumulators/tensor.hpp>
#include <lockstep/transport/in_process.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// The running sum of row-sparse gradients: index, slice and number of contributions of each row.
template <class T>
class SparseSum {
 public:
  using Gradient = SparseGradient<T>;
  using Result = SparseTensor<T>;

  explicit SparseSum(const AccumulatorOptions& options)
      : declared_(options.shape.value_or(Shape{})), reduction_(options.reduction) {}

  void check(const Gradient& gradient, bool is_first) const {
    require_well_formed("the indices", gradient.indices);
    require_well_formed("the values", gradient.values);
    const Shape& values = gradient.values.shape;
    if (gradient.indices.shape.size() != 1)
      throw_error<ShapeMismatch>("apply_grad: the indices must be a vector, got shape ",
                                 shape_text(gradient.indices.shape));
    if (values.empty())
      throw ShapeMismatch("apply_grad: the values must have one row per index, got a scalar");
    if (values[0] != gradient.indices.shape[0])
      throw_error<ShapeMismatch>("apply_grad: ", gradient.indices.shape[0], " indices, but values of shape ",
                                 shape_text(values));
    if (gradient.dense_shape) check_dense_shape(*gradient.dense_shape);
    check_indices(gradient.indices.elements);
    if (!is_first)
      check_like_sum(values);
    else if (values.size() < declared_.size() || !extents_match(values, declared_, 1))
      throw_error<ShapeMismatch>("apply_grad: the values have shape ", shape_text(values),
                                 ", the accumulator was declared with ", shape_text(declared_));
  }

  void add(const Gradient& gradient, bool is_first) {
    if (is_first)
      replace(gradient);
    else
      merge(gradient);
  }

  Result hand_out(Index) noexcept {
    if (reduction_ == Reduction::mean)
      for (std::size_t row = 0; row < row_counts_.size(); ++row)
        as_array(slice(row)) /= static_cast<T>(row_counts_[row]);
    row_counts_.clear();
    return std::exchange(sum_, {});
  }

 private:
  void check_dense_shape(const Shape& dense_shape) const {
    if (dense_shape.size() < declared_.size() || !extents_match(dense_shape, declared_))
      throw_error<ShapeMismatch>("apply_grad: the gradient says that its dense shape is ",
                                 shape_text(dense_shape), ", the accumulator was declared with ",
                                 shape_text(declared_));
  }
  // There is no lower bound, as in TensorFlow.
  void check_indices(std::span<const Index> indices) const {
    if (declared_.empty() || declared_[0] == k_unknown) return;
    for (const Index index : indices)
      if (index >= declared_[0])
        throw_error<InvalidArgument>("apply_grad: index ", index,
                                     " is out of range, the accumulator was declared with ",
                                     shape_text(declared_));
  }
  void check_like_sum(const Shape& values) const {
    const Shape& sum = sum_.values.shape;
    if (values.size() != sum.size() || !std::equal(values.begin() + 1, values.end(), sum.begin() + 1))
      throw_error<ShapeMismatch>("apply_grad: the values have shape ", shape_text(values),
                                 ", the sum so far has ", shape_text(sum),
                                 " (the number of rows may differ)");
  }

  void replace(const Gradient& gradient) {
    Result fresh;
    fresh.indices.assign(gradient.indices.elements.begin(), gradient.indices.elements.end());
    fresh.values.elements.assign(gradient.values.elements.begin(), gradient.values.elements.end());
    fresh.values.shape = gradient.values.shape;
    fresh.dense_shape = gradient.values.shape;
    fresh.dense_shape[0] = declared_.empty() ? k_unknown : declared_[0];
    row_counts_.assign(fresh.indices.size(), 1);
    slice_size_ = static_cast<std::size_t>(element_count(std::span(fresh.values.shape).subspan(1)));
    sum_ = std::move(fresh);
  }

  // Two pointers over lists that are taken to ascend. Neither order nor uniqueness is established: equal
  // indices pair by position, and unsorted lists give an unsorted list in which an index may occur twice.
  void merge(const Gradient& gradient) {
    const std::span<const Index> theirs = gradient.indices.elements;
    const std::size_t at_most = sum_.indices.size() + theirs.size();
    std::vector<Index> indices, row_counts;
    std::vector<T> values;
    indices.reserve(at_most);
    row_counts.reserve(at_most);
    values.reserve(at_most * slice_size_);
    const auto append = [&](Index index, Index row_count, std::span<const T> from) {
      indices.push_back(index);
      row_counts.push_back(row_count);
      values.insert(values.end(), from.begin(), from.end());
    };
    const auto their_slice = [&](std::size_t row) {
      return gradient.values.elements.subspan(row * slice_size_, slice_size_);
    };
    std::size_t i = 0, j = 0;
    while (i < sum_.indices.size() || j < theirs.size()) {
      if (j == theirs.size() || (i < sum_.indices.size() && sum_.indices[i] < theirs[j])) {
        append(sum_.indices[i], row_counts_[i], slice(i));
        ++i;
      } else if (i == sum_.indices.size() || theirs[j] < sum_.indices[i]) {
        append(theirs[j], 1, their_slice(j));
        ++j;
      } else {
        append(sum_.indices[i], row_counts_[i] + 1, slice(i));
        as_array(std::span(values).last(slice_size_)) += as_array(their_slice(j));
        ++i;
        ++j;
      }
    }
    sum_.values.shape[0] = static_cast<Index>(indices.size());
    sum_.indices = std::move(indices);
    sum_.values.elements = std::move(values);
    row_counts_ = std::move(row_counts);
  }

  std::span<T> slice(std::size_t row) {
    return std::span(sum_.values.elements).subspan(row * slice_size_, slice_size_);
  }

  Shape declared_;  // () also stands for unknown rank: neither constrains anything
  Reduction reduction_;
  Result sum_;
  std::vector<Index> row_counts_;  // (rows,), gradients added into each row
  std::size_t slice_size_ = 0;     // elements of one row
};

}  // namespace detail

/// @brief Sums or averages row-sparse gradients, refuses stale ones, and hands the aggregate to takers in
/// their order.
///
/// The mean divides **each row by the number of gradients that touched it**, not by the number of gradients:
/// a row touched by one of ten gradients keeps its full value. Every gradient counts once towards
/// `num_required`, also one without rows.
///
/// Lists of indices should ascend without duplicates. They are merged by two pointers: duplicates inside one
/// gradient stay separate rows and pair by position with those of the next; unsorted lists give an unsorted
/// result.
/// @tparam T    models AccumulatedScalar: float, double or Eigen::half.
/// @tparam Net  models lockstep::Transport. Gradients and results live in the memory of this process.
/// @par Thread safety every function may be called by any number of threads; sums are made under one mutex.
/// @par Determinism with one order of arrival the result is always the same; rounding depends on that order.
/// @par Source TensorFlow `SparseConditionalAccumulator`. Ours also tells the caller whether a gradient was
/// accepted, and every wait has a deadline.
/// @code{.cpp}
/// lockstep::SparseConditionalAccumulator<float> accumulator({.shape = lockstep::Shape{100, 2}});
/// const std::vector<lockstep::Index> rows{3, 7};
/// const std::vector<float> slices{1, 1, 2, 2};
/// accumulator.apply_grad({.indices = rows, .values = {slices, {2, 2}}}, 0);
/// const auto [indices, values, dense_shape] = accumulator.take_grad(1);   // rows 3 and 7, shape (100, 2)
/// @endcode
template <AccumulatedScalar T = float, Transport Net = InProcess>
class SparseConditionalAccumulator : public detail::AccumulatorBase<detail::SparseSum<T>, Net> {
  using Base = detail::AccumulatorBase<detail::SparseSum<T>, Net>;

 public:
  /// What the constructor takes.
  using Options = AccumulatorOptions;

  /// A declared shape of () constrains nothing, like an absent one.
  /// @throws InvalidArgument if a declared extent is below -1.
  explicit SparseConditionalAccumulator(const Options& options = {}, const Net& net = {})
      : Base(net, options) {}

  /// @brief Adds a gradient. Never waits for takers; may serve one.
  ///
  /// Checked in this order: indices are a vector; values have rows; as many as indices; `dense_shape`, if
  /// given, fits the declared shape; indices lie below the declared number of rows (negative ones pass);
  /// slices fit the sum so far or, in the first gradient, the declared shape.
  /// @param local_step  the step at which the gradient was computed.
  /// @return true if it was added; false if it is stale (`local_step < step()`), in which case nothing is
  /// checked.
  /// @throws InvalidArgument (ShapeMismatch where a shape is wrong); the accumulator is unchanged.
  bool apply_grad(const SparseGradient<T>& gradient, Index local_step) {
    return Base::apply(gradient, local_step);
  }
};

LOCKSTEP_NAMESPACE_END
