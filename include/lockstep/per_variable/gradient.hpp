// SPDX-License-Identifier: MIT
/// @file
/// Gradients one variable at a time: of which kind they are, how a list of them is written, what became of
/// them.
#pragma once

#include <lockstep/accumulators/tensor.hpp>
#include <lockstep/config.hpp>
#include <lockstep/gradients/layout.hpp>

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Which gradients a variable gets. Said once, when a trainer is made.
enum class GradientKind : std::uint8_t {
  dense,   ///< gradients of the variable's shape: a `ConditionalAccumulator`
  sparse,  ///< rows: a `SparseConditionalAccumulator`
  none,    ///< never a gradient: no accumulator, and updates leave the variable alone
};

/// "dense", "sparse" or "none".
constexpr const char* to_string(GradientKind kind) {
  switch (kind) {
    case GradientKind::dense:
      return "dense";
    case GradientKind::sparse:
      return "row-sparse";
    case GradientKind::none:
      return "no";
  }
  return "?";
}

/// The gradient of one variable: absent, dense, or rows. Elements are in the order in which the variable
/// stores them.
template <class T>
using VariableGradient = std::variant<std::monostate, TensorView<const T>, SparseGradient<T>>;

/// A gradient and the name of its variable.
template <class T>
struct NamedGradient {
  std::string_view variable;          ///< its name
  VariableGradient<T> gradient = {};  ///< dense, sparse or nothing
};

namespace detail {

/// A gradient and the number of its variable.
template <class T>
struct NumberedGradient {
  std::uint32_t id;
  VariableGradient<T> gradient = {};
};

/// The same gradients by number. Names are looked for one after the other.
/// @throws UnknownVariable
template <class T>
std::vector<NumberedGradient<T>> by_number(const Layout& layout, std::span<const NamedGradient<T>> named) {
  std::vector<NumberedGradient<T>> result;
  result.reserve(named.size());
  for (const auto& [name, gradient] : named) result.push_back({layout.find(name).id, gradient});
  return result;
}

}  // namespace detail

/// What became of the gradient of one variable.
enum class Pushed : std::uint8_t {
  absent,    ///< there was none, or the variable is frozen
  accepted,  ///< it is in the accumulator
  dropped,   ///< it was stale for this accumulator
};

LOCKSTEP_NAMESPACE_END
