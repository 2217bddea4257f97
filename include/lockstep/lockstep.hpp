// SPDX-License-Identifier: MIT
/// @file
/// Everything of the library except the opt-in headers (tensor/xtensor.hpp, compat/tensorflow.hpp,
/// checkpoint/safetensors.hpp, checkpoint/checkpointer.hpp, observe/chrome_trace.hpp, observe/metrics.hpp).
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/extra_state.hpp>
#include <lockstep/gradient_aggregation.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/observe/observer.hpp>
#include <lockstep/optimizers/local.hpp>
#include <lockstep/optimizers/optimizers.hpp>
#include <lockstep/per_variable/granularity.hpp>
#include <lockstep/sync_replicas.hpp>
#include <lockstep/transport/in_process.hpp>
#include <lockstep/transport/shared_memory.hpp>
