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

#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

namespace lockstep::bench {

inline constexpr int k_ranks = 2;

/// @tparam Collective has `rank()`, `sum(from, to, size)` over the processes, and `barrier()`.
template <class R, class Collective>
class RankStep {
 public:
  RankStep(Collective& collective, Index elements)
      : collective_(collective), optimizer_(elements), gradient_(elements), sum_(elements) {
    fill_with_pattern(gradient_.data(), elements, collective.rank());
    step();
    expect_updated<R>(optimizer_.values.data(), elements, 1, k_ranks, "all-reduce");
  }
  double operator()(int steps) {
    collective_.barrier();
    return seconds_of([&] {
             for (int i = 0; i < steps; ++i) step();
           }) /
           steps;
  }

 private:
  void step() {
    collective_.sum(gradient_.data(), sum_.data(), gradient_.size());
    optimizer_.apply(sum_ * (1.0F / k_ranks));
  }
  Collective& collective_;
  EigenOptimizer<R> optimizer_;
  Eigen::ArrayXf gradient_, sum_;
};

/// Runs commands "WHO RULE ELEMENTS STEPS", with `rival` or `lockstep`, which trains over shared memory; both
/// processes get the same ones. Keeps the arrays of the last few kinds.
template <class Collective>
class Rank {
 public:
  explicit Rank(Collective& collective)
      : collective_(collective), lockstep_("lockstep-benchmark-of-ranks", collective.rank()) {}

  /// Seconds per step on this process.
  double run(const std::string& command) {
    std::istringstream words(command);
    std::string who, rule;
    Index elements = 0;
    int steps = 0;
    words >> who >> rule >> elements >> steps;
    if (who == "lockstep") return lockstep_.run(rule, elements, steps);
    auto& step = rule == "sgd" ? sgd_ : adam_;
    if (step.elements != elements) {
      step.run = nullptr;
      step.run = rule == "sgd" ? make<Sgd>(elements) : make<Adam>(elements);
      step.elements = elements;
    }
    return step.run(steps);
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
        argc, argv, [this] { compare(); }, [this] { register_all(); });
  }

 private:
  Run steps_of(const char* who, const char* rule, Index elements, int steps) {
    return [=, this] { return ask_(command(who, rule, elements, steps)); };
  }
  static std::string command(const char* who, const char* rule, Index elements, int steps) {
    return std::string(who) + ' ' + rule + ' ' + std::to_string(elements) + ' ' + std::to_string(steps);
  }

  void compare() {
    constexpr Index elements = 25'000'000;
    SyncStep<Sgd> sgd(elements, k_ranks);
    SyncStep<Adam> adam(elements, k_ranks);
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

  void register_all() {
    for (const char* rule : {"sgd", "adam"})
      for (Index elements = 100; elements <= 100'000'000; elements *= 10) {
        const double bytes = std::string(rule) == "sgd" ? floor_bytes<Sgd>(elements, k_ranks)
                                                        : floor_bytes<Adam>(elements, k_ranks);
        const auto batch = static_cast<int>(std::clamp<Index>(5'000'000 / elements, 1, 500));
        register_workload(name_ + "/step/two_processes/f32/" + rule +
                              "/elements:" + std::to_string(elements) + "/replicas:2",
                          bytes, batch, [=, this] {
                            return std::make_unique<std::function<double(int)>>([=, this](int steps) {
                              return ask_(command("rival", rule, elements, steps));
                            });
                          });
      }
  }

  std::string name_;
  std::function<double(const std::string&)> ask_;
};

}  // namespace lockstep::bench
