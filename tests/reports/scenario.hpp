// SPDX-License-Identifier: MIT
/// @file
/// What the scenarios share: models of one number, steps, waiting for a fact, looking at what was thrown.
#pragma once

#include "support/catch.hpp"
#include "support/threads.hpp"
#include <lockstep/lockstep.hpp>

#include <Eigen/Core>

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::test {

using namespace std::chrono_literals;

template <class T>
using VectorOf = Eigen::Matrix<T, Eigen::Dynamic, 1>;

/// A model of `size` equal numbers, called "w".
template <class T = double, class G = T>
struct Model {
  Variables<T, G> variables;
  Handle<VectorOf<T>, T> w;

  explicit Model(double initial = 0, Index size = 1)
      : w(variables.add("w", VectorOf<T>::Constant(size, static_cast<T>(initial)))) {}
  /// The first number.
  T value() const { return variables.value(w)[0]; }
};

/// One step with the same gradient for every element.
template <class O, class H>
StepResult step(O& optimizer, const H& w, double gradient, const ApplyOptions& options = {}) {
  optimizer.gradient(w).setConstant(static_cast<typename O::GradientScalar>(gradient));
  return optimizer.apply_gradients(options);
}

/// The exception, if it is an `E`.
template <class E>
std::optional<E> caught(const std::exception_ptr& thrown) {
  if (!thrown) return {};
  try {
    std::rethrow_exception(thrown);
  } catch (const E& error) {
    return error;
  } catch (...) {
    return {};
  }
}

/// What `call()` throws, or null.
template <class Call>
std::exception_ptr thrown_by(Call&& call) {
  try {
    call();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The messages of those that threw, for CHECK(messages(thrown) == "").
inline std::string messages(const std::vector<std::exception_ptr>& thrown) {
  std::string all;
  for (const auto& one : thrown)
    if (one) all += message_of(one) + "\n";
  return all;
}

inline std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }
inline std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

/// Index of a replica number in a vector.
inline std::size_t at(int place) { return static_cast<std::size_t>(place); }

/// Calls `check(name, make)` for the ways to aggregate in one replica; `make(variables)` gives the trainer.
template <class R, class Check>
void with_each_aggregation(const R& rule, const AggregationOptions& options, Check&& check) {
  check("Local<GradientAggregation>", [&](auto& variables) {
    return Local{GradientAggregation<R>{rule, options}, variables};
  });
  check("GradientAggregation<Local>", [&](auto& variables) {
    return GradientAggregation{Local{rule, variables}, options};
  });
  check("SyncReplicas<GradientAggregation>", [&](auto& variables) {
    return SyncReplicas{GradientAggregation<R>{rule, options}, variables, {.replicas_to_aggregate = 1}};
  });
  check("GradientAggregation<SyncReplicas>", [&](auto& variables) {
    return GradientAggregation{SyncReplicas{rule, variables, {.replicas_to_aggregate = 1}}, options};
  });
}

/// Calls `check(name, make)` for both nestings over replicas; `make(variables)` gives the trainer.
template <class R, class Check>
void with_both_nestings(const R& rule, const AggregationOptions& aggregation, const SyncOptions& sync,
                        Check&& check) {
  check("SyncReplicas<GradientAggregation>", [&](auto& variables) {
    return SyncReplicas{GradientAggregation<R>{rule, aggregation}, variables, sync};
  });
  check("GradientAggregation<SyncReplicas>", [&](auto& variables) {
    return GradientAggregation{SyncReplicas{rule, variables, sync}, aggregation};
  });
}

}  // namespace lockstep::test
