// SPDX-License-Identifier: MIT
/// @file
/// What is sent to the replicas when: signals and time as arguments, no clock.
#include "lockstep-run/shutdown.hpp"

#include "support/catch.hpp"

#include <csignal>

using launcher::Clock;
using launcher::Shutdown;
using namespace std::chrono_literals;

namespace {

constexpr Clock::time_point k_start{1000s};
constexpr Clock::duration k_grace = 10s;

Shutdown make(std::optional<Clock::duration> timeout = {}) { return {k_start, k_grace, timeout}; }

}  // namespace

TEST_CASE("shutdown: signals that ask for no stop are passed on at any time", "[tools][shutdown]") {
  Shutdown shutdown = make();
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
    CHECK(shutdown.on_signal(signal, k_start) == signal);
    CHECK(shutdown.on_signal(signal, k_start) == signal);
  }
  CHECK_FALSE(shutdown.is_stopping());
  shutdown.on_signal(SIGTERM, k_start);
  CHECK(shutdown.on_signal(SIGUSR1, k_start + 5s) == SIGUSR1);
  CHECK_FALSE(shutdown.is_killing());
}

TEST_CASE("shutdown: a stop signal is passed on and asks for a stop", "[tools][shutdown]") {
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGHUP}) {
    Shutdown shutdown = make();
    CHECK(shutdown.on_signal(signal, k_start) == signal);
    CHECK(shutdown.is_stopping());
    CHECK_FALSE(shutdown.is_killing());
  }
}

TEST_CASE("shutdown: a second stop signal kills", "[tools][shutdown]") {
  for (const int second : {SIGINT, SIGTERM, SIGQUIT}) {
    Shutdown shutdown = make();
    shutdown.on_signal(SIGINT, k_start);
    CHECK(shutdown.on_signal(second, k_start + Shutdown::k_same_request) == SIGKILL);
    CHECK(shutdown.is_killing());
  }
}

TEST_CASE("shutdown: the same signal at the same moment is one request", "[tools][shutdown]") {
  Shutdown shutdown = make();
  shutdown.on_signal(SIGTERM, k_start);
  CHECK(shutdown.on_signal(SIGTERM, k_start + Shutdown::k_same_request / 2) == 0);
  CHECK(shutdown.on_signal(SIGINT, k_start + Shutdown::k_same_request / 2) == SIGINT);
  CHECK_FALSE(shutdown.is_killing());
}

TEST_CASE("shutdown: a hangup never kills", "[tools][shutdown]") {
  Shutdown shutdown = make();
  shutdown.on_signal(SIGHUP, k_start);
  CHECK(shutdown.on_signal(SIGHUP, k_start + 5s) == 0);
  CHECK_FALSE(shutdown.is_killing());
  Shutdown interrupted = make();
  interrupted.on_signal(SIGINT, k_start);
  CHECK(interrupted.on_signal(SIGHUP, k_start + 5s) == SIGHUP);
  CHECK_FALSE(interrupted.is_killing());
}

TEST_CASE("shutdown: kills once when the grace period is over", "[tools][shutdown]") {
  Shutdown shutdown = make();
  CHECK_FALSE(shutdown.next_deadline());
  CHECK(shutdown.on_time(k_start + 24h) == 0);
  const Clock::time_point asked = k_start + 25h;
  shutdown.on_signal(SIGTERM, asked);
  CHECK(shutdown.next_deadline() == asked + k_grace);
  CHECK(shutdown.on_time(asked + k_grace - 1ns) == 0);
  CHECK(shutdown.on_time(asked + k_grace) == SIGKILL);
  CHECK(shutdown.on_time(asked + k_grace + 1s) == 0);
  CHECK_FALSE(shutdown.next_deadline());
}

TEST_CASE("shutdown: a time limit asks by TERM, then kills", "[tools][shutdown]") {
  Shutdown shutdown = make(60s);
  CHECK(shutdown.next_deadline() == k_start + 60s);
  CHECK(shutdown.on_time(k_start + 60s - 1ns) == 0);
  CHECK_FALSE(shutdown.has_timed_out());
  CHECK(shutdown.on_time(k_start + 60s) == SIGTERM);
  CHECK(shutdown.has_timed_out());
  CHECK(shutdown.is_stopping());
  CHECK(shutdown.next_deadline() == k_start + 60s + k_grace);
  CHECK(shutdown.on_time(k_start + 60s + k_grace) == SIGKILL);
}

TEST_CASE("shutdown: a time limit means nothing once a stop was asked for", "[tools][shutdown]") {
  Shutdown shutdown = make(60s);
  shutdown.on_signal(SIGINT, k_start + 59s);
  CHECK(shutdown.on_time(k_start + 61s) == 0);
  CHECK_FALSE(shutdown.has_timed_out());
}

TEST_CASE("shutdown: a request from inside counts as the first", "[tools][shutdown]") {
  Shutdown shutdown = make();
  CHECK(shutdown.request_stop(k_start) == SIGTERM);
  CHECK(shutdown.request_stop(k_start + 1s) == 0);
  CHECK(shutdown.next_deadline() == k_start + k_grace);
  CHECK(shutdown.on_signal(SIGINT, k_start + 2s) == SIGKILL);
}
