// SPDX-License-Identifier: MIT
/// @file
/// Signals as events that can be polled for.
#pragma once

#include "file_descriptor.hpp"

#include <csignal>
#include <optional>

namespace launcher {

/// From its construction on, signals for the replicas and SIGCHLD are read from a descriptor. Signals that
/// were ignored before stay so, as after nohup(1). Writing to a pipe without a reader is an error, not a
/// signal.
class Signals {
 public:
  /// @throws std::system_error
  Signals();

  int descriptor() const { return descriptor_.number(); }

  /// The next signal that has arrived, if there is one.
  std::optional<int> next();

  /// In a forked child: brings back what was before, for the program that it is going to execute. SIGCHLD is
  /// not ignored any more.
  void restore() const;

 private:
  sigset_t mask_before_{};
  struct sigaction pipe_before_ {};
  FileDescriptor descriptor_;
};

}  // namespace launcher
