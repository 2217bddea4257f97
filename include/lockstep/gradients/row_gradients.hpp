// SPDX-License-Identifier: MIT
/// @file
/// Rows of a gradient that a program writes where they stay.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/transport/fault_point.hpp>

#include <Eigen/Core>

#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

/// The memory of some rows of one variable's gradient, as `GradientAccess::row_gradients` gives it. Each row
/// is to be written by its number. Valid until the next `apply_gradients`.
/// @tparam G scalar of the gradient.
template <class G>
class RowGradients {
 public:
  /// A row in place: shape (1, elements per row).
  using Row = Eigen::Map<Eigen::Matrix<G, 1, Eigen::Dynamic>>;

  /// Of variable `id` of a contribution that has rows of it.
  RowGradients(Contribution<G>& contribution, std::uint32_t id) : contribution_(&contribution), id_(id) {}

  /// The gradient of row `row` of the variable. @throws InvalidArgument if it is not one of those asked for.
  Row operator[](Index row) const {
    const VariableInfo& variable = contribution_->layout()[id_];
    if (row < 0 || row >= variable.rows() || !contribution_->rows(id_).contains(row))
      detail::throw_error<InvalidArgument>("row gradients of variable '", variable.name, "': row ", row,
                                           " is not among those asked for");
    return Row(contribution_->row_data(id_, row), variable.row_size());
  }

 private:
  Contribution<G>* contribution_;
  std::uint32_t id_;
};

namespace detail {

/// Marks variable `id` as present in `count` rows, which nobody has written yet (NaN in debug builds).
/// @param row_at the rows, `row_at(0)` to `row_at(count - 1)`, in [0, rows of the variable).
/// @throws UsageError if it has a gradient already; InvalidArgument for a row that comes twice. Nothing has
/// happened then.
template <class G, class RowAt>
RowGradients<G> place_rows(Contribution<G>& to, std::uint32_t id, Index count, RowAt&& row_at) {
  const Presence now = to.presence(id);
  if (now != Presence::absent)
    throw to.mixed(id, now == Presence::rows ? "rows" : "a dense gradient", "rows in place");
  if (!to.mark_packed_rows(id)) to.mark_rows(id);
  RowSet members = to.rows(id);
  for (Index i = 0; i < count; ++i) {
    if (!members.insert(row_at(i))) {
      to.drop_rows(id);
      throw_error<InvalidArgument>("row gradients of variable '", to.layout()[id].name, "': row ", row_at(i),
                                   " comes twice; set_rows() sums equal rows");
    }
    fault_point("rows: one placed");
  }
  if (to.is_packed(id)) members.number_members();
  if constexpr (k_fills_unwritten)
    for (Index i = 0; i < count; ++i) fill_unwritten(to.row_data(id, row_at(i)), to.layout()[id].row_size());
  return {to, id};
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
