// SPDX-License-Identifier: MIT
/// @file
/// Which engine a `VariableReplicas` trainer has: by whether its replicas may be processes that die.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/per_variable/engine.hpp>
#include <lockstep/per_variable/shared_engine.hpp>

#include <type_traits>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Both have the same functions.
template <class R, class Net, class T>
using variable_engine_t =
    std::conditional_t<Net::k_survives_kill, SharedVariableEngine<R, Net, T>, VariableEngine<R, Net, T>>;

}  // namespace detail

LOCKSTEP_NAMESPACE_END
