// SPDX-License-Identifier: MIT
// A step of synchronous replicas in one process: large, many, small, and alone; beside its floors, plain
// Eigen, a running sum under a mutex, and std::barrier.
#include "support/floors.hpp"
#include "support/program.hpp"
#include "support/sync_step.hpp"
#include <lockstep/gradient_aggregation.hpp>
#include <lockstep/optimizers/fused_update.hpp>
#include <lockstep/optimizers/local.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

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

/// Two replicas, 30,000 parameters: a few items, which who waits must help with before it falls asleep.
template <class R>
void compare_middle() {
  constexpr Index elements = 30'000;
  SyncStep<R> sync(elements, 2);
  EigenStep<R> eigen(elements, 2);
  Interleaved rounds;
  rounds.add("sync", steps_of(sync, 300));
  rounds.add("eigen", steps_of(eigen, 300));
  rounds.run(51);
  report("sync/2x30000/" + rule_name<R> + "/eigen", rounds.ratio("eigen", "sync"), "x", rounds);
}

/// What a step with SGD has to do, as one Eigen expression over plain arrays: two threads, each in a half of
/// its own.
template <std::size_t replicas>
class PlainLoop {
 public:
  explicit PlainLoop(Index elements) : size_(elements), arrays_(Index{replicas + 1} * elements) {
    (*this)(1);
    for (Index i = 0; i < size_; i += size_ / 5'000 + 1)
      expect_close(static_cast<double>(arrays_.data()[i]), 0, "plain loop");
  }
  double operator()(int steps) {
    return seconds_in_parallel(2,
                               [&](int thread) {
                                 for (int step = 0; step < steps; ++step) {
                                   pass(size_ / 2 * thread, size_ / 2, std::make_index_sequence<replicas>());
                                   clobber();
                                 }
                               }) /
           steps;
  }

 private:
  template <std::size_t... k>
  void pass(Index begin, Index size, std::index_sequence<k...>) {
    const auto part = [&](std::size_t array) {
      return Eigen::Map<Eigen::ArrayXf>(arrays_.data() + static_cast<Index>(array) * size_ + begin, size);
    };
    part(0) -= (1.0F / replicas) * (... + part(k + 1));
  }

  Index size_;
  Floats arrays_;  // values and gradients, one after the other; all ones at first
};

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
  PlainLoop<8> plain(elements);
  rounds.add("plain loop", steps_of(plain, 5));
  rounds.run(15);
  report("sync/8x10e6/sgd/roofline", floors.roofline(rounds, "sync sgd", floor_bytes<Sgd>(elements, 8)),
         "of peak", rounds);
  report("sync/8x10e6/adam/roofline", floors.roofline(rounds, "sync adam", floor_bytes<Adam>(elements, 8)),
         "of peak");
  report("sync/8x10e6/sgd/plain_loop", rounds.ratio("sync sgd", "plain loop"), "x the time of a plain loop");
  // What a step reads is as much as `reading` does, and 11/9 of it.
  report("sync/8x10e6/sgd/reading", rounds.ratio("sync sgd", "reading"), "x the time of reading as much");
  report("sync/8x10e6/adam/reading", rounds.ratio("sync adam", "reading") * 9 / 11,
         "x the time of reading as much");
}

/// More replicas than a processor can follow the gradients of at once.
void compare_sixteen() {
  constexpr Index elements = 4'000'000;
  SyncStep<Sgd> sync(elements, 16);
  PlainLoop<16> plain(elements);
  Interleaved rounds;
  rounds.add("sync", steps_of(sync, 5));
  rounds.add("plain loop", steps_of(plain, 5));
  rounds.run(15);
  report("sync/16x4e6/sgd/plain_loop", rounds.ratio("sync", "plain loop"), "x the time of a plain loop",
         rounds);
}

/// Many small variables against one large one, which is what their contents are.
template <class R>
void compare_variables() {
  constexpr Index elements = 1'000'000, variables = 10'000;
  SyncStep<R> one(elements, 2), each(elements, 2, variables), padded(1'120'000, 2);
  SyncStep<R, InProcess, Marks::at_once> all(elements, 2, variables);
  TestVariables untrained(elements, variables);
  Local<R> alone(R{}, untrained.set());
  Interleaved rounds;
  rounds.add("1 variable", steps_of(one, 20));
  rounds.add("10,000 variables", steps_of(all, 20));
  rounds.add("10,000 variables one by one", steps_of(each, 20));
  rounds.add("1 variable of the padded size", steps_of(padded, 20));
  rounds.add("10,000 calls of gradient()", repeated([&] { untrained.mark_gradients(alone); }));
  rounds.run(51);
  const std::string name = "sync/10000_variables/" + rule_name<R>;
  report(name, rounds.ratio("10,000 variables", "1 variable"), "x the time", rounds);
  report(name + "/one_by_one", rounds.ratio("10,000 variables one by one", "1 variable"), "x the time");
  report(name + "/padded", rounds.ratio("1 variable of the padded size", "1 variable"), "x the time");
}

/// The rule on plain arrays with one gradient, as somebody would call it who has no optimizer. They are those
/// of a trainer, because where arrays lie in memory makes more of a difference than a trainer does.
template <class R>
class BareRule {
 public:
  /// @param replica after its first step.
  template <class Replica>
  BareRule(Replica& replica, const TestVariables::Handle& handle) {
    values_ = const_cast<float*>(replica.value(handle).data());
    size_ = replica.value(handle).size();
    for (std::size_t k = 0; k < slot_count_v<R>; ++k)
      slots_[k] = const_cast<float*>(replica.slot(R::slots[k].name, handle).data());
    sources_.add(replica.gradient(handle).data(), 1);
  }
  void operator()() {
    const auto step = prepare_step(rule_, StepInfo{.step = steps_, .schedule = steps_});
    update_elements(rule_, step, values_, slots_, sources_, 0, size_);
    ++steps_;
  }

 private:
  Index size_;
  R rule_;
  float* values_;
  std::array<float*, slot_count_v<R>> slots_;
  Sources<float, float> sources_;
  std::int64_t steps_ = 1;  // that the trainer has made
};

/// A wrapper of one replica or one micro-batch against the rule alone on the same arrays, which take turns
/// after each call of a large one: what else is in the caches changes all the time.
template <class R, class Replica>
void compare_with_rule(const std::string& kind, TestVariables& variables, Replica& replica, Index elements) {
  const auto handle = variables.handles()[0];
  variables.write_gradients(replica, 0);
  replica.apply_gradients();
  variables.expect_updated<R>(1, 1, kind);
  BareRule<R> bare(replica, handle);
  bare();
  variables.expect_updated<R>(1, 2, "the rule after " + kind);

  const bool large = elements > 1000;
  const double round_seconds = large ? 0.0001 : 0.0005;
  Interleaved rounds;
  rounds.add("rule", repeated([&] { bare(); }, round_seconds));
  rounds.add("wrapper", repeated(
                            [&] {
                              (void)replica.gradient(handle);
                              replica.apply_gradients();
                            },
                            round_seconds));
  rounds.run(large ? 1001 : 201);
  const std::string name = "sync/alone/" + std::to_string(elements) + "/" + rule_name<R> + "/" + kind;
  if (large)
    report(name, rounds.ratio("wrapper", "rule"), "x the time", rounds);
  else
    report(name, 1e9 * rounds.difference("wrapper", "rule"), "ns more", rounds);
}

template <class R>
void compare_alone(Index elements) {
  const auto padded = (elements + 15) / 16 * 16;
  TestVariables for_sync(padded, 1), for_window(padded, 1), for_nested(padded, 1);
  SyncReplicas<R, InProcess> sync(R{}, for_sync.set(), {});
  Local<GradientAggregation<R>> window({R{}, {.grad_steps = 1}}, for_window.set());
  GradientAggregation<SyncReplicas<R, InProcess>> nested{{R{}, for_nested.set(), {}}, {.grad_steps = 1}};
  auto sync_replica = sync.join();
  auto nested_replica = nested.join();
  compare_with_rule<R>("replica", for_sync, sync_replica, elements);
  compare_with_rule<R>("window", for_window, window, elements);
  compare_with_rule<R>("nested", for_nested, nested_replica, elements);
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

/// Whole runs of two replicas, with the start and the end of their threads, which `run()` spreads.
void compare_short_runs(Index elements, int steps) {
  SyncStep<Sgd> trainer(elements, 2);
  Interleaved rounds;
  rounds.add("run()", [&] { return trainer.seconds_of_run(steps); });
  rounds.add("threads of the program", [&] { return trainer.seconds_of_own_threads(steps); });
  rounds.run(51);
  report("sync/short_run/" + std::to_string(elements), rounds.ratio("threads of the program", "run()"),
         "x the time of run()", rounds);
}

void compare() {
  compare_short_runs(16, 3'000);
  compare_short_runs(100'000, 500);
  compare_round_trip(2, 1000);
  compare_round_trip(4, 500);
  compare_round_trip(16, 300);
  compare_alone<Sgd>(16);
  compare_alone<Adam>(16);
  compare_alone<Sgd>(1'000'000);
  compare_alone<Adam>(1'000'000);
  compare_middle<Sgd>();
  compare_middle<Adam>();
  compare_variables<Sgd>();
  compare_variables<Adam>();
  compare_large();
  compare_many();
  compare_sixteen();
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
  for (const Index variables : {1, 10, 100, 1'000, 10'000}) {
    const double bytes = floor_bytes<R>(1'000'000, 2);
    add<SyncStep<R>>("sync_replicas/by_variables/in_process/f32/" + rule, bytes, 1'000'000, 2, variables);
    add<SyncStep<R, InProcess, Marks::at_once>>("sync_replicas/at_once_by_variables/in_process/f32/" + rule,
                                                bytes, 1'000'000, 2, variables);
  }
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
