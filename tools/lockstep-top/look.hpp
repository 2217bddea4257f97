// SPDX-License-Identifier: MIT
/// @file
/// A session at one moment, and what can be said of it.
#pragma once

#include <lockstep/sync/control.hpp>
#include <lockstep/transport/wait.hpp>

#include <string>
#include <sys/types.h>
#include <vector>

namespace top {

/// What the system knows of the replica at a place.
struct Sitter {
  pid_t process = 0;        ///< 0: not known
  bool is_alive = false;    ///< it holds the place
  bool is_stopped = false;  ///< by SIGSTOP or a debugger
};

/// A session at one moment.
struct Look {
  lockstep::Clock::time_point time;
  lockstep::detail::Control control;
  std::vector<Sitter> sitters;  ///< by place
  bool is_in_use = true;        ///< a process takes part
  bool is_removed = false;      ///< its file has no name any more
  std::string rule;             ///< its name, as the session describes it
  std::string note;             ///< why training has failed

  const lockstep::protocol::Round& round() const { return control.round; }
};

/// What a replica does, as the state of the rounds has it.
enum class Activity {
  expected,   ///< nobody has sat down yet
  computing,  ///< the open round waits for it, or it is late
  waiting,    ///< its contribution is in
  updating,   ///< the update is being written
  stopped,    ///< by SIGSTOP or a debugger
  lost,       ///< it has died, and nobody has noticed yet
  left,       ///< in the ordinary way
  dead,       ///< it has died, and the others know
};

Activity activity_of(const lockstep::protocol::Round& round, int place, const Sitter& sitter);

/// Its contribution is in, and the round still waits for others.
bool is_waiting(const lockstep::protocol::Round& round, int place);

const char* to_string(Activity activity);

/// One phrase on the session as a whole, such as "training" or "failed: ...".
std::string condition_of(const Look& look);

}  // namespace top
