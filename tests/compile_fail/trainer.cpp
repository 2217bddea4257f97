// SPDX-License-Identifier: MIT
// What trainers refuse, and what explain_optimizer and explain_trainer say of near misses: one section per
// requirement.
#include <lockstep/explain.hpp>
#include <lockstep/lockstep.hpp>

#include <string>
#include <string_view>
#include <vector>

using namespace lockstep;

// expect-error(SECTION_local_of_number): (UpdateRule|Recipe|DeclaresSlots)
// expect-error(SECTION_sync_of_number): (UpdateRule|Recipe|DeclaresSlots)
// expect-error(SECTION_local_of_trainer): (UpdateRule|Recipe|DeclaresSlots)
// expect-error(SECTION_aggregation_of_aggregation): (incomplete|undefined|constraint)
// expect-error(SECTION_aggregation_of_number): (incomplete|undefined|constraint)
// expect-error(SECTION_no_transport): Transport
// expect-error(SECTION_scalars_differ): (no viable|no matching|cannot convert)
// expect-error(SECTION_plain_rule_has_no_window): (aggregates|constraint)
// expect-error(SECTION_replica_is_copied): deleted
// expect-error(SECTION_trainer_is_copied): deleted
// expect-error(SECTION_scalars): \[lockstep\.optimizer\.scalars\].*#optimizer
// expect-error(SECTION_variables): \[lockstep\.optimizer\.variables\].*#optimizer
// expect-error(SECTION_variables_scalar): \[lockstep\.optimizer\.variables\].*#optimizer
// expect-error(SECTION_step): \[lockstep\.optimizer\.steps\].*#optimizer
// expect-error(SECTION_sequence): \[lockstep\.optimizer\.steps\].*#optimizer
// expect-error(SECTION_index): \[lockstep\.optimizer\.steps\].*#optimizer
// expect-error(SECTION_value): \[lockstep\.optimizer\.values\].*#optimizer
// expect-error(SECTION_gradient): \[lockstep\.optimizer\.gradients\].*#optimizer
// expect-error(SECTION_set_gradient): \[lockstep\.optimizer\.gradients\].*#optimizer
// expect-error(SECTION_apply): \[lockstep\.optimizer\.apply\].*#optimizer
// expect-error(SECTION_apply_options): \[lockstep\.optimizer\.apply\].*#optimizer
// expect-error(SECTION_slot_names): \[lockstep\.optimizer\.slots\].*#optimizer
// expect-error(SECTION_slot): \[lockstep\.optimizer\.slots\].*#optimizer
// expect-error(SECTION_replica): \[lockstep\.trainer\.replica\].*#trainer
// expect-error(SECTION_replica_optimizer): \[lockstep\.trainer\.optimizer\].*#trainer
// expect-error(SECTION_run): \[lockstep\.trainer\.run\].*#trainer
// expect-error(SECTION_run_argument): \[lockstep\.trainer\.run\].*#trainer

struct Optimizing {
#if defined(SECTION_scalars)
  using Number = float;
#else
  using Scalar = float;
#endif
  using GradientScalar = float;

#if defined(SECTION_variables)
#elif defined(SECTION_variables_scalar)
  const Variables<double>& variables() const;
#else
  const Variables<float>& variables() const;
#endif

#if defined(SECTION_step)
  int global_step() const;
#else
  std::int64_t global_step() const;
#endif
#if !defined(SECTION_sequence)
  std::int64_t sequence() const;
#endif
#if !defined(SECTION_index)
  int index() const;
#endif

#if !defined(SECTION_value)
  template <class M>
  int value(const Handle<M, float>&) const;
#endif
#if !defined(SECTION_gradient)
  template <class M>
  int gradient(const Handle<M, float>&);
#endif
#if !defined(SECTION_set_gradient)
  template <class M, class E>
  void set_gradient(const Handle<M, float>&, const E&);
#endif

#if defined(SECTION_apply)
  void apply_gradients(const ApplyOptions& = {});
#elif defined(SECTION_apply_options)
  StepResult apply_gradients();
#else
  StepResult apply_gradients(const ApplyOptions& = {});
#endif

#if !defined(SECTION_slot_names)
  std::vector<std::string> slot_names() const;
#endif
#if !defined(SECTION_slot)
  template <class M>
  int slot(std::string_view, const Handle<M, float>&) const;
#endif
};
template struct lockstep::explain_optimizer<Optimizing>;

struct Training {
#if defined(SECTION_replica)
  using Worker = Optimizing;
#elif defined(SECTION_replica_optimizer)
  using Replica = Sgd;
#else
  using Replica = Optimizing;
#endif
#if defined(SECTION_run)
#elif defined(SECTION_run_argument)
  void run(int);
#else
  template <class F>
  void run(F&& loop);
#endif
};
template struct lockstep::explain_trainer<Training>;

void use() {
  Variables<float> variables;
  Variables<double> doubles;
#if defined(SECTION_local_of_number)
  Local<int> trainer(3, variables);
#elif defined(SECTION_sync_of_number)
  SyncReplicas<int> trainer(3, variables, {});
#elif defined(SECTION_local_of_trainer)
  Local<SyncReplicas<Sgd>>* trainer = nullptr;
#elif defined(SECTION_aggregation_of_aggregation)
  GradientAggregation<GradientAggregation<Sgd>> recipe{{Sgd{}, {.grad_steps = 2}}, {.grad_steps = 2}};
#elif defined(SECTION_aggregation_of_number)
  GradientAggregation<int> recipe{3, {}};
#elif defined(SECTION_no_transport)
  SyncReplicas<Sgd, int>* trainer = nullptr;
#elif defined(SECTION_scalars_differ)
  Local<Sgd> trainer(Sgd{}, doubles);
#elif defined(SECTION_plain_rule_has_no_window)
  Local trainer{Sgd{}, variables};
  trainer.set_grad_steps(2);
#elif defined(SECTION_replica_is_copied)
  SyncReplicas trainer{Sgd{}, variables, {.replicas_to_aggregate = 1}};
  auto replica = trainer.join();
  auto copy = replica;
#elif defined(SECTION_trainer_is_copied)
  SyncReplicas trainer{Sgd{}, variables, {.replicas_to_aggregate = 1}};
  auto copy = trainer;
#else
  Local<Sgd> local(Sgd{}, variables);
  Local<Sgd, double> wide(Sgd{}, doubles);
  GradientAggregation<Sgd> recipe{Sgd{}, {.grad_steps = 2}};
  GradientAggregation outer{SyncReplicas{Sgd{}, variables, {.replicas_to_aggregate = 1}}, {.grad_steps = 2}};
  Local{GradientAggregation<Sgd>{Sgd{}, {}}, variables}.set_grad_steps(1);
#endif
}
