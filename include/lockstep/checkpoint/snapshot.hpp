// SPDX-License-Identifier: MIT
/// @file
/// Everything that training has brought about, as a value in memory.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/layout.hpp>
#include <lockstep/protocol/window.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Counters of an optimizer: everything that an update changes besides variables, slots and the open window's
/// data.
struct UpdaterState {
  protocol::Window window;  ///< counters of the open window, and of updates
  double window_unit = 1;   ///< weight of the first gradient of the open window
  double window_total = 0;  ///< weight of all of them
  double examples = 0;      ///< weight behind all updates
};

/// Variables, slots, the open window and the counters. Does not depend on the number of replicas or the
/// transport: what one trainer saved any other with the same variables and rule can restore, and goes on with
/// the same bits.
template <class T>
struct Snapshot {
  /// A variable (`slot` is empty) or one of its slots, without padding.
  struct Array {
    std::string variable;       ///< name of the variable
    std::string slot;           ///< name of the slot; empty for the variable itself
    std::vector<Index> shape;   ///< extents, outermost first; empty for a scalar
    bool column_major = false;  ///< order of `values`: the first index runs fastest, not the last
    std::vector<T> values;      ///< its elements
  };
  /// What the open window holds for one variable.
  struct Pending {
    std::string variable;       ///< its name
    Presence presence;          ///< dense, or rows
    std::vector<Index> rows;    ///< ascending; empty for a dense sum
    bool column_major = false;  ///< order of a dense sum, as in `Array`
    std::vector<T> values;      ///< of the whole variable, or of the rows one after the other
  };
  std::string rule;             ///< its name, if it has one
  std::int64_t generation = 0;  ///< restores of the trainer before; for information
  std::vector<Array> arrays;    ///< every variable, each followed by its slots
  std::vector<Pending> window;  ///< what is in the open window; empty between windows
  UpdaterState counters;        ///< everything else that an update changes
};

namespace detail {

/// Counters go no further, so that training can count on from there.
inline constexpr Index k_most_count = Index{1} << 62;

/// What in the counters no training can have brought about; empty if nothing is.
inline std::string fault_of(const UpdaterState& counters) {
  const protocol::Window& window = counters.window;
  for (const auto& [name, count] : {std::pair{"global_step", window.global_step},
                                    {"counter", window.counter},
                                    {"pending", window.pending},
                                    {"updates", window.updates}})
    if (count < 0 || count > k_most_count)
      return text(name, " ", count, ", which is not from 0 to ", k_most_count);
  for (const auto& [name, weight] :
       {std::pair{"window_unit", counters.window_unit}, {"window_total", counters.window_total}})
    if (window.pending > 0 && !(std::isfinite(weight) && weight > 0))
      return text(name, " ", weight, ", which is no positive weight, with pending ", window.pending);
  if (!(counters.examples >= 0)) return text("examples ", counters.examples, ", which is not from 0 up");
  return "";
}
/// @throws InvalidArgument for counters that no training can have brought about.
inline void check_counters(const UpdaterState& counters) {
  if (const std::string fault = fault_of(counters); !fault.empty())
    throw InvalidArgument("restore: the snapshot has " + fault);
}

/// Copies a tensor from column-major to row-major memory, or with `to_column_major` back.
template <class T>
void reorder(std::span<const Index> shape, const T* from, bool to_column_major, T* to) {
  std::vector<Index> steps, at(shape.size(), 0);  // of each index, in column-major memory
  Index size = 1;
  for (const Index extent : shape) {
    steps.push_back(size);
    size *= extent;
  }
  Index by_columns = 0;
  for (Index by_rows = 0; by_rows < size; ++by_rows) {
    if (to_column_major)
      to[by_columns] = from[by_rows];
    else
      to[by_rows] = from[by_columns];
    for (std::size_t d = shape.size(); d-- > 0;) {
      by_columns += steps[d];
      if (++at[d] < shape[d]) break;
      by_columns -= steps[d] * shape[d];
      at[d] = 0;
    }
  }
}

/// Copies the values of a variable or slot to where it lies, in the order that it has there.
template <class T>
void copy_values(const VariableInfo& info, bool column_major, const std::vector<T>& from, T* to) {
  if (info.rank() < 2 || column_major == info.column_major)
    std::copy(from.begin(), from.end(), to);
  else
    reorder<T>(info.shape, from.data(), info.column_major, to);
}

/// One array of a snapshot on its way to where it lies.
template <class T>
struct ArrayCopy {
  const VariableInfo* info;
  T* to;
  const typename Snapshot<T>::Array* from;
  void operator()() const { copy_values(*info, from->column_major, from->values, to); }
};

/// The array of a variable or slot. @param likely number of the one that is looked at first.
/// @throws LayoutMismatch if it is missing or has another shape.
template <class T>
const typename Snapshot<T>::Array& find_array(const Snapshot<T>& snapshot, const VariableInfo& info,
                                              std::string_view slot, std::size_t likely) {
  const std::size_t count = snapshot.arrays.size();
  for (std::size_t i = 0; i < count; ++i) {
    const auto& array = snapshot.arrays[(likely + i) % count];
    if (array.variable != info.name || array.slot != slot) continue;
    if (array.shape != info.shape)
      throw_error<LayoutMismatch>("restore: '", info.name, "' has shape ", shape_text(info.shape),
                                  ", the snapshot has ", shape_text(array.shape));
    if (static_cast<Index>(array.values.size()) != info.size)
      throw_error<LayoutMismatch>("restore: '", info.name, "' has ", info.size,
                                  " elements, the snapshot has ", array.values.size());
    return array;
  }
  throw_error<LayoutMismatch>("restore: the snapshot has no ", slot.empty() ? "variable" : "slot", " '",
                              info.name, slot.empty() ? "" : "/", slot, "'");
}

/// Memory of what the snapshot held before is used again.
template <class T>
void save_window(const Contribution<T>& window, Snapshot<T>& to) {
  std::size_t used = 0;
  for (const VariableInfo& info : window.layout().infos()) {
    const Presence presence = window.presence(info.id);
    const T* data = window.data() + info.offset;
    if (presence == Presence::absent) continue;
    if (used == to.window.size()) to.window.emplace_back();
    typename Snapshot<T>::Pending& pending = to.window[used++];
    pending.variable = info.name;
    pending.presence = presence;
    pending.rows.clear();
    pending.column_major = info.column_major;
    pending.values.clear();
    if (presence == Presence::dense) {
      pending.values.assign(data, data + info.size);
    } else {
      window.rows(info.id).for_each([&](Index row) {
        pending.rows.push_back(row);
        pending.values.insert(pending.values.end(), data + row * info.row_size(),
                              data + (row + 1) * info.row_size());
      });
    }
  }
  to.window.resize(used);
}

/// @throws LayoutMismatch for sums that do not fit the variables.
template <class T>
void check_window(const Layout& layout, const Snapshot<T>& from) {
  for (const auto& pending : from.window) {
    const VariableInfo* const known = layout.known(pending.variable);
    if (known == nullptr)
      throw_error<LayoutMismatch>("restore: there is no variable '", pending.variable, "'");
    const VariableInfo& info = *known;
    const Index rows =
        pending.presence == Presence::dense ? info.rows() : static_cast<Index>(pending.rows.size());
    const bool in_range = std::all_of(pending.rows.begin(), pending.rows.end(),
                                      [&](Index row) { return row >= 0 && row < info.rows(); });
    const bool is_kept =
        pending.presence == Presence::dense || (pending.presence == Presence::rows && !info.column_major);
    if (static_cast<Index>(pending.values.size()) != rows * info.row_size() || !in_range || !is_kept)
      throw_error<LayoutMismatch>("restore: the open window of '", info.name, "' does not fit shape ",
                                  shape_text(info.shape));
  }
}

template <class T>
void load_window(Contribution<T>& window, const Snapshot<T>& from) {
  window.clear();
  for (const auto& pending : from.window) {
    const VariableInfo& info = window.layout().find(pending.variable);
    if (pending.presence == Presence::dense) {
      copy_values(info, pending.column_major, pending.values, window.mark_dense(info.id));
      continue;
    }
    window.mark_rows(info.id);
    RowSet rows = window.rows(info.id);
    const T* values = pending.values.data();
    for (const Index row : pending.rows) {
      rows.insert(row);
      std::copy(values, values + info.row_size(), window.data() + info.offset + row * info.row_size());
      values += info.row_size();
    }
  }
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
