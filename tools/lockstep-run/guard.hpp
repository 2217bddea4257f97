// SPDX-License-Identifier: MIT
/// @file
/// Cleans up after a lockstep-run that was killed.
#pragma once

#include "file_descriptor.hpp"

#include <sys/types.h>

namespace launcher {

/// A process that waits for the end of lockstep-run and then kills the process groups that are left. The
/// death signal of a replica (see child.hpp) does not reach the processes that the replica has started; this
/// does.
///
/// It is told about groups through a pipe, which closes when lockstep-run ends, however that happens. It is
/// in a session of its own, so that no signal from a terminal or to a group ends it before.
class Guard {
 public:
  /// @throws std::system_error
  Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard();  ///< Closes the pipe and waits for the end of the guard.

  pid_t pid() const { return pid_; }

  /// Kill this group at the end. Callable in a forked child. (Writing to a guard that has died is no error.)
  void watch(pid_t group) const { tell(group); }

  /// Do not: the group has no living process any more.
  void forget(pid_t group) const { tell(-group); }

 private:
  void tell(pid_t message) const;

  FileDescriptor pipe_;  // write end
  pid_t pid_ = 0;
};

}  // namespace launcher
