// SPDX-License-Identifier: MIT
/// @file
/// What the user asks for.
#pragma once

#include <chrono>
#include <span>
#include <stdexcept>
#include <string>

namespace top {

struct Options {
  enum class Task { show, show_help, show_version };

  Task task = Task::show;
  std::string session;                       ///< empty: list those that exist
  std::string directory = "/dev/shm";        ///< as `SharedMemory::directory`
  bool once = false;                         ///< print one view and end
  std::chrono::milliseconds interval{1000};  ///< that rates and shares are of
};

/// The command line has no meaning; the text is a sentence for the user.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads the arguments that follow the program's name. @throws UsageError
Options parse(std::span<const std::string> arguments);

/// The text of --help.
const char* help_text();

}  // namespace top
