// SPDX-License-Identifier: MIT
/// @file
/// What the user asks for.
#pragma once

#include "shutdown.hpp"

#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace launcher {

struct Options {
  enum class Task { run, show_help, show_version };

  Task task = Task::run;
  int replicas = 0;
  int restart_limit = 0;  ///< restarts of each replica
  bool bind = false;      ///< each replica to one core
  std::string session;    ///< empty: lockstep-run makes up a name
  std::optional<Clock::duration> timeout;
  Clock::duration grace = std::chrono::seconds(10);
  std::vector<std::string> command;  ///< the program and its arguments
};

/// The command line has no meaning; the text is a sentence for the user.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads the arguments that follow the program's name. Options end at "--" or at the first word that is none.
/// @throws UsageError
Options parse(std::span<const std::string> arguments);

/// The text of --help.
const char* help_text();

/// A session name that no other run has: "run-" and 16 random hexadecimal digits.
std::string unique_session_name();

}  // namespace launcher
