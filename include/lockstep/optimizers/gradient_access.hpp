// SPDX-License-Identifier: MIT
/// @file
/// The part of every optimizer by which a program reads variables and hands over gradients.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/dense_gradients.hpp>
#include <lockstep/gradients/row_gradients.hpp>
#include <lockstep/gradients/row_writer.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/step_result.hpp>
#include <lockstep/tensor/eigen.hpp>
#include <lockstep/transport/fault_point.hpp>

#include <Eigen/Core>

#include <concepts>
#include <functional>
#include <string_view>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

/// Base of optimizers (curiously recurring). `Derived` has `variables()`, `values()` (first element of the
/// variables as this replica sees them), `staging()` (the contribution to be written next; throws if there is
/// none now), `slot_data(name, id)` (first element of a slot array in which variable `id` may be read) and
/// `apply_gradients(options)`.
template <class Derived, class T, class G>
class GradientAccess {
 public:
  /// Scalar of variables and slots.
  using Scalar = T;
  /// Scalar of gradients.
  using GradientScalar = G;

  /// The variable, without copy. Valid until the next `apply_gradients`. Shape: that of the variable.
  template <class M>
  typename TensorTraits<M, T>::ConstView value(const Handle<M, T>& handle) const {
    derived().variables().check(handle);
    return TensorTraits<M, T>::view(derived().values() + handle.offset, handle.shape);
  }

  /// The memory of this step's gradient, to be written in place; marks the gradient as present. Its contents
  /// are not specified until written (NaN in debug builds). Valid until the next `apply_gradients`; ask again
  /// in each step.
  /// @throws UsageError if the variable has row gradients in this step, or while a contribution is pending.
  template <class M>
  typename TensorTraits<M, T>::template GradientView<G> gradient(const Handle<M, T>& handle) {
    return TensorTraits<M, T>::gradient_view(dense(handle), handle.shape);
  }

  /// The memory of all gradients of this step, each to be written in place as `result[handle]`; marks all as
  /// present, in one go: what 10,000 calls of `gradient` do. Contents, validity and errors are those of
  /// `gradient`. Nothing has happened if it throws.
  DenseGradients<T, G> gradients() {
    Contribution<G>& to = derived().staging();
    if constexpr (detail::k_fills_unwritten)
      for (const VariableInfo& info : to.layout().infos())
        if (to.presence(info.id) == Presence::absent)
          detail::fill_unwritten(to.data() + info.offset, info.size);
    to.mark_all_dense();
    return {derived().variables(), to.data()};
  }

  /// Evaluates `gradient` once, straight into the memory of this step's gradient. Replaces what was set
  /// before.
  /// @throws ShapeMismatch with both shapes.
  template <class M, class E>
  void set_gradient(const Handle<M, T>& handle, const E& gradient) {
    derived().variables().check(handle);
    detail::expect_shape(handle.shape, TensorTraits<M, T>::shape_of(gradient), info(handle).name, "gradient");
    TensorTraits<M, T>::assign(dense(handle), handle.shape, gradient);
  }

  /// Adds a row-sparse gradient: row `indices[i]` of the variable has gradient `rows[i]`. Equal indices are
  /// summed, also over several calls in one step.
  /// @param indices integers in [0, rows of the variable). @param rows shape (n, elements per row); for a
  /// vector (n,).
  /// @throws InvalidArgument for an index out of range; ShapeMismatch; UsageError if the variable has a dense
  /// gradient.
  template <class M, class Indices, class Rows>
  void set_rows(const Handle<M, T>& handle, const Indices& indices, const Rows& rows) {
    const VariableInfo& variable = info_of_table(handle);
    const auto count = static_cast<Index>(indices.size());
    const Index width = variable.row_size();
    expect_rows(variable, count, rows);
    const auto row_at = row_numbers(variable, indices);
    detail::RowWriter<G> writer(derived().staging(), handle.id, count, row_at);
    const auto write = [&](Index i, const auto& source) {
      if (i + k_rows_ahead < count) writer.fetch(row_at(i + k_rows_ahead));
      const auto [data, is_first] = writer(row_at(i));
      Eigen::Map<Eigen::Array<G, 1, Eigen::Dynamic>> target(data, width);
      if (is_first)
        target = source.template cast<G>();
      else
        target += source.template cast<G>();
      detail::fault_point("rows: one written");
    };
    if constexpr (detail::DenseEigen<Rows>) {
      const auto& evaluated = detail::evaluated_once(rows);
      if (width == 1 && evaluated.rows() != count) {
        for (Index i = 0; i < count; ++i) write(i, evaluated.col(i).transpose().array());
      } else {
        for (Index i = 0; i < count; ++i) write(i, evaluated.row(i).array());
      }
    } else {
      const auto& evaluated = TensorTraits<M, T>::contiguous(rows);
      using Value = std::remove_cvref_t<decltype(*evaluated.data())>;
      for (Index i = 0; i < count; ++i)
        write(i,
              Eigen::Map<const Eigen::Array<Value, 1, Eigen::Dynamic>>(evaluated.data() + i * width, width));
    }
  }

  /// The memory of this step's gradient of some rows, to be written in place: nothing is copied. Row
  /// `indices[i]` is written to `result[indices[i]]`; its contents are not specified until then (NaN in debug
  /// builds). Valid until the next `apply_gradients`; ask again in each step.
  /// @param indices distinct integers in [0, rows of the variable), in any order.
  /// @throws InvalidArgument for an index out of range or one that comes twice; UsageError if the variable
  /// has a gradient in this step already, or while a contribution is pending. Nothing has happened then.
  template <class M, class Indices>
  RowGradients<G> row_gradients(const Handle<M, T>& handle, const Indices& indices) {
    const auto row_at = row_numbers(info_of_table(handle), indices);
    return detail::place_rows(derived().staging(), handle.id, static_cast<Index>(indices.size()), row_at);
  }

  /// compute_gradients and apply_gradients: `value_and_gradient(replica)` writes gradients and returns the
  /// loss.
  template <class F>
  StepResult minimize(F&& value_and_gradient, const ApplyOptions& options = {}) {
    std::invoke(std::forward<F>(value_and_gradient), derived());
    return derived().apply_gradients(options);
  }

  /// A slot of the wrapped optimizer, as `value` gives the variable. @throws UnknownVariable with the names
  /// that exist.
  template <class M>
  typename TensorTraits<M, T>::ConstView slot(std::string_view name, const Handle<M, T>& handle) const {
    derived().variables().check(handle);
    return TensorTraits<M, T>::view(derived().slot_data(name, handle.id) + handle.offset, handle.shape);
  }

 protected:
  /// @cond a base is copied with the optimizer that derives from it
  GradientAccess() = default;
  GradientAccess(const GradientAccess&) = default;
  GradientAccess& operator=(const GradientAccess&) = default;
  ~GradientAccess() = default;
  /// @endcond

 private:
  static constexpr Index k_rows_ahead = 16;  // of a call, that are fetched

  Derived& derived() { return static_cast<Derived&>(*this); }
  const Derived& derived() const { return static_cast<const Derived&>(*this); }

  template <class M>
  const VariableInfo& info(const Handle<M, T>& handle) const {
    return derived().variables().layout()[handle.id];
  }

  template <class M>
  G* dense(const Handle<M, T>& handle) {
    derived().variables().check(handle);
    Contribution<G>& to = derived().staging();
    [[maybe_unused]] const bool first = to.presence(handle.id) == Presence::absent;
    to.mark_dense(handle.id);
    G* data = to.data() + handle.offset;  // as the layout has it, without a look at the layout
    if constexpr (detail::k_fills_unwritten)
      if (first) detail::fill_unwritten(data, info(handle).size);
    return data;
  }

  template <class M>
  const VariableInfo& info_of_table(const Handle<M, T>& handle) const {
    static_assert(TensorTraits<M, T>::contiguous_rows,
                  "[lockstep.gradient.rows] rows of a column-major matrix are not contiguous: declare the "
                  "variable with a row-major type, e.g. Eigen::Matrix<float, Eigen::Dynamic, "
                  "Eigen::Dynamic, Eigen::RowMajor>");
    derived().variables().check(handle);
    return info(handle);
  }

  /// The number of the row at each place of `indices`, which are in range: looked at once, here.
  template <class Indices>
  static auto row_numbers(const VariableInfo& variable, const Indices& indices) {
    const auto row_at = [&indices](Index i) {
      return static_cast<Index>(indices[static_cast<decltype(indices.size())>(i)]);
    };
    for (Index i = 0, count = static_cast<Index>(indices.size()); i < count; ++i) {
      const Index row = row_at(i);
      if (row < 0 || row >= variable.rows())
        detail::throw_error<InvalidArgument>("rows of variable '", variable.name, "': index must be in [0, ",
                                             variable.rows(), "), got ", row);
    }
    return row_at;
  }

  template <class Rows>
  static void expect_rows(const VariableInfo& variable, Index count, const Rows& rows) {
    Index elements = 0;
    if constexpr (detail::DenseEigen<Rows>) {
      elements = rows.size();
      if (variable.row_size() != 1 && elements == count * variable.row_size() && rows.rows() != count)
        detail::throw_error<ShapeMismatch>("rows of variable '", variable.name, "': expected shape (", count,
                                           ", ", variable.row_size(), "), got (", rows.rows(), ", ",
                                           rows.cols(), ")");
    } else {
      elements = static_cast<Index>(rows.size());
    }
    if (elements != count * variable.row_size())
      detail::throw_error<ShapeMismatch>("rows of variable '", variable.name, "': expected ", count,
                                         " rows of ", variable.row_size(), " elements, got ", elements,
                                         " elements");
  }
};

LOCKSTEP_NAMESPACE_END
