// SPDX-License-Identifier: MIT
/// @file
/// How a run of a replica ended.
#pragma once

#include <string>

namespace launcher {

/// The time from starting a replica's process to its end is a run; this is how it ended.
struct Ending {
  enum class Kind {
    exited,       ///< by itself
    signaled,     ///< by a signal
    not_started,  ///< the program could not be executed
  };

  Kind kind = Kind::exited;
  int code = 0;  ///< exit status, signal number or errno

  bool is_success() const { return kind == Kind::exited && code == 0; }

  /// What a shell would report: the status, 128 + signal, 127 for a program that is not there, 126 for one
  /// that cannot be executed.
  int exit_status() const;

  friend bool operator==(const Ending&, const Ending&) = default;
};

/// "status 1", "SIGKILL", "not started (No such file or directory)"
std::string to_string(const Ending& ending);

/// "SIGTERM"; "signal 40" for one without a name.
std::string signal_name(int signal);

}  // namespace launcher
