// SPDX-License-Identifier: MIT
/// @file
/// Processes below this one that no replica's group holds any more.
#pragma once

#include <set>
#include <sys/types.h>

namespace launcher {

/// From now on, processes below this one whose parent dies become its children, and not those of init.
void adopt_orphans();

/// The children of this process, with those that have ended and were not waited for.
std::set<pid_t> children();

/// Kills and reaps all children but those in `spared`, and what they leave, until there are none.
void kill_children(const std::set<pid_t>& spared);

}  // namespace launcher
