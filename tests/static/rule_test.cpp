// SPDX-License-Identifier: MIT
// Which types are update rules, and which are not.
#include "support/catch.hpp"
#include <lockstep/optimizers/explain.hpp>
#include <lockstep/optimizers/optimizers.hpp>

#include <array>
#include <memory>
#include <string>
#include <type_traits>

using namespace lockstep;

namespace {

template <class R>
constexpr bool is_rule = UpdateRule<R, float>&& UpdateRule<R, double>;

static_assert(is_rule<Sgd> && UpdatesElements<Sgd, float> && !UpdatesVariables<Sgd, float>);
static_assert(is_rule<Momentum> && UpdatesElements<Momentum, float>);
static_assert(is_rule<Adagrad> && UpdatesElements<Adagrad, float>);
static_assert(is_rule<RmsProp> && UpdatesElements<RmsProp, float>);
static_assert(is_rule<Adam> && UpdatesElements<Adam, float>);
static_assert(is_rule<AdamW> && UpdatesElements<AdamW, float>);
static_assert(is_rule<Lamb> && UpdatesVariables<Lamb, float> && !UpdatesElements<Lamb, float>);
static_assert(is_rule<MovingAverage<Sgd>> && is_rule<MovingAverage<Adam>> && is_rule<MovingAverage<Lamb>>);
static_assert(UpdatesElements<MovingAverage<Adam>, float> && !UpdatesVariables<MovingAverage<Adam>, float>);
static_assert(UpdatesVariables<MovingAverage<Lamb>, float> && !UpdatesElements<MovingAverage<Lamb>, float>);

static_assert(slot_count_v<Sgd> == 0 && slot_count_v<Adam> == 2 && slot_count_v<MovingAverage<Adam>> == 3);
static_assert(std::is_aggregate_v<Sgd> && std::is_aggregate_v<Adam> &&
              std::is_aggregate_v<MovingAverage<Adam>> && std::is_aggregate_v<PerVariable<Adam>>);
static_assert(std::is_same_v<step_of_t<Adam>, Adam::Step>);
static_assert(
    std::is_same_v<decltype(PerVariable{Adam{}, [](Adam&, const VariableInfo&) {}}), PerVariable<Adam>>);
static_assert(std::is_same_v<decltype(MovingAverage{Adam{}, 0.5, true}), MovingAverage<Adam>>);

// A recipe for many rules, not a rule; and things that are no rules at all.
static_assert(!UpdateRule<PerVariable<Adam>>);
static_assert(!UpdateRule<int> && !UpdateRule<std::string> && !UpdateRule<Adam&> && !UpdateRule<const Adam>);

/// The least a rule can be.
struct Minimal {
  static constexpr std::array<Slot, 0> slots{};
  void update(const StepInfo&, auto& w, auto g) const { w -= g; }
};
static_assert(is_rule<Minimal> && std::is_same_v<step_of_t<Minimal>, StepInfo>);

struct MinimalWhole {
  static constexpr std::array slots{Slot{"a"}};
  template <class T>
  void update_variable(const StepInfo&, Flat<T> w, ConstFlat<T> g, Flat<T>) const {
    w -= g;
  }
};
static_assert(is_rule<MinimalWhole>);

/// Works, although not for every scalar.
struct OnlyFloat {
  static constexpr std::array<Slot, 0> slots{};
  void update_variable(const StepInfo&, Flat<float>, ConstFlat<float>) const {}
};
static_assert(UpdateRule<OnlyFloat, float> && !UpdateRule<OnlyFloat, double>);

struct NotCopyable : Minimal {
  std::unique_ptr<int> owned;
};
static_assert(!UpdateRule<NotCopyable> && UpdatesElements<NotCopyable, float>);

struct NotAssignable : Minimal {
  const double rate = 1;
};
static_assert(!UpdateRule<NotAssignable>);

struct WithoutSlots {
  void update(const StepInfo&, auto& w, auto g) const { w -= g; }
};
static_assert(!UpdateRule<WithoutSlots> && !DeclaresSlots<WithoutSlots>);

struct StepWithMemory {
  static constexpr std::array<Slot, 0> slots{};
  struct Step {
    std::string text;
  };
  Step prepare(const StepInfo&) const { return {}; }
  void update(const Step&, auto& w, auto g) const { w -= g; }
};
static_assert(!UpdateRule<StepWithMemory> && !HasTrivialStep<StepWithMemory>);

struct PrepareNotConst {
  static constexpr std::array<Slot, 0> slots{};
  struct Step {
    double rate;
  };
  Step prepare(const StepInfo&) { return {}; }
  void update(const Step&, auto& w, auto g) const { w -= g; }
};
static_assert(!UpdateRule<PrepareNotConst>);

struct WithoutUpdate {
  static constexpr std::array<Slot, 0> slots{};
};
static_assert(!UpdateRule<WithoutUpdate>);

struct TooFewSlots {
  static constexpr std::array slots{Slot{"a"}};
  void update(const StepInfo&, auto& w, auto g) const { w -= g; }
};
static_assert(!UpdateRule<TooFewSlots>);

struct TooManySlots {
  static constexpr std::array slots{Slot{"a"}};
  void update(const StepInfo&, auto& w, auto g, auto&, auto&) const { w -= g; }
};
static_assert(!UpdateRule<TooManySlots>);

struct UpdateNotConst {
  static constexpr std::array<Slot, 0> slots{};
  void update(const StepInfo&, auto& w, auto g) { w -= g; }
};
static_assert(!UpdateRule<UpdateNotConst>);

struct UpdateReturns {
  static constexpr std::array<Slot, 0> slots{};
  int update(const StepInfo&, auto& w, auto g) const {
    w -= g;
    return 0;
  }
};
static_assert(!UpdateRule<UpdateReturns>);

struct OneElementOnly {
  static constexpr std::array<Slot, 0> slots{};
  void update(const StepInfo&, Pack<float>& w, Pack<float> g) const { w -= g; }
};
static_assert(!UpdateRule<OneElementOnly> ||
              std::is_same_v<detail::BestPacket<float>, float>);  // without SIMD both widths are one

// What is a rule needs no explanation.
[[maybe_unused]] constexpr explain_rule<Sgd> explained_sgd;
[[maybe_unused]] constexpr explain_rule<Lamb, double> explained_lamb;
[[maybe_unused]] constexpr explain_rule<MovingAverage<Adam>> explained_average;
[[maybe_unused]] constexpr explain_rule<MovingAverage<Lamb>> explained_whole_average;
[[maybe_unused]] constexpr explain_rule<Minimal> explained_minimal;
[[maybe_unused]] constexpr explain_rule<MinimalWhole> explained_whole;

}  // namespace

TEST_CASE("rules: the truth table of UpdateRule holds at compile time", "[static][optimizers]") { SUCCEED(); }
