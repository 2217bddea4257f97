// SPDX-License-Identifier: MIT
// A step of synchronous replicas in one process: large, many, small, and alone; beside its floors, plain
// Eigen, a running sum under a mutex, and std::barrier.
#include "support/floors.hpp"
#include "support/program.hpp"
#include "support/sync_step.hpp"
#include <lockstep/gradient_aggregation.hpp>
#include <lockstep/optimizers/fused_update.hpp>
#include <lockstep/optimizers/local.hpp>

#include <memory>
#include <string>

namespace {

using namespace lockstep;
using namespace lockstep::bench;

template <class R>
inline const std::string rule_name = std::same_as<R, Sgd> ? "sgd" : "adam";

/// Two replicas, 25e6 parameters: memory bandwidth is all there is.
void compare_large() {
  constexpr Index elements = 25'000'000;
  Floors floors(elements, 2);
  Interleaved rounds;
  floors.add_to(rounds);
  SyncStep<Sgd> sgd(elements, 2);
  SyncStep<Adam> adam(elements, 2);
  rounds.add("sync sgd", steps_of(sgd, 4));
  rounds.add("sync adam", steps_of(adam, 4));
  MutexSumStep<Sgd> mutex_sgd(elements, 2);
  MutexSumStep<Adam> mutex_adam(elements, 2);
  rounds.add("mutex sgd", steps_of(mutex_sgd, 2));
  rounds.add("mutex adam", steps_of(mutex_adam, 2));
  EigenStep<Sgd> eigen_sgd(elements, 2);
  EigenStep<Adam> eigen_adam(elements, 2);
  rounds.add("eigen sgd", steps_of(eigen_sgd, 1));
  rounds.add("eigen adam", steps_of(eigen_adam, 1));
  rounds.run(15);

  report("sync/2x25e6/sgd/roofline", floors.roofline(rounds, "sync sgd", floor_bytes<Sgd>(elements, 2)),
         "of peak", rounds);
  report("sync/2x25e6/adam/roofline", floors.roofline(rounds, "sync adam", floor_bytes<Adam>(elements, 2)),
         "of peak");
  report("sync/2x25e6/sgd/mutex_sum", rounds.ratio("mutex sgd", "sync sgd"), "x");
  report("sync/2x25e6/adam/mutex_sum", rounds.ratio("mutex adam", "sync adam"), "x");
  report("sync/2x25e6/sgd/eigen", rounds.ratio("eigen sgd", "sync sgd"), "x");
  report("sync/2x25e6/adam/eigen", rounds.ratio("eigen adam", "sync adam"), "x");
}

/// Eight replicas on two cores.
void compare_many() {
  constexpr Index elements = 10'000'000;
  // Two arrays with as much memory as the nine of a step with SGD: smaller ones stay in caches in part.
  Floors floors(elements * 9 / 2, 2);
  Interleaved rounds;
  floors.add_to(rounds);
  floors.add_reading_to(rounds);
  SyncStep<Sgd> sgd(elements, 8);
  SyncStep<Adam> adam(elements, 8);
  rounds.add("sync sgd", steps_of(sgd, 5));
  rounds.add("sync adam", steps_of(adam, 5));
  rounds.run(15);
  report("sync/8x10e6/sgd/roofline", floors.roofline(rounds, "sync sgd", floor_bytes<Sgd>(elements, 8)),
         "of peak", rounds);
  report("sync/8x10e6/adam/roofline", floors.roofline(rounds, "sync adam", floor_bytes<Adam>(elements, 8)),
         "of peak");
  // What a step reads is as much as `reading` does, and 11/9 of it.
  report("sync/8x10e6/sgd/reading", rounds.ratio("sync sgd", "reading"), "x the time of reading as much");
  report("sync/8x10e6/adam/reading", rounds.ratio("sync adam", "reading") * 9 / 11,
         "x the time of reading as much");
}

template <class R>
void compare_variables() {
  SyncStep<R> one(1'000'000, 2), many(1'000'000, 2, 10'000);
  SyncStep<R> padded(1'120'000, 2);
  TestVariables untrained(1'000'000, 10'000);
  Local<R> alone(R{}, untrained.set());
  Interleaved rounds;
  rounds.add("1 variable", steps_of(one, 20));
  rounds.add("10,000 variables", steps_of(many, 20));
  rounds.add("1 variable of the padded size", steps_of(padded, 20));
  rounds.add("10,000 calls of gradient()", repeated([&] { untrained.mark_gradients(alone); }));
  rounds.run(51);
  const std::string name = "sync/10000_variables/" + rule_name<R>;
  report(name, rounds.ratio("10,000 variables", "1 variable"), "x the time", rounds);
  report(name + "/padded", rounds.ratio("10,000 variables", "1 variable of the padded size"), "x the time");
}

/// The rule on plain arrays with one gradient, as somebody would call it who has no optimizer.
template <class R>
class BareRule {
 public:
  explicit BareRule(Index elements) : size_(elements), values_(elements), gradient_(elements) {
    for (std::size_t k = 0; k < slot_count_v<R>; ++k) {
      memory_.push_back(std::make_unique<Floats>(elements, 0.0F));
      slots_[k] = memory_.back()->data();
    }
    fill_with_pattern(values_.data(), elements, k_values_seed);
    fill_with_pattern(gradient_.data(), elements, 0);
    sources_.add(gradient_.data(), 1);
    (*this)();
    expect_updated<R>(values_.data(), elements, 1, 1, "bare rule");
  }
  void operator()() {
    const auto step = prepare_step(rule_, StepInfo{.step = steps_++, .schedule = steps_});
    update_elements(rule_, step, values_.data(), slots_, sources_, 0, size_);
  }

 private:
  Index size_;
  R rule_;
  Floats values_, gradient_;
  std::vector<std::unique_ptr<Floats>> memory_;
  std::array<float*, slot_count_v<R>> slots_;
  Sources<float, float> sources_;
  std::int64_t steps_ = 0;
};

/// Wrappers of one replica or one micro-batch against the rule alone.
template <class R>
void compare_alone(Index elements, int rounds_to_run) {
  BareRule<R> bare(elements);
  const auto padded = (elements + 15) / 16 * 16;
  TestVariables for_sync(padded, 1), for_window(padded, 1), for_nested(padded, 1), for_local(padded, 1);
  SyncReplicas<R, InProcess> sync(R{}, for_sync.set(), {});
  Local<GradientAggregation<R>> window({R{}, {.grad_steps = 1}}, for_window.set());
  GradientAggregation<SyncReplicas<R, InProcess>> nested{{R{}, for_nested.set(), {}}, {.grad_steps = 1}};
  Local<R> local(R{}, for_local.set());
  auto sync_replica = sync.join();
  auto nested_replica = nested.join();

  Interleaved rounds;
  rounds.add("bare rule", repeated([&] { bare(); }));
  const auto add = [&](const char* name, TestVariables& variables, auto& replica) {
    variables.write_gradients(replica, 0);
    replica.apply_gradients();
    variables.template expect_updated_once<R>(1, name);
    rounds.add(name, repeated([&, handle = variables.handles()[0]] {
                 (void)replica.gradient(handle);
                 replica.apply_gradients();
               }));
  };
  add("SyncReplicas, N = 1", for_sync, sync_replica);
  add("Local of GradientAggregation, k = 1", for_window, window);
  add("GradientAggregation of SyncReplicas", for_nested, nested_replica);
  add("Local", for_local, local);
  rounds.run(rounds_to_run);
  const std::string name = "sync/alone/" + std::to_string(elements) + "/" + rule_name<R>;
  if (elements > 1000) {
    report(name + "/replica", rounds.ratio("SyncReplicas, N = 1", "bare rule"), "x the time", rounds);
    report(name + "/window", rounds.ratio("Local of GradientAggregation, k = 1", "bare rule"), "x the time");
    report(name + "/nested", rounds.ratio("GradientAggregation of SyncReplicas", "bare rule"), "x the time");
  } else {
    report(name + "/replica", 1e9 * rounds.difference("SyncReplicas, N = 1", "bare rule"), "ns more", rounds);
    report(name + "/window", 1e9 * rounds.difference("Local of GradientAggregation, k = 1", "bare rule"),
           "ns more");
    report(name + "/nested", 1e9 * rounds.difference("GradientAggregation of SyncReplicas", "bare rule"),
           "ns more");
  }
}

void compare_round_trip(int replicas, int steps) {
  SyncStep<Sgd> sync(16, replicas);
  BarrierStep barrier(replicas);
  Interleaved rounds;
  rounds.add("sync", steps_of(sync, steps));
  rounds.add("std::barrier", steps_of(barrier, steps));
  rounds.run(51);
  report("sync/round_trip/" + std::to_string(replicas), rounds.ratio("sync", "std::barrier"), "x the time",
         rounds);
}

void compare() {
  compare_round_trip(2, 1000);
  compare_round_trip(4, 500);
  compare_round_trip(16, 300);
  compare_alone<Sgd>(16, 201);
  compare_alone<Adam>(16, 201);
  compare_alone<Sgd>(1'000'000, 101);
  compare_alone<Adam>(1'000'000, 101);
  compare_variables<Sgd>();
  compare_variables<Adam>();
  compare_large();
  compare_many();
}

template <class Workload>
void add(const std::string& name, double bytes, Index elements, int replicas, Index variables = 1) {
  const std::string arguments = "/elements:" + std::to_string(elements) +
                                "/replicas:" + std::to_string(replicas) +
                                (variables > 1 ? "/variables:" + std::to_string(variables) : "");
  const auto batch = static_cast<int>(std::clamp<Index>(20'000'000 / (elements * replicas), 1, 500));
  register_workload(name + arguments, bytes, batch, [=] {
    if constexpr (std::constructible_from<Workload, Index, int, Index>)
      return std::make_unique<Workload>(elements, replicas, variables);
    else
      return std::make_unique<Workload>(elements, replicas);
  });
}

template <class R>
void register_rule() {
  const std::string& rule = rule_name<R>;
  for (Index elements = 100; elements <= 100'000'000; elements *= 10) {
    add<SyncStep<R>>("sync_replicas/step/in_process/f32/" + rule, floor_bytes<R>(elements, 2), elements, 2);
    add<MutexSumStep<R>>("mutex_sum/step/in_process/f32/" + rule, floor_bytes<R>(elements, 2), elements, 2);
    add<EigenStep<R>>("eigen/step/one_thread/f32/" + rule, floor_bytes<R>(elements, 2), elements, 2);
  }
  add<SyncStep<R>>("sync_replicas/step/in_process/f32/" + rule, floor_bytes<R>(25'000'000, 2), 25'000'000, 2);
  for (const int replicas : {1, 2, 4, 8, 16}) {
    constexpr Index elements = 4'000'000;
    const double bytes = floor_bytes<R>(elements, replicas);
    add<SyncStep<R>>("sync_replicas/by_replicas/in_process/f32/" + rule, bytes, elements, replicas);
    add<MutexSumStep<R>>("mutex_sum/by_replicas/in_process/f32/" + rule, bytes, elements, replicas);
    add<EigenStep<R>>("eigen/by_replicas/one_thread/f32/" + rule, bytes, elements, replicas);
  }
  for (const Index variables : {1, 10, 100, 1'000, 10'000})
    add<SyncStep<R>>("sync_replicas/by_variables/in_process/f32/" + rule, floor_bytes<R>(1'000'000, 2),
                     1'000'000, 2, variables);
}

void register_all() {
  for (const int replicas : {2, 4, 16}) {
    add<SyncStep<Sgd>>("sync_replicas/round_trip/in_process/f32", floor_bytes<Sgd>(16, replicas), 16,
                       replicas);
    register_workload("std_barrier/round_trip/in_process/replicas:" + std::to_string(replicas), 0, 500,
                      [=] { return std::make_unique<BarrierStep>(replicas); });
  }
  for (Index elements = 100; elements <= 100'000'000; elements *= 10)
    register_workload("floor/accumulate/two_threads/f32/elements:" + std::to_string(elements),
                      3.0 * sizeof(float) * static_cast<double>(elements),
                      static_cast<int>(std::clamp<Index>(20'000'000 / elements, 4, 2'000)),
                      [=] { return std::make_unique<Floors>(elements, 2); });
  register_rule<Sgd>();
  register_rule<Adam>();
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, compare, register_all); }
