// SPDX-License-Identifier: MIT
/// @file
/// The cores that replicas may be pinned to.
#pragma once

#include <vector>

namespace launcher {

/// Numbers of the cores (logical processors) that this process may run on, ascending.
/// @throws std::system_error
std::vector<int> allowed_cores();

/// Pins this process to one core. Returns false and sets errno if the system refuses.
bool pin_to_core(int core);

}  // namespace launcher
