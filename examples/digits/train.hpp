// SPDX-License-Identifier: MIT
/// @file
/// The training itself: one loop for every optimizer, and the trainers that run it.
#pragma once

#include "data.hpp"
#include "model.hpp"
#include "options.hpp"
#include "plot.hpp"
#include "progress.hpp"
#include <lockstep/lockstep.hpp>
#include <lockstep/observe/chrome_trace.hpp>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

namespace digits {

namespace ls = lockstep;

/// One training, as its replicas see it.
struct Job {
  const Options& options;
  const Digits& data;
  const Network& network;
  std::optional<std::uint64_t> jitter;  // seed of random sleeps, to disturb the timing
  Progress* progress = nullptr;         // of replica 0
  Curve* curve = nullptr;               // of replica 0
  ls::ChromeTrace* trace = nullptr;     // of all
  std::atomic<std::int64_t> dropped = 0;
  std::vector<ls::ReplicaStats> stats = {};  // at the end
  std::atomic<int> index = 0;                // of the last replica that has joined
};

/// An observer of one's own: hands on what replicas do, if the user of the program has asked for it.
struct Watch {
  void on(const ls::Span& span) const noexcept {
    if (trace) trace->on(span);
  }
  void on(const ls::StepEnd& step) const noexcept {
    if (trace) trace->on(step);
  }
  ls::ChromeTrace* trace;
};

/// This process was not started again after an earlier one of its replica had died.
inline bool is_first_life() {
  const char* const restarts = std::getenv("LOCKSTEP_RESTART");
  return !restarts || std::strcmp(restarts, "0") == 0;
}

/// The loop of a replica, the same for every optimizer.
template <ls::Optimizer Replica>
void train(Replica& replica, Job& job) {
  Batches batches(job.data.train, job.options.batch, job.options.seed);
  std::mt19937_64 random(job.jitter.value_or(0) + static_cast<std::uint64_t>(replica.index()));
  double loss = std::log(10.0);  // smoothed
  while (replica.global_step() < job.options.steps) {
    // The sequence moves on only when a gradient was taken, so no batch is used twice and none is lost.
    const std::int64_t number = replica.sequence() * job.options.replicas + replica.index();
    loss += 0.1 * (job.network.backward(batches(number), replica) - loss);
    if (job.jitter && random() % 4 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));

    const bool dies = job.options.die_at > 0 && replica.global_step() >= job.options.die_at;
    if (dies && replica.index() == 1 && is_first_life()) std::raise(SIGKILL);

    const ls::StepResult result = replica.apply_gradients();
    if (result.status == ls::Status::stale || result.status == ls::Status::not_needed) ++job.dropped;
    if (replica.index() == 0 && job.progress && job.progress->is_due(result.global_step))
      job.progress->report(result.global_step, loss, job.network.accuracy(job.data.test, replica),
                           job.dropped);
    if (replica.index() == 0 && job.curve && job.curve->is_due(result.global_step))
      job.curve->add({result.global_step, loss, job.network.accuracy(job.data.test, replica)});
  }
}

/// Runs a trainer of any form, and reads what it counted about its replicas.
template <class T>
void run(T&& trainer, Job& job) {
  trainer.run([&](auto& replica) {
    job.index = replica.index();
    train(replica, job);
  });
  const auto read = [&](const auto& counts) {
    for (int i = 0; i < job.options.replicas; ++i) job.stats.push_back(counts.stats(i));
  };
  if constexpr (requires { trainer.stats(0); })
    read(trainer);
  else if constexpr (requires { trainer.inner.stats(0); })
    read(trainer.inner);
}

/// Trains with a rule in the form that the options ask for.
template <class Rule>
void train_with(const Rule& rule, ls::Variables<Real>& variables, Job& job) {
  const Options& options = job.options;
  const ls::SyncOptions sync{
      .replicas_to_aggregate = options.contributions(),
      .total_num_replicas = options.replicas,
      // A killed process is started again, and goes on where it was.
      .departure = options.is_in_processes() ? ls::Departure::wait : ls::Departure::redistribute};
  const ls::AggregationOptions window{.grad_steps = options.grad_steps};
  const bool has_window = options.grad_steps > 1;
  const Watch watch{job.trace};
  if (options.is_local() && !has_window)
    run(ls::Local{rule, variables}, job);
  else if (options.is_local())
    run(ls::Local{ls::GradientAggregation{rule, window}, variables}, job);
  else if (options.is_in_processes() && !has_window)
    run(ls::SyncReplicas{rule, variables, sync, ls::SharedMemory{.name = options.session}}, job);
  else if (options.is_in_processes())
    run(
        ls::GradientAggregation{
            ls::SyncReplicas{rule, variables, sync, ls::SharedMemory{.name = options.session}}, window},
        job);
  else if (!has_window)
    run(ls::SyncReplicas{rule, variables, sync, ls::InProcess{}, watch}, job);
  else if (options.exchange == "window")
    run(ls::GradientAggregation{ls::SyncReplicas{rule, variables, sync, ls::InProcess{}, watch}, window},
        job);
  else
    run(ls::SyncReplicas{ls::GradientAggregation{rule, window}, variables, sync, ls::InProcess{}, watch},
        job);
}

// One object file for each of these, because every rule in every form takes a while to compile.
extern template void train_with(const ls::Sgd&, ls::Variables<Real>&, Job&);
extern template void train_with(const ls::Momentum&, ls::Variables<Real>&, Job&);
extern template void train_with(const ls::Adam&, ls::Variables<Real>&, Job&);
extern template void train_with(const ls::AdamW&, ls::Variables<Real>&, Job&);
extern template void train_with(const ls::Lamb&, ls::Variables<Real>&, Job&);

}  // namespace digits
