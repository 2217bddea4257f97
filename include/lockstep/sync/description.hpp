// SPDX-License-Identifier: MIT
/// @file
/// What the processes of one session must agree on, as text: a line for each subject.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/sources.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/number_text.hpp>
#include <lockstep/optimizers/float_environment.hpp>
#include <lockstep/optimizers/fused_update.hpp>
#include <lockstep/optimizers/rule_groups.hpp>
#include <lockstep/sync/options.hpp>
#include <lockstep/transport/build.hpp>

#include <Eigen/Core>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// FNV-1a over the bits of numbers.
class BitHash {
 public:
  template <class T>
  void add(std::span<const T> numbers) {
    for (const std::byte byte : std::as_bytes(numbers))
      value_ = (value_ ^ std::to_integer<std::uint64_t>(byte)) * 1099511628211U;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037U;
};

/// The bits that the rules of a recipe make of fixed numbers: another parameter, another rounding or another
/// build makes other bits.
template <class R, class T>
class RuleProbe {
  using Rule = rule_of_t<R>;
  static constexpr std::size_t slot_count = slot_count_v<Rule>;
  static constexpr Index k_size = 64;

 public:
  static std::uint64_t bits(const R& recipe, const Layout& layout) {
    const RuleGroups<R> groups(recipe, layout);
    BitHash hash;
    for (std::size_t group = 0; group < groups.count(); ++group) RuleProbe(groups.rule(group)).run(hash);
    return hash.value();
  }

 private:
  explicit RuleProbe(const Rule& rule) : rule_(rule) {
    for (std::size_t i = 0; i < k_size; ++i) {
      values_[i] = static_cast<T>(1) / static_cast<T>(i + 3);
      gradient_[i] = static_cast<T>(static_cast<int>(i) - 20) / static_cast<T>(7);
    }
    // Of denormal numbers, so that flushing them shows.
    values_[0] = gradient_[0] = std::numeric_limits<T>::denorm_min() * static_cast<T>(3);
    for (std::size_t k = 0; k < slot_count; ++k)
      slots_[k].fill(Rule::slots[k].starts_as_copy ? T(0.25) : static_cast<T>(slot_initial_value(rule, k)));
  }

  /// A schedule that gives no rate will say so when there is an update.
  void run(BitHash& hash) try {
    const FloatEnvironment same_everywhere;
    for (const std::int64_t step : {0, 1}) {
      const auto prepared = prepare_step(
          rule_,
          StepInfo{.step = step, .weight = 2, .examples = 2.0 * static_cast<double>(step), .schedule = step});
      update(prepared, std::make_index_sequence<slot_count>());
    }
    hash.add<T>(values_);
    for (const auto& slot : slots_) hash.add<T>(slot);
  } catch (...) {
    hash.add<char>(std::string_view("no rate"));
  }

  template <class Step, std::size_t... I>
  void update(const Step& step, std::index_sequence<I...>) {
    if constexpr (UpdatesElements<Rule, T>) {
      Sources<T, T> sources;
      sources.clear();
      sources.add(gradient_.data(), 1);
      sources.add(gradient_.data(), static_cast<T>(0.3));
      sources.scale = static_cast<T>(1) / static_cast<T>(3);
      update_elements(rule_, step, values_.data(), std::array<T*, slot_count>{slots_[I].data()...}, sources,
                      0, k_size);
    } else {
      rule_.update_variable(step, Flat<T>(values_.data(), k_size), ConstFlat<T>(gradient_.data(), k_size),
                            Flat<T>(slots_[I].data(), k_size)...);
    }
  }

  const Rule& rule_;
  alignas(k_alignment) std::array<T, k_size> values_;
  alignas(k_alignment) std::array<T, k_size> gradient_;
  struct alignas(k_alignment) SlotArray : std::array<T, k_size> {};
  std::array<SlotArray, slot_count> slots_;
};

/// Variables, rule and build.
template <class R, class T, class G>
std::string describe_model(const R& recipe, const Variables<T, G>& variables) {
  using Rule = rule_of_t<R>;
  const Layout& layout = variables.layout();
  std::string lines = text("variables: ", layout.count());
  for (const VariableInfo& info : layout.infos())
    lines += text("\nvariable ", info.id, ": ", info.name, ' ', shape_text(info.shape),
                  info.column_major ? " by columns" : "");
  lines += "\nscalars: " + scalar_text<T>() + ", gradients " + scalar_text<G>();
  lines += text("\nrule: ", rule_name<Rule>(), ", slots");
  for (const Slot& slot : Rule::slots) lines += text(' ', slot.name);
  lines += text("\nbuild: ", build_text());
  lines += text("\nrule parameters and arithmetic, as bits: ", RuleProbe<R, T>::bits(recipe, layout));
  return lines;
}

template <class R, class T, class G>
std::string describe(const R& recipe, const Variables<T, G>& variables, const SyncOptions& options) {
  std::string lines = describe_model(recipe, variables);
  lines += text(
      "\nreplicas_to_aggregate: ", options.replicas_to_aggregate,
      "\ntotal_num_replicas: ", options.replicas(), "\nreduction: ", static_cast<int>(options.reduction),
      "\ndeparture: ", to_string(options.departure), "\nabsent: ", static_cast<int>(options.absent),
      "\nnon_finite: ", static_cast<int>(options.non_finite), "\nclip_norm: ", number_text(options.clip_norm),
      "\nclip_contribution_norm: ", number_text(options.clip_contribution_norm),
      "\ninit_tokens: ", options.init_tokens, "\nglobal_step: ", options.global_step,
      "\ndriver: ", static_cast<int>(options.driver), "\nreading: ", static_cast<int>(options.reading));
  if constexpr (RecipeTraits<R>::aggregates) {
    const AggregationOptions& window = RecipeTraits<R>::options(recipe);
    lines += text("\ngrad_steps: ", window.grad_steps(0), ", variant ", static_cast<int>(window.variant),
                  ", reduction ", static_cast<int>(window.reduction));
  }
  return lines;
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
