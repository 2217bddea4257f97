// SPDX-License-Identifier: MIT
/// @file
/// The conditional accumulator of row-sparse gradients.
#pragma once

#include <lockstep/accumulators/accumulator_base.hpp>
#include <lockstep/accumulators/tensor.hpp>
#include <lockstep/transport/build.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/in_process.hpp>
#include <lockstep/transport/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// What a row-sparse gradient must be like, whatever the sum so far.
class SparseDeclaration {
 public:
  /// () also stands for unknown rank: neither constrains anything.
  explicit SparseDeclaration(const AccumulatorOptions& options) : shape_(options.shape.value_or(Shape{})) {}
  const Shape& shape() const { return shape_; }

  template <class T>
  void check(const SparseGradient<T>& gradient) const {
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
  }
  void check_values(const Shape& values) const {
    if (values.size() < shape_.size() || !extents_match(values, shape_, 1)) refuse_values(values);
  }
  [[noreturn]] void refuse_values(const Shape& values) const {
    throw_error<ShapeMismatch>("apply_grad: the values have shape ", shape_text(values),
                               ", the accumulator was declared with ", shape_text(shape_));
  }

 private:
  void check_dense_shape(const Shape& dense_shape) const {
    if (dense_shape.size() < shape_.size() || !extents_match(dense_shape, shape_))
      throw_error<ShapeMismatch>("apply_grad: the gradient says that its dense shape is ",
                                 shape_text(dense_shape), ", the accumulator was declared with ",
                                 shape_text(shape_));
  }
  // There is no lower bound, as in TensorFlow.
  void check_indices(std::span<const Index> indices) const {
    if (shape_.empty() || shape_[0] == k_unknown) return;
    for (const Index index : indices)
      if (index >= shape_[0])
        throw_error<InvalidArgument>("apply_grad: index ", index,
                                     " is out of range, the accumulator was declared with ",
                                     shape_text(shape_));
  }

  Shape shape_;
};

/// Rows of a sum, in the order of its list.
template <class T>
struct SummedRows {
  std::span<const Index> indices;
  std::span<const Index> counts;  ///< gradients added into each row
  std::span<const T> values;      ///< one slice per row
};

/// Two pointers over lists that are taken to ascend. Neither order nor uniqueness is established: equal
/// indices pair by position, and unsorted lists give an unsorted list in which an index may occur twice.
/// @param append `append(index, count, slice, added)` for each row of the new sum; `added` is a slice to be
/// added to the first, or empty.
template <class T, class Append>
void merge_rows(const SummedRows<T>& sum, const SparseGradient<T>& gradient, std::size_t slice_size,
                Append&& append) {
  const std::span<const Index> theirs = gradient.indices.elements;
  const auto slice = [&](std::size_t row) { return sum.values.subspan(row * slice_size, slice_size); };
  const auto their_slice = [&](std::size_t row) {
    return gradient.values.elements.subspan(row * slice_size, slice_size);
  };
  std::size_t i = 0, j = 0;
  while (i < sum.indices.size() || j < theirs.size()) {
    if (j == theirs.size() || (i < sum.indices.size() && sum.indices[i] < theirs[j])) {
      append(sum.indices[i], sum.counts[i], slice(i), std::span<const T>());
      ++i;
    } else if (i == sum.indices.size() || theirs[j] < sum.indices[i]) {
      append(theirs[j], Index{1}, their_slice(j), std::span<const T>());
      ++j;
    } else {
      append(sum.indices[i], sum.counts[i] + 1, slice(i), their_slice(j));
      ++i;
      ++j;
    }
  }
}

/// The running sum of row-sparse gradients: index, slice and number of contributions of each row.
template <class T>
class SparseSum {
 public:
  using Gradient = SparseGradient<T>;
  using Result = SparseTensor<T>;

  explicit SparseSum(const AccumulatorOptions& options) : declared_(options), reduction_(options.reduction) {}

  void check(const Gradient& gradient, bool is_first) const {
    declared_.check(gradient);
    if (is_first)
      declared_.check_values(gradient.values.shape);
    else
      check_like_sum(gradient.values.shape);
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
        as_array(std::span(sum_.values.elements).subspan(row * slice_size_, slice_size_)) /=
            static_cast<T>(row_counts_[row]);
    row_counts_.clear();
    return std::exchange(sum_, {});
  }

 private:
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
    fresh.dense_shape[0] = declared_.shape().empty() ? k_unknown : declared_.shape()[0];
    row_counts_.assign(fresh.indices.size(), 1);
    slice_size_ = static_cast<std::size_t>(element_count(std::span(fresh.values.shape).subspan(1)));
    sum_ = std::move(fresh);
  }

  void merge(const Gradient& gradient) {
    const std::size_t at_most = sum_.indices.size() + gradient.indices.elements.size();
    std::vector<Index> indices, row_counts;
    std::vector<T> values;
    indices.reserve(at_most);
    row_counts.reserve(at_most);
    values.reserve(at_most * slice_size_);
    const auto append = [&](Index index, Index row_count, std::span<const T> from, std::span<const T> added) {
      indices.push_back(index);
      row_counts.push_back(row_count);
      values.insert(values.end(), from.begin(), from.end());
      if (!added.empty()) as_array(std::span(values).last(slice_size_)) += as_array(added);
    };
    merge_rows(SummedRows<T>{sum_.indices, row_counts_, sum_.values.elements}, gradient, slice_size_, append);
    sum_.values.shape[0] = static_cast<Index>(indices.size());
    sum_.indices = std::move(indices);
    sum_.values.elements = std::move(values);
    row_counts_ = std::move(row_counts);
  }

  SparseDeclaration declared_;
  Reduction reduction_;
  Result sum_;
  std::vector<Index> row_counts_;  // (rows,), gradients added into each row
  std::size_t slice_size_ = 0;     // elements of one row
};

/// Row-sparse gradients whose rows have one known shape, in buffers of a session: number, indices and counts
/// of the rows, then their slices.
template <class T>
class SharedSparseSum {
 public:
  using Gradient = SparseGradient<T>;
  using Result = SparseTensor<T>;

  /// @throws InvalidArgument unless the extents of a row are declared, and how many rows there may be, and
  /// sums of them fit.
  explicit SharedSparseSum(const AccumulatorOptions& options)
      : declared_(options),
        slice_size_(slice_size_of(options)),
        capacity_(capacity_of(options, slice_size_)),
        reduction_(options.reduction) {}

  std::size_t bytes() const { return rows_in(nullptr).bytes; }
  std::string description() const {
    return text("accumulator: sparse, ", scalar_text<T>(), ", shape ", shape_text(declared_.shape()),
                ", at most ", capacity_, " rows");
  }

  void check(const Gradient& gradient) const {
    declared_.check(gradient);
    declared_.check_values(gradient.values.shape);
    if (gradient.values.shape.size() != declared_.shape().size())
      declared_.refuse_values(gradient.values.shape);
  }
  void add(const Gradient& gradient, std::byte* sum, std::byte* into) const {
    const Rows target = rows_in(into);
    std::size_t count = 0;
    const auto append = [&](Index index, Index row_count, std::span<const T> from, std::span<const T> added) {
      if (count == capacity_)
        throw_error<CapacityExceeded>("apply_grad: the sum would have more than ", capacity_,
                                      " rows (AccumulatorOptions::max_rows)");
      target.indices[count] = index;
      target.counts[count] = row_count;
      auto slice = as_array(std::span(target.values + count * slice_size_, slice_size_));
      fault_point("accumulate: row");
      if (added.empty())
        slice = as_array(from);
      else
        slice = as_array(from) + as_array(added);
      ++count;
    };
    merge_rows(sum ? summed(rows_in(sum)) : SummedRows<T>{}, gradient, slice_size_, append);
    *target.count = count;
  }
  Result result(std::byte* sum, Index) const {
    const SummedRows<T> rows = summed(rows_in(sum));
    Result result;
    result.indices.assign(rows.indices.begin(), rows.indices.end());
    result.values.elements.assign(rows.values.begin(), rows.values.end());
    result.dense_shape = declared_.shape();
    result.values.shape = result.dense_shape;
    result.values.shape[0] = static_cast<Index>(rows.indices.size());
    if (reduction_ == Reduction::mean)
      for (std::size_t row = 0; row < rows.counts.size(); ++row)
        as_array(std::span(result.values.elements).subspan(row * slice_size_, slice_size_)) /=
            static_cast<T>(rows.counts[row]);
    return result;
  }

 private:
  struct Rows {
    std::size_t* count;
    Index* indices;
    Index* counts;
    T* values;
    std::size_t bytes;
  };

  static std::size_t slice_size_of(const AccumulatorOptions& options) {
    const Shape shape = require_known_extents(options.shape, 1);
    return shared_element_count(options, std::span(shape).subspan(1), sizeof(T));
  }
  static std::size_t capacity_of(const AccumulatorOptions& options, std::size_t slice_size) {
    const Index rows = options.max_rows != 0 ? options.max_rows : options.shape->front();
    if (rows < 0)
      throw_error<InvalidArgument>(
          "accumulator: between processes max_rows must say how many rows a sum may have, got ", rows);
    return shared_element_count(options, {&rows, 1}, 2 * sizeof(Index) + slice_size * sizeof(T));
  }
  Rows rows_in(std::byte* buffer) const {
    Carver carver(buffer);
    Rows rows{};
    rows.count = carver.array<std::size_t>(1);
    rows.indices = carver.array<Index>(capacity_);
    rows.counts = carver.array<Index>(capacity_);
    rows.values = carver.array<T>(capacity_ * slice_size_);
    rows.bytes = carver.used();
    return rows;
  }
  SummedRows<T> summed(const Rows& rows) const {
    const std::size_t count = std::min(*rows.count, capacity_);  // others can write there
    return {{rows.indices, count}, {rows.counts, count}, {rows.values, count * slice_size_}};
  }

  SparseDeclaration declared_;
  std::size_t slice_size_, capacity_;
  Reduction reduction_;
};

template <class T, Transport Net>
using SparseStore = AccumulatorStore<SparseSum<T>, SharedSparseSum<T>, Net>;

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
/// @tparam Net  models lockstep::Transport. Over `SharedMemory` as `ConditionalAccumulator`: the extents of a
/// row must be declared, a sum has at most `max_rows` rows, and all gradients have the declared rank.
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
class SparseConditionalAccumulator : public detail::AccumulatorBase<detail::SparseStore<T, Net>, Net> {
  using Base = detail::AccumulatorBase<detail::SparseStore<T, Net>, Net>;

 public:
  /// What the constructor takes.
  using Options = AccumulatorOptions;

  /// A declared shape of () constrains nothing, like an absent one.
  /// @throws InvalidArgument if a declared extent is below -1. Between processes also as
  /// `ConditionalAccumulator`; the first extent may be unknown if `max_rows` is given.
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
  /// @throws InvalidArgument (ShapeMismatch where a shape is wrong); between processes CapacityExceeded if
  /// the sum would have too many rows. The accumulator is unchanged.
  bool apply_grad(const SparseGradient<T>& gradient, Index local_step) {
    return Base::apply(gradient, local_step);
  }
};

LOCKSTEP_NAMESPACE_END
