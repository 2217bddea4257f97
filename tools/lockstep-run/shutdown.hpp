// SPDX-License-Identifier: MIT
/// @file
/// How a run is ended before its replicas end by themselves.
#pragma once

#include <chrono>
#include <optional>

namespace launcher {

using Clock = std::chrono::steady_clock;

/// Decides what is sent to the replicas when signals arrive and time goes by: first what was asked for, then
/// SIGKILL. Knows no processes; the time is an argument.
class Shutdown {
 public:
  /// A stop signal that comes again within this time is the same request: timeout(1), for one, sends it to
  /// lockstep-run and to its group.
  static constexpr std::chrono::milliseconds k_same_request{500};

  /// @param grace from the first stop request to SIGKILL
  /// @param timeout from `start` to a stop request; none: never
  Shutdown(Clock::time_point start, Clock::duration grace, std::optional<Clock::duration> timeout);

  /// INT, TERM, QUIT and HUP ask for a stop; other signals are only passed on.
  static bool is_stop_signal(int signal);

  /// lockstep-run has received `signal`. Returns what to send to the replicas; 0: nothing. Later than
  /// `k_same_request` after the first stop request, a further INT, TERM or QUIT becomes KILL. (A hangup does
  /// not: a closing terminal may send several.)
  int on_signal(int signal, Clock::time_point now);

  /// Asks for a stop by SIGTERM. Returns what to send; 0 if a stop was asked for before.
  int request_stop(Clock::time_point now);

  /// Time has gone by. Returns what to send to the replicas; 0: nothing.
  int on_time(Clock::time_point now);

  /// When `on_time` should be called, if no signal comes first.
  std::optional<Clock::time_point> next_deadline() const;

  bool is_stopping() const { return stop_signal_ != 0; }  ///< nothing is started any more
  bool is_killing() const { return is_killing_; }         ///< SIGKILL was sent
  bool has_timed_out() const { return has_timed_out_; }

 private:
  int begin(int signal, Clock::time_point now);

  Clock::duration grace_;
  std::optional<Clock::time_point> timeout_;
  int stop_signal_ = 0;  // the first that asked for a stop
  Clock::time_point stop_requested_{};
  bool is_killing_ = false;
  bool has_timed_out_ = false;
};

}  // namespace launcher
