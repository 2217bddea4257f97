// SPDX-License-Identifier: MIT
/// @file
/// Looks at one session again and again.
#pragma once

#include "look.hpp"
#include "meter.hpp"
#include "session_file.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <sys/types.h>
#include <vector>

namespace top {

class Watcher {
 public:
  /// @throws Unreadable
  explicit Watcher(const std::string& path) : file_(path), last_(look()) {}

  /// The last look.
  const Look& last() const { return last_; }
  /// Takes samples for that time, or until the session ends, and another look. @throws Unreadable
  Rates watch(std::chrono::milliseconds interval);

 private:
  Look look();
  /// Searches all processes only when replicas have come that were not there before.
  void find_processes(const lockstep::protocol::Round& round);

  SessionFile file_;
  std::vector<pid_t> processes_;
  std::vector<std::uint32_t> incarnations_;  // whose processes these are
  Look last_;
};

/// A look at a session, without its replicas. @throws Unreadable
Look glance(const SessionFile& file);

/// Names of the sessions in a directory, in order: of all files that are called as those of sessions are.
/// @throws Unreadable if the directory cannot be read
std::vector<std::string> session_names(const std::string& directory);

/// The file of a session.
std::string path_of(const std::string& directory, const std::string& session);

}  // namespace top
