// SPDX-License-Identifier: MIT
/// @file
/// The exit status and the table at the end.
#include "lockstep-run/summary.hpp"

#include "support/catch.hpp"

#include <cerrno>
#include <csignal>

using launcher::Clock;
using launcher::Ending;
using launcher::ReplicaRecord;
using Kind = launcher::Ending::Kind;
using namespace std::chrono_literals;

namespace {

constexpr Clock::time_point k_start{1000s};

ReplicaRecord record(std::vector<Ending> endings, Clock::duration lasted) {
  return {.endings = std::move(endings), .first_start = k_start, .last_end = k_start + lasted};
}

}  // namespace

TEST_CASE("summary: the exit status is 0 if all replicas ended with 0", "[tools][summary]") {
  CHECK(launcher::exit_status({}, false) == 0);
  const std::vector<ReplicaRecord> replicas{record({{Kind::exited, 0}}, 1s),
                                            record({{Kind::signaled, SIGKILL}, {Kind::exited, 0}}, 2s)};
  CHECK(launcher::exit_status(replicas, false) == 0);
}

TEST_CASE("summary: the exit status is that of the first failure in time", "[tools][summary]") {
  const std::vector<ReplicaRecord> replicas{record({{Kind::exited, 3}}, 5s), record({{Kind::exited, 0}}, 1s),
                                            record({{Kind::exited, 9}, {Kind::signaled, SIGABRT}}, 2s),
                                            record({{Kind::exited, 4}}, 3s)};
  CHECK(launcher::exit_status(replicas, false) == 128 + SIGABRT);
}

TEST_CASE("summary: failures at the same time count in the order of replicas", "[tools][summary]") {
  const std::vector<ReplicaRecord> replicas{record({{Kind::exited, 6}}, 1s), record({{Kind::exited, 5}}, 1s)};
  CHECK(launcher::exit_status(replicas, false) == 6);
}

TEST_CASE("summary: the time limit has a status of its own", "[tools][summary]") {
  const std::vector<ReplicaRecord> replicas{record({{Kind::signaled, SIGTERM}}, 1s)};
  CHECK(launcher::exit_status(replicas, true) == 124);
}

TEST_CASE("summary: equal endings in a row are counted", "[tools][summary]") {
  const Ending killed{Kind::signaled, SIGKILL}, one{Kind::exited, 1}, good{Kind::exited, 0};
  CHECK(launcher::describe({}) == "not started");
  CHECK(launcher::describe(std::vector{good}) == "status 0");
  CHECK(launcher::describe(std::vector{killed, killed, one, killed, good}) ==
        "SIGKILL x 2, status 1, SIGKILL, status 0");
}

TEST_CASE("summary: has a line for each replica", "[tools][summary]") {
  const std::vector<ReplicaRecord> replicas{record({{Kind::signaled, SIGKILL}, {Kind::exited, 0}}, 1500ms),
                                            ReplicaRecord{}};
  CHECK(launcher::summary_lines(replicas) ==
        std::vector<std::string>{"replica  runs    seconds  ended with",
                                 "      0     2      1.500  SIGKILL, status 0",
                                 "      1     0      0.000  not started"});
}
