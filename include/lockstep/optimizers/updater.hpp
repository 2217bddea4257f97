// SPDX-License-Identifier: MIT
/// @file
/// A recipe bound to variables and memory: plans an update, runs it over ranges of the layout, commits it.
#pragma once

#include <lockstep/checkpoint/snapshot.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/fixed_list.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/finite.hpp>
#include <lockstep/gradients/runs.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/aggregation.hpp>
#include <lockstep/optimizers/float_environment.hpp>
#include <lockstep/optimizers/fused_update.hpp>
#include <lockstep/optimizers/partition.hpp>
#include <lockstep/optimizers/rule_groups.hpp>
#include <lockstep/optimizers/update_plan.hpp>
#include <lockstep/optimizers/whole.hpp>
#include <lockstep/reduction.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Slot of a gradient aggregation: the open window. Zero where nothing is pending.
inline constexpr std::string_view k_grad_accum = "grad_accum";

/// @tparam T scalar of variables and slots; @tparam G scalar of gradients.
template <class R, class T, class G>
requires Recipe<R, T>
class Updater {
 public:
  /// The rule inside the recipe.
  using Rule = rule_of_t<R>;
  /// What `prepare` of the rule makes.
  using Step = step_of_t<Rule>;
  static constexpr std::size_t slot_count = slot_count_v<Rule>;            ///< slots of the rule
  static constexpr bool aggregates = detail::RecipeTraits<R>::aggregates;  ///< the recipe has a window
  static constexpr bool by_elements =
      UpdatesElements<Rule, T>;  ///< the rule runs on registers, not on whole variables

  /// Takes its arrays from `carver`; over a null base this only counts bytes.
  /// @param own_values the variables lie there as well, not in the memory of `variables`.
  Updater(const R& recipe, Variables<T, G>& variables, const RowLayout& rows, Carver& carver,
          bool own_values = false)
      : layout_(variables.layout()),
        values_(own_values ? carver.array<T>(static_cast<std::size_t>(variables.layout().size()))
                           : variables.data()),
        options_(detail::RecipeTraits<R>::options(recipe)),
        has_window_(aggregates && options_.grad_steps.needs_accumulator()),
        groups_(recipe, layout_),
        partition_(layout_),
        steps_(carver.array<Step>(groups_.count())) {
    for (T*& slot : slots_) slot = carver.array<T>(static_cast<std::size_t>(layout_.size()));
    if (has_window()) window_ = Contribution<T>(carver, layout_, rows);
    if constexpr (!by_elements) mean_ = carver.array<T>(static_cast<std::size_t>(layout_.size()));
    if (options_.num_partitions < 1)
      detail::throw_error<InvalidArgument>("num_partitions: must be at least 1, got ",
                                           options_.num_partitions);
    if constexpr (aggregates) detail::expect_valid(options_);
    changed_.push_back(values_);
    for (T* slot : slots_) changed_.push_back(slot);
    if (has_window()) changed_.push_back(window_.data());
  }

  /// Writes the initial values of the slots. Once, by one participant, after the variables have theirs.
  void initialise() {
    for (std::size_t k = 0; k < slot_count; ++k)
      for (const VariableInfo& info : layout_.infos()) {
        T* slot = slots_[k] + info.offset;
        if (Rule::slots[k].starts_as_copy)
          std::copy(values_ + info.offset, values_ + info.offset + info.size, slot);
        else
          // The padding too where rules run over it, so that no rule divides by zero there.
          std::fill(slot, slot + (by_elements ? layout_.end_of(info.id) - info.offset : info.size),
                    static_cast<T>(slot_initial_value(groups_.rule_of(info.id), k)));
      }
  }

  /// Of the window; defaults if there is none.
  const AggregationOptions& options() const { return options_; }
  /// Changes k, also of the open window.
  void set_grad_steps(WindowLength length) { options_.grad_steps = std::move(length); }
  /// There is memory for an open window: decided at the start, whatever the length becomes.
  bool has_window() const { return has_window_; }
  /// The open window. @pre has_window()
  Contribution<T>& window() { return window_; }
  /// The same, to be read. @pre has_window()
  const Contribution<T>& window() const { return window_; }

  /// k of the open window. @throws InvalidArgument if a function gives no positive number.
  std::int64_t grad_steps(const UpdaterState& state) const {
    if constexpr (aggregates)
      return options_.grad_steps(state.window.updates);
    else
      return 1;
  }

  // ---- the life of a round

  /// Decides what the round with these contributions does. @param flush closes the window early.
  /// @throws InvalidArgument if a schedule gives no usable value.
  UpdatePlan plan(const UpdaterState& state, std::span<const Contribution<G>* const> contributions,
                  Reduction reduction, Absent absent, bool flush) const {
    return detail::make_plan(state, contributions,
                             {.window = aggregates ? &options_ : nullptr,
                              .keeps_window = has_window(),
                              .grad_steps = grad_steps(state),
                              .reduction = reduction,
                              .absent = absent,
                              .flush = flush});
  }

  /// What the rule is told about this update.
  static StepInfo step_info(const UpdaterState& state, const UpdatePlan& plan) {
    return {.step = state.window.updates,
            .weight = plan.total,
            .examples = state.examples,
            .schedule = state.window.global_step};
  }
  /// Computes what the rule needs for this update: schedules, bias corrections. Only if the plan applies.
  void prepare(const UpdaterState& state, const UpdatePlan& plan) {
    groups_.prepare(step_info(state, plan), steps_);
  }

  /// Fills the list of sources of a plan, in order.
  void list(const UpdatePlan& plan, std::span<const Contribution<G>* const> contributions, double clip_factor,
            Contributors<T, G>& to) const {
    to.clear();
    to.scale = plan.scale * clip_factor;
    to.by_present = plan.by_present;
    to.factor = clip_factor;
    if (plan.with_window && has_window()) {
      if constexpr (std::same_as<T, G>)
        to.add(window_, 1, 0);
      else
        to.window = &window_;
    }
    for (const auto* contribution : contributions)
      to.add(*contribution, contribution->header().unit / plan.first_unit,
             contribution->header().total / plan.first_unit);
  }

  /// Does the plan's work for elements [begin, end). Ranges of one round are disjoint; each is run once.
  /// @param keeper copies lines before they are changed, where somebody may have to put it back. Not for
  /// rules that need whole variables.
  template <class Keeper = detail::NothingKept>
  void run(const UpdatePlan& plan, const Contributors<T, G>& sources, Index begin, Index end,
           const Keeper& keeper = {}) noexcept {
    const FloatEnvironment same_everywhere;
    if constexpr (aggregates) {
      if (!plan.applies && has_window()) return gather(sources, begin, end, keeper);
    }
    if constexpr (by_elements)
      apply_elements(sources, begin, end, keeper);
    else
      apply_variables(sources, begin, end);
  }
  /// What `run` changes in place, for elements of the range alone: variables and slots, or the sums of the
  /// window.
  std::span<T* const> changed_arrays(const UpdatePlan& plan) const {
    const std::span<T* const> all(changed_);
    return plan.applies || !has_window() ? all.first(1 + slot_count) : all.subspan(1 + slot_count);
  }
  /// Most arrays that there are in such a list.
  static constexpr std::size_t most_changed_arrays = 1 + slot_count;

  /// Sum of squares of the mean over everything: item by item, as replicas that share the work form it.
  double squared_norm(const Contributors<T, G>& sources) const noexcept {
    double sum = 0;
    for (Index i = 0; i < partition_.items(); ++i) {
      const auto [begin, end] = partition_.item(i);
      sum += squared_norm(sources, begin, end);
    }
    return sum;
  }

  /// Sum of squares of the mean over [begin, end), in double.
  double squared_norm(const Contributors<T, G>& sources, Index begin, Index end) const noexcept {
    const FloatEnvironment same_everywhere;
    Runs<T, G> runs(layout_, sources);
    double sum = 0;
    for_each_variable(begin, end, [&](std::uint32_t id, Index from, Index to) {
      if (!groups_.is_trainable(id)) return;
      for (runs.start(id, from, to); runs.next();)
        if (runs.has_gradient()) sum += lockstep::squared_norm(runs.sources(), runs.begin(), runs.size());
    });
    return sum;
  }

  /// Ends the round: counters move, the window is emptied or keeps what it was given. One participant; what
  /// it does to the window may be done again after it has died inside.
  void commit(UpdaterState& state, const UpdatePlan& plan,
              std::span<const Contribution<G>* const> contributions) {
    state.window.advance(options_.variant, plan.grad_steps, plan.applies);
    if (plan.applies) {
      state.examples += plan.total;
      if (has_window()) window_.clear();
      state.window_total = 0;
    } else if (has_window()) {
      if (!plan.with_window) state.window_unit = plan.divides_now ? 1 : plan.first_unit;
      state.window_total = plan.total;
      for (const auto* contribution : contributions)
        if (!is_window(*contribution) && !window_.is_dense())
          for (std::uint32_t id = 0; id < layout_.count(); ++id) window_.unite_presence(id, *contribution);
    }
  }

  // ---- partition

  /// Ranges that are claimed by one participant.
  const Partition<by_elements>& partition() const { return partition_; }

  // ---- slots

  /// Names of the slots, "grad_accum" of an aggregation last.
  std::vector<std::string> slot_names() const {
    std::vector<std::string> names;
    names.reserve(slot_count + 1);
    for (const Slot& slot : Rule::slots) names.emplace_back(slot.name);
    if (aggregates) names.emplace_back(k_grad_accum);
    return names;
  }
  /// First element of the array of a slot of the rule. @throws UnknownVariable with the names that exist.
  T* slot(std::string_view name) const {
    for (std::size_t k = 0; k < slot_count; ++k)
      if (Rule::slots[k].name == name) return slots_[k];
    std::string known;
    for (const std::string& slot : slot_names()) known += (known.empty() ? "" : ", ") + slot;
    detail::throw_error<UnknownVariable>("slot: there is no slot '", name,
                                         "'; slots are: ", known.empty() ? "none" : known);
  }

  // ---- saving

  /// Copies variables, slots, the open window and `state` into a snapshot, whose memory is used again.
  void save(const UpdaterState& state, Snapshot<T>& to) const {
    to.rule = rule_name<Rule>();
    to.generation = 0;
    to.counters = state;
    to.arrays.resize(layout_.infos().size() * (1 + slot_count));
    auto next = to.arrays.begin();
    for (const VariableInfo& info : layout_.infos()) {
      const auto put = [&](std::string_view slot, const T* array) {
        next->variable = info.name;
        next->slot = slot;
        next->shape = info.shape;
        next->column_major = info.column_major;
        next->values.assign(array + info.offset, array + info.offset + info.size);
        ++next;
      };
      put("", values_);
      for (std::size_t k = 0; k < slot_count; ++k) put(Rule::slots[k].name, slots_[k]);
    }
    if (has_window() && state.window.pending > 0)
      detail::save_window(window_, to);
    else
      to.window.clear();
  }

  /// @throws LayoutMismatch if names, shapes or slots differ; InvalidArgument for counters that no training
  /// can have brought about.
  void expect_fits(const Snapshot<T>& snapshot) const { (void)copies(snapshot); }
  /// @throws as `expect_fits`; nothing has changed then.
  void load(const Snapshot<T>& snapshot, UpdaterState& state) {
    for (const auto& copy : copies(snapshot)) copy();
    if (has_window()) detail::load_window(window_, snapshot);
    state = snapshot.counters;
  }

  /// Where the variables lie.
  const Layout& layout() const { return layout_; }
  /// First element of the variables.
  T* values() const { return values_; }

 private:
  /// Where the arrays of a snapshot go. @throws as `expect_fits`
  std::vector<detail::ArrayCopy<T>> copies(const Snapshot<T>& snapshot) const {
    if (snapshot.counters.window.pending > 0 && !has_window())
      detail::throw_error<LayoutMismatch>("restore: the snapshot has ", snapshot.counters.window.pending,
                                          " micro-batches in an open window, this trainer has none");
    if (const auto name = rule_name<Rule>(); !name.empty() && !snapshot.rule.empty() && name != snapshot.rule)
      detail::throw_error<LayoutMismatch>("restore: the snapshot is of rule '", snapshot.rule,
                                          "', this trainer has '", name, "'");
    std::vector<detail::ArrayCopy<T>> result;
    // In the order in which `save` writes them.
    const auto add = [&](const VariableInfo& info, T* array, std::string_view slot) {
      result.push_back(
          {&info, array + info.offset, &detail::find_array(snapshot, info, slot, result.size())});
    };
    for (const VariableInfo& info : layout_.infos()) {
      add(info, values_, "");
      for (std::size_t k = 0; k < slot_count; ++k) add(info, slots_[k], Rule::slots[k].name);
    }
    if (snapshot.arrays.size() != result.size())
      detail::throw_error<LayoutMismatch>("restore: the snapshot has ", snapshot.arrays.size(),
                                          " variables and slots, this trainer has ", result.size());
    detail::check_window(layout_, snapshot);
    detail::check_counters(snapshot.counters);
    return result;
  }

  /// A first micro-batch is written by the user into the window itself.
  bool is_window(const Contribution<G>& contribution) const {
    return static_cast<const void*>(&contribution) == static_cast<const void*>(&window_);
  }

  template <class F>
  void for_each_variable(Index begin, Index end, F&& f) const {
    for (std::uint32_t id = layout_.variable_at(begin); id < layout_.count() && layout_[id].offset < end;
         ++id)
      f(id, std::max(begin, layout_[id].offset), std::min(end, layout_.end_of(id)));
  }

  template <class Keeper>
  void gather(const Contributors<T, G>& contributors, Index begin, Index end, const Keeper& keeper) {
    const auto add = [&](Index start, Index size, const Sources<T, G>& sources) {
      const bool only_window = sources.count == (sources.wide ? 0 : 1) &&
                               (sources.wide || static_cast<const void*>(sources.data[0]) == window_.data());
      if (!only_window) sum_elements(sources, window_.data(), start, size, keeper);
    };
    Runs<T, G> runs(layout_, contributors);
    if (runs.is_dense()) return add(begin, end - begin, runs.all_sources());
    for_each_variable(begin, end, [&](std::uint32_t id, Index from, Index to) {
      for (runs.start(id, from, to); runs.next();)
        if (runs.has_gradient()) add(runs.begin(), runs.size(), runs.sources());
    });
  }

  template <class Keeper>
  void apply_elements(const Contributors<T, G>& contributors, Index begin, Index end, const Keeper& keeper) {
    Runs<T, G> runs(layout_, contributors);
    if (runs.is_dense() && groups_.is_uniform())
      return update_elements(groups_.rule(0), steps_[0], values_, slots_, runs.all_sources(), begin,
                             end - begin, keeper);
    for_each_variable(begin, end, [&](std::uint32_t id, Index from, Index to) {
      apply_variable_elements(runs, id, from, to, keeper);
    });
  }
  template <class Keeper>
  void apply_variable_elements(Runs<T, G>& runs, std::uint32_t id, Index begin, Index end,
                               const Keeper& keeper) {
    if (!groups_.is_trainable(id)) return;
    const Rule& rule = groups_.rule_of(id);
    const Step& step = steps_[groups_.group_of(id)];
    runs.start(id, begin, end);
    if (runs.is_by_rows() && !detail::UpdatesAbsent<Rule, T> && !updates_all_rows(rule))
      return update_rows(rule, step, values_, slots_, runs.rows(), keeper);
    while (runs.next())
      if (runs.has_gradient())
        update_elements(rule, step, values_, slots_, runs.sources(), runs.begin(), runs.size(), keeper);
      else if (runs.in_present_variable() && updates_all_rows(rule))
        update_elements_by_zero(rule, step, values_, slots_, runs.begin(), runs.size(), keeper);
      else
        update_elements_absent(rule, step, values_, slots_, runs.begin(), runs.size(), keeper);
  }

  /// For rules that need whole variables the mean is written out first, rows without a gradient as zeros.
  void apply_variables(const Contributors<T, G>& contributors, Index begin, Index end) {
    Runs<T, G> runs(layout_, contributors);
    for_each_variable(begin, end, [&](std::uint32_t id, Index from, Index to) {
      if (!groups_.is_trainable(id)) return;
      bool present = false;
      for (runs.start(id, from, to); runs.next();) {
        present = present || runs.has_gradient();
        if (runs.has_gradient())
          sum_elements(runs.sources(), mean_, runs.begin(), runs.size());
        else
          std::fill_n(mean_ + runs.begin(), runs.size(), T(0));
      }
      if (present)
        update_whole(id, from, to - from, std::make_index_sequence<slot_count>());
      else
        update_elements_absent(groups_.rule_of(id), steps_[groups_.group_of(id)], values_, slots_, from,
                               to - from);
    });
  }
  template <std::size_t... I>
  void update_whole(std::uint32_t id, Index offset, Index size, std::index_sequence<I...>) {
    groups_.rule_of(id).update_variable(steps_[groups_.group_of(id)], Flat<T>(values_ + offset, size),
                                        ConstFlat<T>(mean_ + offset, size),
                                        Flat<T>(slots_[I] + offset, size)...);
  }

  const Layout& layout_;
  T* values_;
  AggregationOptions options_;
  bool has_window_;
  detail::RuleGroups<R> groups_;
  Partition<by_elements> partition_;
  Step* steps_;
  std::array<T*, slot_count> slots_{};
  Contribution<T> window_;
  T* mean_ = nullptr;
  detail::FixedList<T*, slot_count + 2> changed_;
};

LOCKSTEP_NAMESPACE_END
