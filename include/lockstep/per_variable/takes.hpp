// SPDX-License-Identifier: MIT
/// @file
/// One accumulator per variable, and the requests that a chief makes to all of them.
#pragma once

#include <lockstep/accumulators/conditional_accumulator.hpp>
#include <lockstep/accumulators/sparse_conditional_accumulator.hpp>
#include <lockstep/accumulators/tensor.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/layout.hpp>
#include <lockstep/per_variable/gradient.hpp>
#include <lockstep/reduction.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <stop_token>
#include <utility>
#include <variant>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// The accumulator of one variable, dense or sparse; none for a variable without gradient.
/// A sparse one is declared without a shape, as TensorFlow does; who pushes has checked the rows.
template <class T, class Net>
class VariableAccumulator {
 public:
  using Dense = ConditionalAccumulator<T, Net>;
  using Sparse = SparseConditionalAccumulator<T, Net>;

  VariableAccumulator(GradientKind kind, const VariableInfo& info, Reduction reduction, const Net& net) {
    if (kind == GradientKind::dense)
      dense_ = std::make_unique<Dense>(AccumulatorOptions{.shape = info.shape, .reduction = reduction}, net);
    if (kind == GradientKind::sparse)
      sparse_ = std::make_unique<Sparse>(AccumulatorOptions{.shape = Shape{}, .reduction = reduction}, net);
  }

  GradientKind kind() const {
    return dense_ ? GradientKind::dense : sparse_ ? GradientKind::sparse : GradientKind::none;
  }
  bool exists() const { return dense_ || sparse_; }
  Index num_accumulated() const {
    return visit([](const auto& accumulator) { return accumulator.num_accumulated(); });
  }
  Index step() const {
    return visit([](const auto& accumulator) { return accumulator.step(); });
  }
  /// True if the step went backwards.
  bool set_global_step(Index step) {
    return visit([&](auto& accumulator) { return accumulator.set_global_step(step); });
  }
  Dense& dense() { return *dense_; }
  Sparse& sparse() { return *sparse_; }

 private:
  template <class F>
  auto visit(F&& f) const {
    return dense_ ? f(*dense_) : f(*sparse_);
  }

  std::unique_ptr<Dense> dense_;
  std::unique_ptr<Sparse> sparse_;
};

/// A request for the aggregate of one variable, and the aggregate once it is there.
template <class T, class Net>
class VariableTake {
 public:
  using Accumulator = VariableAccumulator<T, Net>;

  void begin(Accumulator& accumulator, Index num_required) {
    if (is_begun()) return;
    if (accumulator.kind() == GradientKind::dense)
      taker_ = accumulator.dense().begin_take(num_required);
    else
      taker_ = accumulator.sparse().begin_take(num_required);
  }
  bool is_begun() const { return taker_.index() != 0 || result_.index() != 0; }
  bool is_served() const {
    if (result_.index() != 0) return true;
    if (const auto* dense = std::get_if<DenseTaker>(&taker_)) return dense->ready();
    if (const auto* sparse = std::get_if<SparseTaker>(&taker_)) return sparse->ready();
    return false;
  }
  /// Waits for the aggregate and keeps it. @throws TimeoutError: the request stands; Cancelled: it is gone.
  void collect(Timeout timeout, const std::stop_token& stop) {
    if (result_.index() != 0) return;
    try {
      if (auto* dense = std::get_if<DenseTaker>(&taker_)) result_ = dense->get(timeout, stop);
      if (auto* sparse = std::get_if<SparseTaker>(&taker_)) result_ = sparse->get(timeout, stop);
    } catch (const Cancelled&) {
      taker_ = std::monostate{};
      throw;
    }
    taker_ = std::monostate{};
  }
  /// Leaves the line; an aggregate that was served is lost.
  void abort() {
    taker_ = std::monostate{};
    result_ = std::monostate{};
  }
  const Tensor<T>* dense() const { return std::get_if<Tensor<T>>(&result_); }
  const SparseTensor<T>* sparse() const { return std::get_if<SparseTensor<T>>(&result_); }

 private:
  using DenseTaker = typename Accumulator::Dense::Taker;
  using SparseTaker = typename Accumulator::Sparse::Taker;
  std::variant<std::monostate, DenseTaker, SparseTaker> taker_;
  std::variant<std::monostate, Tensor<T>, SparseTensor<T>> result_;
};

/// The requests to all accumulators that one update needs, in the order of the variables. Used by one thread
/// at a time.
template <class T, class Net>
class VariableTakes {
 public:
  using Accumulators = std::vector<VariableAccumulator<T, Net>>;

  explicit VariableTakes(Accumulators& accumulators)
      : accumulators_(accumulators), takes_(accumulators.size()) {}

  /// Gets in line at every accumulator where no request stands yet.
  void begin(Index num_required) {
    for (std::size_t id = 0; id < takes_.size(); ++id)
      if (accumulators_[id].exists()) takes_[id].begin(accumulators_[id], num_required);
  }
  bool is_begun() const {
    return std::any_of(takes_.begin(), takes_.end(), [](const auto& take) { return take.is_begun(); });
  }
  bool is_served(std::uint32_t id) const { return takes_[id].is_served(); }
  bool all_served() const {
    for (std::uint32_t id = 0; id < takes_.size(); ++id)
      if (accumulators_[id].exists() && !is_served(id)) return false;
    return true;
  }
  void collect(const Deadline& deadline, const std::stop_token& stop) {
    for (std::size_t id = 0; id < takes_.size(); ++id) {
      if (!accumulators_[id].exists()) continue;
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.end() - Clock::now());
      takes_[id].collect(std::max(left, std::chrono::nanoseconds(1)), stop);
    }
  }
  void abort() {
    for (auto& take : takes_) take.abort();
  }
  const VariableTake<T, Net>& operator[](std::uint32_t id) const { return takes_[id]; }

 private:
  Accumulators& accumulators_;
  std::vector<VariableTake<T, Net>> takes_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
