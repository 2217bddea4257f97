// SPDX-License-Identifier: MIT
/// @file
/// The accumulators of all variables in the memory of one session.
#pragma once

#include <lockstep/accumulators/conditional_accumulator.hpp>
#include <lockstep/accumulators/options.hpp>
#include <lockstep/accumulators/sparse_conditional_accumulator.hpp>
#include <lockstep/accumulators/tensor.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/layout.hpp>
#include <lockstep/per_variable/gradient.hpp>
#include <lockstep/per_variable/gradient_check.hpp>
#include <lockstep/per_variable/options.hpp>
#include <lockstep/protocol/accumulator.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/store_in_order.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <variant>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// What the processes agree on about the accumulator of one variable. Only the one who updates takes, so at
/// most one request stands in line.
struct SumRecord {
  protocol::Accumulator<1> machine;
  Index taken_count = 0;    ///< gradients in the aggregate that was taken
  std::int32_t sum = 0;     ///< buffer of the sum, if there are gradients in it
  std::int32_t taken = -1;  ///< buffer of the aggregate that was taken and not applied yet; -1: there is none

  bool is_served() const { return taken >= 0; }
  bool is_asked() const { return is_served() || machine.waiting() > 0; }
};
static_assert(std::is_trivially_copyable_v<SumRecord>);

/// @brief One accumulator per variable, in memory that survives its processes.
///
/// There may be any number of variables, so their records do not fit into the state that a commit flips. Each
/// record lies there twice, with the number of the transition that wrote it: the state that is committed
/// carries its number, and a copy with a higher one is that of somebody who died before his commit. Sums are
/// formed in a buffer that no committed record names: one holds the sum, one the aggregate that was taken,
/// one is spare. All functions are called inside the exclusion.
template <class T>
class SharedSums {
 public:
  /// Over a null base this only counts bytes. @throws InvalidArgument if sums are larger than a session.
  SharedSums(Carver& carver, const Layout& layout, const std::vector<GradientKind>& kinds,
             const VariableOptions& options)
      : attempt_(carver.array<std::atomic<std::uint64_t>>(1)), entries_(carver.array<Entry>(kinds.size())) {
    for (const VariableInfo& info : layout.infos()) {
      auto& sum = sums_.emplace_back();
      const auto declared = [&](const Shape& shape) {
        return AccumulatorOptions{.shape = shape,
                                  .reduction = options.reduction,
                                  .max_takers = k_buffers - 2,
                                  .max_rows = options.max_rows};
      };
      std::size_t bytes = 0;
      if (kinds[info.id] == GradientKind::dense)
        bytes = sum.template emplace<SharedDenseSum<T>>(declared(info.shape)).bytes();
      else if (kinds[info.id] == GradientKind::sparse)
        bytes = sum.template emplace<SharedSparseSum<T>>(declared(rows_shape(info, info.rows()))).bytes();
      buffers_.push_back({carver.array<std::byte>(k_buffers * bytes), bytes});
    }
  }

  GradientKind kind(std::uint32_t id) const {
    if (std::holds_alternative<SharedDenseSum<T>>(sums_[id])) return GradientKind::dense;
    return exists(id) ? GradientKind::sparse : GradientKind::none;
  }
  /// Whether the variable has an accumulator.
  bool exists(std::uint32_t id) const { return !std::holds_alternative<std::monostate>(sums_[id]); }
  std::uint32_t count() const { return static_cast<std::uint32_t>(sums_.size()); }
  template <class F>
  void for_each(F&& f) const {
    for (std::uint32_t id = 0; id < count(); ++id)
      if (exists(id)) f(id);
  }

  // ---- records

  /// Empty accumulators, as of transition 1.
  void initialise() {
    for (std::uint32_t id = 0; id < count(); ++id) {
      entries_[id].record[0] = {};
      entries_[id].stamp[1].store(0, std::memory_order_relaxed);
      entries_[id].stamp[0].store(1, std::memory_order_relaxed);
    }
  }
  /// Before transition `number` writes: what somebody wrote under the same number, who died, is void.
  void begin(std::uint64_t number) {
    if (attempt_->load(std::memory_order_relaxed) == number)
      for (std::uint32_t id = 0; id < count(); ++id)
        for (auto& stamp : entries_[id].stamp)
          if (stamp.load(std::memory_order_relaxed) == number) stamp.store(0, std::memory_order_relaxed);
    store_in_order(*attempt_, number);
  }
  /// The record as of transition `number`. @throws SystemError for one that nobody can have written.
  const SumRecord& read(std::uint64_t number, std::uint32_t id) const {
    const SumRecord& record = entries_[id].record[newest(number, id)];
    if (record.sum < 0 || record.sum >= k_buffers || record.taken < -1 || record.taken >= k_buffers ||
        !record.machine.is_intact())
      throw_error<SystemError>("session: the accumulator of variable ", id, " is damaged");
    return record;
  }
  /// The record that transition `number` leaves behind.
  SumRecord& write(std::uint64_t number, std::uint32_t id) {
    (void)read(number, id);
    Entry& entry = entries_[id];
    const std::size_t now = newest(number, id);
    if (entry.stamp[now].load(std::memory_order_relaxed) == number) return entry.record[now];
    const std::size_t next = 1 - now;
    store_in_order(entry.stamp[next], 0);
    entry.record[next] = entry.record[now];
    store_in_order(entry.stamp[next], number);
    return entry.record[next];
  }

  // ---- sums

  /// Whether the gradient fits; outside the exclusion as well. @throws ShapeMismatch, InvalidArgument
  void check(std::uint32_t id, const VariableGradient<T>& gradient) const {
    if (const auto* dense = std::get_if<TensorView<const T>>(&gradient))
      std::get<SharedDenseSum<T>>(sums_[id]).check(*dense);
    else if (const auto* sparse = std::get_if<SparseGradient<T>>(&gradient))
      std::get<SharedSparseSum<T>>(sums_[id]).check(*sparse);
  }
  /// Adds a gradient that fits. At most once per variable and transition, or there would be no spare buffer.
  /// False if it is stale. @throws CapacityExceeded for too many rows.
  bool add(std::uint64_t number, std::uint32_t id, const VariableGradient<T>& gradient, Index local_step) {
    if (read(number, id).machine.is_stale(local_step)) return false;
    SumRecord& record = write(number, id);
    const std::int32_t spare = spare_buffer(id);
    std::byte* const sum = record.machine.count() == 0 ? nullptr : buffer(id, record.sum);
    fault_point("push: adding");
    if (const auto* dense = std::get_if<TensorView<const T>>(&gradient))
      std::get<SharedDenseSum<T>>(sums_[id]).add(*dense, sum, buffer(id, spare));
    else
      std::get<SharedSparseSum<T>>(sums_[id]).add(std::get<SparseGradient<T>>(gradient), sum,
                                                  buffer(id, spare));
    fault_point("push: added");
    record.sum = spare;
    record.machine.on_apply(local_step);
    return true;
  }
  /// Hands the sum to the request that stands, if it is due. True if so.
  bool serve(std::uint64_t number, std::uint32_t id) {
    if (read(number, id).machine.due() == 0) return false;
    SumRecord& record = write(number, id);
    record.taken = record.sum;
    record.taken_count = record.machine.serve()->count;
    return true;
  }
  Tensor<T> dense(std::uint32_t id, const SumRecord& record) const {
    return std::get<SharedDenseSum<T>>(sums_[id]).result(buffer(id, record.taken), record.taken_count);
  }
  SparseTensor<T> sparse(std::uint32_t id, const SumRecord& record) const {
    return std::get<SharedSparseSum<T>>(sums_[id]).result(buffer(id, record.taken), record.taken_count);
  }

 private:
  static constexpr int k_buffers = 3;
  static_assert(buffer_count(k_buffers - 2) == k_buffers);
  struct Entry {
    std::array<std::atomic<std::uint64_t>, 2> stamp;  // the transition that wrote the record
    std::array<SumRecord, 2> record;
  };
  struct Buffers {
    std::byte* first;
    std::size_t bytes;  // of each
  };

  std::size_t newest(std::uint64_t number, std::uint32_t id) const {
    const std::uint64_t first = entries_[id].stamp[0].load(std::memory_order_relaxed);
    const std::uint64_t second = entries_[id].stamp[1].load(std::memory_order_relaxed);
    return second <= number && (second > first || first > number) ? 1 : 0;
  }

  /// One that neither copy of the record names: the older copy is the committed one.
  std::int32_t spare_buffer(std::uint32_t id) const {
    const auto is_in_use = [&](std::int32_t number) {
      for (const SumRecord& record : entries_[id].record)
        if (record.taken == number || (record.machine.count() > 0 && record.sum == number)) return true;
      return false;
    };
    std::int32_t number = 0;
    while (number < k_buffers - 1 && is_in_use(number)) ++number;
    return number;
  }

  std::byte* buffer(std::uint32_t id, std::int32_t number) const {
    return buffers_[id].first + static_cast<std::size_t>(number) * buffers_[id].bytes;
  }

  std::atomic<std::uint64_t>* attempt_;  // the last transition that began to write
  Entry* entries_;
  std::vector<std::variant<std::monostate, SharedDenseSum<T>, SharedSparseSum<T>>> sums_;
  std::vector<Buffers> buffers_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
