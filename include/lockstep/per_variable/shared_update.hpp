// SPDX-License-Identifier: MIT
/// @file
/// Variables and slots of a `VariableReplicas` trainer in the memory of a session, and updates of them that
/// survive whoever carries them out.
#pragma once

#include <lockstep/accumulators/tensor.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/rule_groups.hpp>
#include <lockstep/optimizers/updater.hpp>
#include <lockstep/per_variable/rows_in_turn.hpp>
#include <lockstep/per_variable/shared_sums.hpp>
#include <lockstep/sync/undo.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/store_in_order.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// @brief An update of all variables that any process can begin, and any other carry on.
///
/// It is divided into units: repeated rows that the rule applies in turn, then all elements, or each variable
/// if the rule needs whole ones. What a unit changes is copied before, afterwards the unit is counted, so
/// whoever carries on puts back what was being changed and goes on there. All functions but `prepare` are
/// called inside the exclusion.
template <class R, class T>
class SharedUpdate {
 public:
  using Rule = rule_of_t<R>;

  /// Over a null base this only counts bytes.
  SharedUpdate(Carver& carver, const R& recipe, Variables<T>& variables, const RowLayout& rows,
               const RuleGroups<R>& groups)
      : groups_(groups),
        units_(carver.array<std::atomic<std::uint64_t>>(1)),
        in_turn_(carver.array<InTurn>(groups.count())),
        updater_(recipe, variables, rows, carver, true),
        undo_(carver, layout().size(), longest_copy(), updater_.most_changed_arrays),
        memory_(aggregate_bytes(rows)),
        aggregate_(own_aggregate(rows)) {
    aggregate_.clear();
  }

  Updater<R, T, T>& updater() { return updater_; }
  const Updater<R, T, T>& updater() const { return updater_; }
  /// Units of all updates so far. The next update begins with this one.
  std::uint64_t units() const { return units_->load(std::memory_order_relaxed); }

  /// What one update does: it does not depend on the gradients.
  UpdatePlan plan(const UpdaterState& state) const {
    const std::array<const Contribution<T>*, 1> sources{&aggregate_};
    return updater_.plan(state, sources, Reduction::mean, Absent::zero, false);
  }
  /// Computes what the rules need for it; by one thread, which alone may. @throws what a schedule throws.
  void prepare(const UpdaterState& state, const UpdatePlan& plan) {
    updater_.prepare(state, plan);
    prepare_in_turn(groups_, Updater<R, T, T>::step_info(state, plan), in_turn_);
  }

  /// Does all units from `first_unit` that are not done, then counts the update in `state`. Whoever is killed
  /// inside leaves the rest to the next call with the same arguments.
  void carry_out(UpdaterState& state, const UpdatePlan& plan, std::uint64_t first_unit, SharedSums<T>& sums,
                 std::uint64_t transition) {
    const std::array<const Contribution<T>*, 1> sources{&aggregate_};
    std::uint64_t unit = first_unit;
    aggregate_.clear();
    sums.for_each([&](std::uint32_t id) { load(sums, transition, id, unit); });
    updater_.list(plan, sources, 1, contributors_);
    const auto change = [&](Index begin, Index end) {
      do_unit(unit++, updater_.changed_arrays(plan), begin, end,
              [&](Index first) { run_undoably(updater_, plan, contributors_, undo_, first, end); });
    };
    if constexpr (Updater<R, T, T>::by_elements) {
      change(0, layout().size());
    } else {
      for (Index i = 0; i < updater_.partition().items(); ++i) {
        const auto [begin, end] = updater_.partition().item(i);
        change(begin, end);
      }
    }
    updater_.commit(state, plan, sources);
  }

 private:
  using InTurn = typename InTurnStep<Rule>::type;

  const Layout& layout() const { return updater_.layout(); }

  /// Elements of what is copied as a whole: repeated rows, and items of rules that need whole variables.
  Index longest_copy() const {
    Index longest = updater_.partition().largest_whole_item();
    if (AppliesRowsInTurn<Rule>::value)
      for (const VariableInfo& info : layout().infos()) longest = std::max(longest, info.row_size());
    return longest;
  }
  std::size_t aggregate_bytes(const RowLayout& rows) const {
    Carver counter;
    const Contribution<T> aggregate(counter, layout(), rows);
    return counter.used();
  }
  Contribution<T> own_aggregate(const RowLayout& rows) {
    Carver carver(memory_.bytes().data());
    return Contribution<T>(carver, layout(), rows);
  }

  /// Puts the aggregate of a variable where the update reads it.
  void load(SharedSums<T>& sums, std::uint64_t transition, std::uint32_t id, std::uint64_t& unit) {
    const SumRecord& record = sums.read(transition, id);
    if (!record.is_served())  // in a damaged session
      throw_error<SystemError>("session: the update has no gradient for variable ", id);
    if (sums.kind(id) == GradientKind::dense) {
      const Tensor<T> mean = sums.dense(id, record);
      std::copy(mean.elements.begin(), mean.elements.end(), aggregate_.mark_dense(id));
      return;
    }
    const std::array<T*, 1> values{updater_.values()};
    const SparseTensor<T> rows = sums.sparse(id, record);
    for (const Index row : rows.indices)  // in a damaged session
      if (row < 0 || row >= layout()[id].rows())
        throw_error<SystemError>("session: the gradient of variable ", id, " has no row ", row);
    load_rows<Rule>(layout()[id], rows, aggregate_, [&](Index at, Index width) {
      do_unit(unit++, values, at, at + width, [&](Index) {
        undo_.save(values, at, at + width);
        apply_in_turn(groups_.rule_of(id), in_turn_[groups_.group_of(id)], aggregate_.data(),
                      updater_.values(), at, width);
      });
    });
  }
  /// Changes elements [begin, end) of some arrays by `f(first)`, once, whoever is killed. `first` says from
  /// which one on.
  template <class F>
  void do_unit(std::uint64_t unit, std::span<T* const> arrays, Index begin, Index end, F&& f) {
    if (unit < units()) return;
    const Index first = undo_.restore(unit, 0, begin, arrays, begin, end);
    undo_.reach(unit, 0, first);
    f(first);
    fault_point("unit: changed");
    store_in_order(*units_, unit + 1);
    fault_point("unit: done");
  }

  const RuleGroups<R>& groups_;
  std::atomic<std::uint64_t>* units_;
  InTurn* in_turn_;  // by rule: what repeated rows of the update need
  Updater<R, T, T> updater_;
  UndoArea<T> undo_;
  ZeroedMemory memory_;  // of this process: what an update reads is formed anew by whoever carries it out
  Contribution<T> aggregate_;
  Contributors<T, T> contributors_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
