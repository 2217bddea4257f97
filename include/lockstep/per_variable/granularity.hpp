// SPDX-License-Identifier: MIT
/// @file
/// The two granularities of synchronous replicas as a policy.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/per_variable/variable_replicas.hpp>
#include <lockstep/sync_replicas.hpp>
#include <lockstep/transport/in_process.hpp>

#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

/// What is aggregated as one thing.
enum class Granularity : std::uint8_t {
  per_step,      ///< all gradients of a replica's step together: `SyncReplicas`, the default
  per_variable,  ///< each variable on its own: `VariableReplicas`, as in TensorFlow
};

namespace detail {

template <Granularity granularity>
struct ReplicasOf {
  template <class R, class Net, class T>
  using type = SyncReplicas<R, Net, T>;
};
template <>
struct ReplicasOf<Granularity::per_variable> {
  template <class R, class Net, class T>
  using type = VariableReplicas<R, Net, T>;
};

}  // namespace detail

/// `SyncReplicas` or `VariableReplicas`, for programs that leave the choice to a constant.
template <Granularity granularity, class R, class Net = InProcess, class T = float>
using ReplicasBy = typename detail::ReplicasOf<granularity>::template type<R, Net, T>;

LOCKSTEP_NAMESPACE_END
