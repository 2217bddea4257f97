// SPDX-License-Identifier: MIT
/// @file
/// Steps of synchronous replicas, by lockstep and, in one process, by what one would write without it.
#pragma once

#include "parallel.hpp"
#include "textbook.hpp"
#include <lockstep/gradients/variables.hpp>
#include <lockstep/sync_replicas.hpp>

#include <barrier>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::bench {

/// `variables` variables of equal size with the test data, `elements` floats in all.
class TestVariables {
 public:
  using Handle = lockstep::Handle<Eigen::VectorXf, float>;

  TestVariables(Index elements, Index variables) : size_(elements / variables) {
    for (Index k = 0; k < variables; ++k)
      handles_.push_back(
          set_.add("variable " + std::to_string(k), Eigen::VectorXf::NullaryExpr(size_, [&](Eigen::Index i) {
                     return pattern(k * size_ + i, k_values_seed);
                   })));
  }
  Variables<float>& set() { return set_; }
  const std::vector<Handle>& handles() const { return handles_; }

  /// Writes the test gradients of a replica; later steps find them in the same place.
  template <class Replica>
  void write_gradients(Replica& replica, int seed) const {
    for (std::size_t k = 0; k < handles_.size(); ++k) {
      auto gradient = replica.gradient(handles_[k]);
      for (Index i = 0; i < size_; ++i) gradient(i) = pattern(static_cast<Index>(k) * size_ + i, seed);
    }
  }
  /// Says that the gradients are there, of one variable after the other.
  template <class Replica>
  void mark_gradients(Replica& replica) const {
    for (const Handle& handle : handles_) (void)replica.gradient(handle);
  }
  template <class R>
  void expect_updated(int replicas, int steps, const std::string& who) const {
    for (std::size_t k = 0; k < handles_.size(); ++k) {
      const auto values = set_.value(handles_[k]);
      for (Index i = 0; i < size_; i += size_ / 5'000 + 1) {
        const Index element = static_cast<Index>(k) * size_ + i;
        expect_close(static_cast<double>(values(i)),
                     element_after<R>(static_cast<double>(pattern(element, k_values_seed)),
                                      mean_gradient(element, replicas), steps),
                     who + ", element " + std::to_string(element));
      }
    }
  }

 private:
  Index size_;
  Variables<float> set_;
  std::vector<Handle> handles_;
};

/// How a replica says that its gradients are there.
enum class Marks { one_by_one, at_once };

/// Replicas contribute what lies in their slots and update together; callable with a number of steps.
template <class R, class Net = InProcess, Marks marks = Marks::one_by_one>
class SyncStep {
 public:
  /// @param here how many of the replicas are threads of this process; 0 for all. If some are not, nobody
  /// makes a step while others are between two runs.
  SyncStep(Index elements, int replicas, Index variables = 1, const Net& net = {}, int here = 0)
      : here_(here == 0 ? replicas : here),
        variables_(elements, variables),
        trainer_(R{}, variables_.set(),
                 {.replicas_to_aggregate = replicas,
                  .departure = here_ == replicas ? Departure::redistribute : Departure::wait},
                 net) {
    trainer_.run([&](auto& replica) {
      variables_.write_gradients(replica, replica.index());
      replica.apply_gradients();
      if (replica.index() == 0 || here_ == 1)  // as long as it is here nobody can make another step
        variables_.template expect_updated<R>(replicas, 1, "sync step");
    });
  }

  double operator()(int steps) {
    Stopwatches watches(here_);
    trainer_.run([&](auto& replica) {
      const int mine = replica.index() % here_;
      step(replica);  // brings all together
      watches.start(mine);
      train(replica, steps);
      watches.stop(mine);
    });
    return watches.seconds() / steps;
  }

  /// Of so many steps, with the start and the end of the threads.
  double seconds_of_run(int steps) {
    return seconds_of([&] { trainer_.run([&](auto& replica) { train(replica, steps); }); });
  }
  /// The same by threads of the program, which begin where the system puts them.
  double seconds_of_own_threads(int steps) {
    trainer_.start_over();
    return seconds_of([&] {
      const auto loop = [&] {
        auto replica = trainer_.join();
        train(replica, steps);
      };
      std::vector<std::jthread> others;
      for (int i = 1; i < here_; ++i) others.emplace_back(loop);
      loop();
    });
  }

 private:
  template <class Replica>
  void train(Replica& replica, int steps) {
    for (int i = 0; i < steps; ++i) step(replica);
  }
  template <class Replica>
  void step(Replica& replica) {
    if constexpr (marks == Marks::at_once)
      (void)replica.gradients();
    else
      variables_.mark_gradients(replica);
    replica.apply_gradients();
  }
  int here_;
  TestVariables variables_;
  SyncReplicas<R, Net> trainer_;
};

/// As TensorFlow's accumulator does it: whoever has a gradient adds it to a running sum under a mutex; the
/// last one turns the sum into the mean and applies it.
template <class R>
class MutexSumStep {
 public:
  MutexSumStep(Index elements, int replicas) : optimizer_(elements), sum_(elements) {
    for (int k = 0; k < replicas; ++k) {
      gradients_.emplace_back(elements);
      fill_with_pattern(gradients_.back().data(), elements, k);
    }
    (*this)(0);
    expect_updated<R>(optimizer_.values.data(), elements, 1, replicas, "mutex-guarded sum");
  }
  double operator()(int steps) {
    const auto replicas = static_cast<int>(gradients_.size());
    Stopwatches watches(replicas);
    seconds_in_parallel(replicas, [&](int replica) {
      contribute(replica);
      watches.start(replica);
      for (int i = 0; i < steps; ++i) contribute(replica);
      watches.stop(replica);
    });
    return watches.seconds() / std::max(steps, 1);
  }

 private:
  void contribute(int replica) {
    const Eigen::ArrayXf& gradient = gradients_[static_cast<std::size_t>(replica)];
    std::unique_lock lock(mutex_);
    if (count_ == 0)
      sum_ = gradient;
    else
      sum_ += gradient;
    if (++count_ == gradients_.size()) {
      optimizer_.apply(sum_ * (1 / static_cast<float>(count_)));
      count_ = 0;
      ++step_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [this, step = step_] { return step_ != step; });
    }
  }

  EigenOptimizer<R> optimizer_;
  Eigen::ArrayXf sum_;
  std::vector<Eigen::ArrayXf> gradients_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
  std::int64_t step_ = 0;
};

/// One thread, plain Eigen: the mean is written out, then the optimizer runs.
template <class R>
class EigenStep {
 public:
  EigenStep(Index elements, int replicas) : optimizer_(elements), mean_(elements) {
    for (int k = 0; k < replicas; ++k) {
      gradients_.emplace_back(elements);
      fill_with_pattern(gradients_.back().data(), elements, k);
    }
    (*this)(1);
    expect_updated<R>(optimizer_.values.data(), elements, 1, replicas, "textbook Eigen");
  }
  double operator()(int steps) {
    return seconds_of([&] {
             for (int i = 0; i < steps; ++i) step();
           }) /
           steps;
  }

 private:
  void step() {
    mean_ = gradients_[0];
    for (std::size_t k = 1; k < gradients_.size(); ++k) mean_ += gradients_[k];
    mean_ /= static_cast<float>(gradients_.size());
    optimizer_.apply(mean_);
  }
  EigenOptimizer<R> optimizer_;
  Eigen::ArrayXf mean_;
  std::vector<Eigen::ArrayXf> gradients_;
};

/// Threads that do nothing but meet: the floor of a small step.
class BarrierStep {
 public:
  explicit BarrierStep(int threads) : threads_(threads), barrier_(threads) {}
  double operator()(int steps) {
    return seconds_in_parallel(threads_,
                               [&](int) {
                                 for (int i = 0; i < steps; ++i) barrier_.arrive_and_wait();
                               }) /
           steps;
  }

 private:
  int threads_;
  std::barrier<> barrier_;
};

/// A round of `Interleaved` with this many operations of a workload.
template <class Workload>
Run steps_of(Workload& workload, int steps) {
  return [&workload, steps] { return workload(steps); };
}

}  // namespace lockstep::bench
