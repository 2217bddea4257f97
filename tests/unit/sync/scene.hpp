// SPDX-License-Identifier: MIT
/// @file
/// What tests of replicas share: a small model, one step, looking at what was thrown.
#pragma once

#include "support/catch.hpp"
#include "support/threads.hpp"
#include <lockstep/lockstep.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <atomic>
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

/// A vector "w" that starts at zero; by Sgd{1} it shows the negated sum of all updates.
template <class T = double, class G = T>
struct Net {
  explicit Net(Index size = 1) : w(variables.add("w", VectorOf<T>::Zero(size))) {}
  T value(Index i = 0) const { return variables.value(w)[i]; }
  Variables<T, G> variables;
  Handle<VectorOf<T>, T> w;
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

/// As an index of a container.
constexpr std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace lockstep::test
