// SPDX-License-Identifier: MIT
// Which types are optimizers and trainers, and which are not: a minimal model of each, and near misses of
// every requirement.
#include "support/catch.hpp"
#include <lockstep/explain.hpp>
#include <lockstep/lockstep.hpp>

#include <memory>
#include <string>
#include <vector>

using namespace lockstep;

namespace {

/// What an optimizer must have and nothing more: neither copyable nor default constructible. Nothing is
/// defined.
struct Minimal {
  using Scalar = float;
  using GradientScalar = float;
  explicit Minimal(std::unique_ptr<int>);
  Minimal(const Minimal&) = delete;
  Minimal& operator=(const Minimal&) = delete;

  const Variables<float>& variables() const;
  std::int64_t global_step() const;
  std::int64_t sequence() const;
  int index() const;
  template <class M>
  typename TensorTraits<M, float>::ConstView value(const Handle<M, float>&) const;
  template <class M>
  typename TensorTraits<M, float>::View gradient(const Handle<M, float>&);
  template <class M, class E>
  void set_gradient(const Handle<M, float>&, const E&);
  StepResult apply_gradients(const ApplyOptions& = {});
  std::vector<std::string> slot_names() const;
  template <class M>
  typename TensorTraits<M, float>::ConstView slot(std::string_view, const Handle<M, float>&) const;
};
static_assert(Optimizer<Minimal>);

static_assert(!Optimizer<int> && !Optimizer<Sgd> && !Optimizer<Variables<float>> && !Optimizer<Minimal&> &&
              !Optimizer<const Minimal> && !Optimizer<Minimal*>);

// Each lacks one thing, or has it in another form.
struct WithoutScalar : Minimal {
 private:
  using Minimal::Scalar;
};
static_assert(!Optimizer<WithoutScalar> && !HasVariables<WithoutScalar>);
struct WithoutGradientScalar : Minimal {
 private:
  using Minimal::GradientScalar;
};
static_assert(!Optimizer<WithoutGradientScalar> && !HasVariables<WithoutGradientScalar>);
struct VariablesAreCopied : Minimal {
  std::unique_ptr<Variables<float>> variables() const;
};
static_assert(!Optimizer<VariablesAreCopied> && !HasVariables<VariablesAreCopied>);
struct VariablesOfOtherScalar : Minimal {
  const Variables<double>& variables() const;
};
static_assert(!Optimizer<VariablesOfOtherScalar> && !HasVariables<VariablesOfOtherScalar>);
struct VariablesMutable : Minimal {
  Variables<float>& variables() const;
};
static_assert(!Optimizer<VariablesMutable> && !HasVariables<VariablesMutable>);

struct StepIsInt : Minimal {
  int global_step() const;
};
static_assert(!Optimizer<StepIsInt> && !HasSteps<StepIsInt>);
struct StepIsNotConst : Minimal {
  std::int64_t global_step();
};
static_assert(!Optimizer<StepIsNotConst> && !HasSteps<StepIsNotConst>);
struct WithoutSequence : Minimal {
  std::int64_t sequence() const = delete;
};
static_assert(!Optimizer<WithoutSequence> && !HasSteps<WithoutSequence>);
struct IndexIsUnsigned : Minimal {
  unsigned index() const;
};
static_assert(!Optimizer<IndexIsUnsigned> && !HasSteps<IndexIsUnsigned>);

struct ValueIsNotConst : Minimal {
  template <class M>
  int value(const Handle<M, float>&);
};
static_assert(!Optimizer<ValueIsNotConst> && !HasValues<ValueIsNotConst>);
struct ValueByName : Minimal {
  int value(std::string_view) const;
};
static_assert(!Optimizer<ValueByName> && !HasValues<ValueByName>);

struct WithoutGradient : Minimal {
  template <class M>
  void gradient(const Handle<M, float>&) = delete;
};
static_assert(!Optimizer<WithoutGradient> && !HasGradients<WithoutGradient>);
struct WithoutSetGradient : Minimal {
  template <class M, class E>
  void set_gradient(const Handle<M, float>&, const E&) = delete;
};
static_assert(!Optimizer<WithoutSetGradient> && !HasGradients<WithoutSetGradient>);

struct ApplyReturnsNothing : Minimal {
  void apply_gradients(const ApplyOptions& = {});
};
static_assert(!Optimizer<ApplyReturnsNothing> && !AppliesGradients<ApplyReturnsNothing>);
struct ApplyWithoutOptions : Minimal {
  StepResult apply_gradients();
};
static_assert(!Optimizer<ApplyWithoutOptions> && !AppliesGradients<ApplyWithoutOptions>);
struct ApplyNeedsOptions : Minimal {
  StepResult apply_gradients(const ApplyOptions&);
};
static_assert(!Optimizer<ApplyNeedsOptions> && !AppliesGradients<ApplyNeedsOptions>);

struct NamesAreViews : Minimal {
  std::vector<std::string_view> slot_names() const;
};
static_assert(!Optimizer<NamesAreViews> && !HasSlots<NamesAreViews>);
struct SlotIsNotConst : Minimal {
  template <class M>
  int slot(std::string_view, const Handle<M, float>&);
};
static_assert(!Optimizer<SlotIsNotConst> && !HasSlots<SlotIsNotConst>);

/// Each near miss of an optimizer misses only that.
template <class O>
constexpr int requirements_met =
    HasVariables<O> + HasSteps<O> + HasValues<O> + HasGradients<O> + AppliesGradients<O> + HasSlots<O>;
static_assert(requirements_met<Minimal> == 6);
static_assert(requirements_met<VariablesAreCopied> == 5 && requirements_met<VariablesOfOtherScalar> == 5 &&
              requirements_met<VariablesMutable> == 5);
static_assert(requirements_met<StepIsInt> == 5 && requirements_met<StepIsNotConst> == 5 &&
              requirements_met<WithoutSequence> == 5 && requirements_met<IndexIsUnsigned> == 5);
static_assert(requirements_met<ValueIsNotConst> == 5 && requirements_met<ValueByName> == 5);
static_assert(requirements_met<WithoutGradient> == 5 && requirements_met<WithoutSetGradient> == 5);
static_assert(requirements_met<ApplyReturnsNothing> == 5 && requirements_met<ApplyWithoutOptions> == 5 &&
              requirements_met<ApplyNeedsOptions> == 5);
static_assert(requirements_met<NamesAreViews> == 5 && requirements_met<SlotIsNotConst> == 5);

struct MinimalTrainer {
  using Replica = Minimal;
  template <class F>
  void run(F&& loop);
};
static_assert(Trainer<MinimalTrainer> && !Optimizer<MinimalTrainer>);
static_assert(!Trainer<int> && !Trainer<Minimal> && !Trainer<Sgd> && !Trainer<MinimalTrainer*>);

struct WithoutReplica {
  template <class F>
  void run(F&& loop);
};
static_assert(!Trainer<WithoutReplica> && !HasReplicas<WithoutReplica> && RunsLoops<WithoutReplica>);
struct ReplicaIsNoOptimizer : MinimalTrainer {
  using Replica = StepIsInt;
};
static_assert(!Trainer<ReplicaIsNoOptimizer> && !HasReplicas<ReplicaIsNoOptimizer> &&
              RunsLoops<ReplicaIsNoOptimizer>);
struct WithoutRun {
  using Replica = Minimal;
};
static_assert(!Trainer<WithoutRun> && HasReplicas<WithoutRun> && !RunsLoops<WithoutRun>);
struct RunWithoutLoop {
  using Replica = Minimal;
  void run();
};
static_assert(!Trainer<RunWithoutLoop> && HasReplicas<RunWithoutLoop> && !RunsLoops<RunWithoutLoop>);

// Everything that the library has to offer.
template <class T>
constexpr bool trains = Trainer<T>&& Optimizer<typename T::Replica>;
using Half = Eigen::half;
static_assert(trains<Local<Sgd>> && trains<Local<Adam, double>> && trains<Local<Lamb>> &&
              trains<Local<Sgd, float, Half>>);
static_assert(trains<Local<PerVariable<AdamW>>> && trains<Local<GradientAggregation<Adam>>> &&
              trains<Local<GradientAggregation<PerVariable<Adam>>>>);
static_assert(trains<SyncReplicas<Sgd>> && trains<SyncReplicas<Adam, InProcess, double>> &&
              trains<SyncReplicas<Sgd, InProcess, float, Half>>);
static_assert(trains<SyncReplicas<GradientAggregation<Adam>>> && trains<SyncReplicas<MovingAverage<Lamb>>>);
static_assert(trains<GradientAggregation<Local<Sgd>>> && trains<GradientAggregation<SyncReplicas<Adam>>> &&
              trains<GradientAggregation<SyncReplicas<GradientAggregation<Adam>>>>);
static_assert(Optimizer<Local<Sgd>>);  // it is its own replica
static_assert(!Optimizer<SyncReplicas<Sgd>> && !Trainer<SyncReplicas<Sgd>::Replica>);
static_assert(!Trainer<GradientAggregation<Sgd>> && !Optimizer<GradientAggregation<Sgd>>);  // a recipe

// Recipes and trainers are told apart.
static_assert(Recipe<Sgd> && Recipe<Sgd, double> && Recipe<PerVariable<Adam>> &&
              Recipe<GradientAggregation<Sgd>> && Recipe<GradientAggregation<PerVariable<Lamb>>>);
static_assert(!Recipe<int> && !Recipe<Minimal> && !Recipe<Local<Sgd>>);

// What is complete needs no explanation.
[[maybe_unused]] constexpr explain_optimizer<Minimal> explained_minimal;
[[maybe_unused]] constexpr explain_optimizer<Local<Adam>> explained_local;
[[maybe_unused]] constexpr explain_optimizer<SyncReplicas<Adam>::Replica> explained_replica;
[[maybe_unused]] constexpr explain_trainer<MinimalTrainer> explained_minimal_trainer;
[[maybe_unused]] constexpr explain_trainer<Local<Adam>> explained_local_trainer;
[[maybe_unused]] constexpr explain_trainer<GradientAggregation<SyncReplicas<Adam>>> explained_nesting;

}  // namespace

TEST_CASE("optimizers and trainers: the truth tables hold at compile time", "[static][optimizer]") {
  SUCCEED();
}
