// SPDX-License-Identifier: MIT
/// @file
/// Starts replicas and looks after them until all have ended.
#pragma once

#include "child.hpp"
#include "command_line.hpp"
#include "ended_file.hpp"
#include "guard.hpp"
#include "line_splitter.hpp"
#include "output_queue.hpp"
#include "restart_policy.hpp"
#include "shutdown.hpp"
#include "signals.hpp"
#include "summary.hpp"

#include <list>
#include <optional>
#include <poll.h>
#include <set>
#include <string>
#include <system_error>
#include <vector>

namespace launcher {

/// One run of lockstep-run, on one thread: all that happens is an event of poll(2).
class Supervisor {
 public:
  /// @throws std::system_error
  explicit Supervisor(const Options& options);

  /// Returns the exit status, when no process is left that this run has started.
  int run();

 private:
  struct Replica {
    ReplicaRecord record;
    pid_t pid = 0;                 // of the process that was started, while it lives
    pid_t group = 0;               // its process group, while a process of it may live
    bool is_to_start = true;       // for the first time or again
    Clock::time_point start_at{};  // not before
    int retries = 0;               // of the start that is to come
  };

  /// One of the two streams of a run. It may outlive the run: whoever has inherited it may still write.
  struct Stream {
    std::size_t replica = 0;
    std::string prefix;  // of its lines
    int target = 0;      // descriptor of lockstep-run's stream
    FileDescriptor source;
    LineSplitter lines;
  };

  void start_replicas();
  void start_replica(std::size_t i);
  void could_not_start(std::size_t i, const std::system_error& error);
  void wait_for_events();
  int poll_timeout() const;  // milliseconds; -1: none

  void handle_signals();
  void handle_signal(int signal);
  void handle_time();
  void send(int signal);
  void reap();
  void before_reaping(std::size_t i);
  void after_reaping(std::size_t i, const Ending& ending);
  void forget_empty_groups();
  void kill_group(Replica& replica);

  enum class Reading { again, nothing_there, ended };
  Reading read_some(Stream& stream);
  void drain(Stream& stream);
  void write_output();
  void flush_output();
  void say(const std::string& sentence);
  void finish();

  bool has_ended() const;
  bool is_anyone_lingering() const;

  const Options& options_;
  std::string session_;
  EndedFile ended_file_;
  std::vector<int> cores_;
  Signals signals_;
  std::set<pid_t> children_before_;  // lockstep-run may have been executed by a shell that had some
  std::optional<Guard> guard_;
  Shutdown shutdown_;
  RestartPolicy restart_policy_;
  std::vector<Replica> replicas_;
  std::list<Stream> streams_;
  OutputQueue output_;
};

}  // namespace launcher
