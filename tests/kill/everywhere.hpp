// SPDX-License-Identifier: MIT
/// @file
/// Kills a process at each point of an operation, one after the other.
#pragma once

#include "kill/fault_points.hpp"
#include "support/catch.hpp"
#include "support/processes.hpp"
#include <lockstep/transport/shared_memory.hpp>

#include <chrono>
#include <csignal>
#include <iostream>

namespace lockstep::test {

inline SharedMemory net_in(const SessionFolder& folder) {
  return {.name = "kill", .directory = folder.path(), .patience = std::chrono::seconds{10}};
}

/// Kills a process that calls `action()` at its first, second, ... point, until there are no more, and calls
/// `check()` each time. @param prepare gives the object that the process works on, in the process.
template <class Prepare, class Action, class Begin, class Check>
void kill_everywhere(const char* what, Prepare&& prepare, Action&& action, Begin&& begin, Check&& check) {
  int kills = 0;
  bool was_killed = true;
  for (int at = 1; was_killed; ++at) {
    const Shared<FaultLog> log;
    begin();
    Process victim([&] {
      auto subject = prepare();
      arm(*log, at);
      action(subject);
      return 0;
    });
    const int code = victim.wait();
    was_killed = code == 128 + SIGKILL;
    INFO("killed at point " << at << " (" << log->last << ") of " << what);
    CHECK((was_killed || code == 0));
    check();
    kills += was_killed ? 1 : 0;
  }
  std::cout << what << ": killed at " << kills << " points" << std::endl;
  CHECK(kills >= 5);
}

}  // namespace lockstep::test
