// SPDX-License-Identifier: MIT
/// @file
/// Data-parallel training by two processes with an all-reduce, as rivals do it: each process has the
/// variables, the gradients are summed between them, and each updates its own.
#pragma once

#include "interleave.hpp"
#include "program.hpp"
#include "shared_replica.hpp"
#include "sync_step.hpp"
#include "textbook.hpp"
#include "two_processes.hpp"

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

namespace lockstep::bench {

/// @tparam Collective has `rank()`, `sum(from, to, size)` over the processes, and `barrier()`.
template <class R, class Collective>
class RankStep {
 public:
  RankStep(Collective& collective, Index elements)
      : collective_(collective), optimizer_(elements), gradient_(elements), sum_(elements) {
    fill_with_pattern(gradient_.data(), elements, collective.rank());
    step();
    expect_updated<R>(optimizer_.values.data(), elements, 1, k_processes, "all-reduce");
  }
  double operator()(int steps) {
    move_to_own_core(collective_.rank());
    collective_.barrier();
    return seconds_of([&] {
             for (int i = 0; i < steps; ++i) step();
           }) /
           steps;
  }

 private:
  void step() {
    collective_.sum(gradient_.data(), sum_.data(), gradient_.size());
    optimizer_.apply(sum_ * (1.0F / k_processes));
  }
  Collective& collective_;
  EigenOptimizer<R> optimizer_;
  Eigen::ArrayXf gradient_, sum_;
};

/// Runs commands of a name and a task, with `rival` or `lockstep`, which trains over shared memory; both
/// processes get the same ones. Keeps the arrays of the last few kinds.
template <class Collective>
class Rank {
 public:
  explicit Rank(Collective& collective)
      : collective_(collective), lockstep_("lockstep-benchmark-of-ranks", collective.rank()) {}

  /// Seconds per step on this process.
  double run(const std::string& command) {
    std::istringstream words(command);
    std::string who;
    words >> who;
    const Task task = Task::from(words);
    if (who == "lockstep") return lockstep_.run(task.rule, task.elements, task.steps);
    auto& step = task.rule == "sgd" ? sgd_ : adam_;
    if (step.elements != task.elements) {
      step.run = nullptr;
      step.run = task.rule == "sgd" ? make<Sgd>(task.elements) : make<Adam>(task.elements);
      step.elements = task.elements;
    }
    return step.run(task.steps);
  }

 private:
  struct Step {
    Index elements = 0;
    std::function<double(int)> run;
  };
  template <class R>
  std::function<double(int)> make(Index elements) {
    return [made = std::make_shared<RankStep<R, Collective>>(collective_, elements)](int steps) {
      return (*made)(steps);
    };
  }
  Collective& collective_;
  SharedReplica lockstep_;
  Step sgd_, adam_;
};

/// Compares an all-reduce with lockstep, and registers it as benchmarks.
/// @param ask has both processes run a command and gives the time of the slower one.
class RankProgram {
 public:
  RankProgram(std::string name, std::function<double(const std::string&)> ask)
      : name_(std::move(name)), ask_(std::move(ask)) {}

  int run(int argc, char** argv) {
    return run_program(
        argc, argv, [this] { compare(); },
        [this] { register_two_processes(name_, [this](const Task& task) { return ask("rival", task); }); });
  }

 private:
  double ask(const std::string& who, const Task& task) { return ask_(who + ' ' + task.text()); }
  Run steps_of(const char* who, const char* rule, Index elements, int steps) {
    return [=, this] { return ask(who, {rule, elements, steps}); };
  }

  void compare() {
    constexpr Index elements = 25'000'000;
    SyncStep<Sgd> sgd(elements, k_processes);
    SyncStep<Adam> adam(elements, k_processes);
    Interleaved rounds;
    rounds.add("sync sgd", bench::steps_of(sgd, 4));
    rounds.add("sync adam", bench::steps_of(adam, 4));
    rounds.add("processes sgd", steps_of("lockstep", "sgd", elements, 4));
    rounds.add("processes adam", steps_of("lockstep", "adam", elements, 4));
    rounds.add(name_ + " sgd", steps_of("rival", "sgd", elements, 1));
    rounds.add(name_ + " adam", steps_of("rival", "adam", elements, 1));
    rounds.run(15);
    report("sync/2x25e6/sgd/" + name_, rounds.ratio(name_ + " sgd", "sync sgd"), "x", rounds);
    report("sync/2x25e6/adam/" + name_, rounds.ratio(name_ + " adam", "sync adam"), "x");
    report("processes/2x25e6/sgd/" + name_, rounds.ratio(name_ + " sgd", "processes sgd"), "x");
    report("processes/2x25e6/adam/" + name_, rounds.ratio(name_ + " adam", "processes adam"), "x");
  }

  std::string name_;
  std::function<double(const std::string&)> ask_;
};

}  // namespace lockstep::bench
