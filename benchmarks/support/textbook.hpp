// SPDX-License-Identifier: MIT
/// @file
/// The code that one would write without lockstep: optimizers in plain Eigen and in plain doubles, and test
/// data.
#pragma once

#include "report.hpp"
#include <lockstep/config.hpp>
#include <lockstep/optimizers/adam.hpp>
#include <lockstep/optimizers/sgd.hpp>

#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <string>

namespace lockstep::bench {

/// In [-1, 1), another sequence for each seed.
inline float pattern(Index i, int seed) {
  const auto mixed =
      static_cast<std::uint32_t>(i) * 2654435761U + static_cast<std::uint32_t>(seed) * 2246822519U;
  return static_cast<float>(mixed >> 16) / 32768.0F - 1.0F;
}
inline void fill_with_pattern(float* to, Index size, int seed) {
  for (Index i = 0; i < size; ++i) to[i] = pattern(i, seed);
}
inline constexpr int k_values_seed =
    -1;  // of the initial variables; gradients have the seed of their replica

/// Optimizer in Eigen arrays, one statement per formula: the mean must be there before it starts.
template <class R>
struct EigenOptimizer;

template <>
struct EigenOptimizer<Sgd> {
  explicit EigenOptimizer(Index size) : values(size) {
    fill_with_pattern(values.data(), size, k_values_seed);
  }
  /// @param mean may be an expression: what is cheap to form needs no array.
  template <class Mean>
  void apply(const Mean& mean) {
    values -= static_cast<float>(Sgd{}.learning_rate(0)) * mean;
  }
  Eigen::ArrayXf values;
};

template <>
struct EigenOptimizer<Adam> {
  explicit EigenOptimizer(Index size)
      : values(size), m(Eigen::ArrayXf::Zero(size)), v(Eigen::ArrayXf::Zero(size)) {
    fill_with_pattern(values.data(), size, k_values_seed);
  }
  template <class Mean>
  void apply(const Mean& mean) {
    ++t;
    m = 0.9F * m + 0.1F * mean;
    v = 0.999F * v + 0.001F * mean.square();
    const double rate = 1e-3 * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t));
    values -= static_cast<float>(rate) * m / (v.sqrt() + 1e-8F);
  }
  Eigen::ArrayXf values, m, v;
  int t = 0;
};

/// The same for one element in double, to check results with.
template <class R>
double element_after(double w, double gradient, int steps) {
  double m = 0, v = 0;
  for (int t = 1; t <= steps; ++t) {
    if constexpr (std::same_as<R, Sgd>) {
      w -= 0.01 * gradient;
    } else {
      static_assert(std::same_as<R, Adam>);
      m += 0.1 * (gradient - m);
      v += 0.001 * (gradient * gradient - v);
      w -= 1e-3 * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t)) * m / (std::sqrt(v) + 1e-8);
    }
  }
  return w;
}

/// Mean over the replicas of the test gradients.
inline double mean_gradient(Index i, int replicas) {
  double sum = 0;
  for (int replica = 0; replica < replicas; ++replica) sum += static_cast<double>(pattern(i, replica));
  return sum / replicas;
}

/// Checks values after `steps` updates with the test data, some 50,000 of them and the last.
template <class R>
void expect_updated(const float* values, Index size, int steps, int replicas, const std::string& who) {
  const Index stride = size / 50'000 + 1;
  const auto check = [&](Index i) {
    expect_close(
        static_cast<double>(values[i]),
        element_after<R>(static_cast<double>(pattern(i, k_values_seed)), mean_gradient(i, replicas), steps),
        who + ", element " + std::to_string(i));
  };
  for (Index i = 0; i < size; i += stride) check(i);
  check(size - 1);
}

/// Bytes that a step must move: contributions are read, variables and slots are read and written.
template <class R>
double floor_bytes(Index elements, int sources) {
  return static_cast<double>(elements) * sizeof(float) *
         (sources + 2.0 * static_cast<double>(1 + slot_count_v<R>));
}

}  // namespace lockstep::bench
