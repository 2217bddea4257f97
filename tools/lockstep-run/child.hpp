// SPDX-License-Identifier: MIT
/// @file
/// The process of a replica.
#pragma once

#include "file_descriptor.hpp"
#include "guard.hpp"
#include "signals.hpp"

#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace launcher {

/// What to start, and how.
struct Launch {
  std::vector<std::string> command;                              ///< program and arguments
  std::vector<std::pair<std::string, std::string>> environment;  ///< added to that of lockstep-run
  std::optional<int> core;                                       ///< pin to it
};

/// A process that was started. It leads a process group, whose number is `pid`, in the session of
/// lockstep-run. Its standard input is empty. If lockstep-run dies, it gets SIGKILL.
struct Child {
  pid_t pid = 0;
  FileDescriptor out, err;  ///< what it writes to its standard output and error; reading does not block
};

/// Starts a process and returns when it executes the program. The guard watches its group.
/// @throws std::system_error with the reason if the program cannot be executed; no process is left then.
Child start(const Launch& launch, const Guard& guard, const Signals& signals);

}  // namespace launcher
