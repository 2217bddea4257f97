// SPDX-License-Identifier: MIT
/// @file
/// How a run ended, and whether the replica is started again.
#include "lockstep-run/ending.hpp"

#include "lockstep-run/restart_policy.hpp"
#include "support/catch.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

using launcher::Ending;
using Kind = launcher::Ending::Kind;

TEST_CASE("ending: the exit status is what a shell reports", "[tools][ending]") {
  CHECK(Ending{Kind::exited, 0}.exit_status() == 0);
  CHECK(Ending{Kind::exited, 7}.exit_status() == 7);
  CHECK(Ending{Kind::signaled, SIGKILL}.exit_status() == 137);
  CHECK(Ending{Kind::not_started, ENOENT}.exit_status() == 127);
  CHECK(Ending{Kind::not_started, EACCES}.exit_status() == 126);
}

TEST_CASE("ending: only exit status 0 is a success", "[tools][ending]") {
  CHECK(Ending{Kind::exited, 0}.is_success());
  CHECK_FALSE(Ending{Kind::exited, 1}.is_success());
  CHECK_FALSE(Ending{Kind::signaled, SIGTERM}.is_success());
  CHECK_FALSE(Ending{Kind::not_started, ENOENT}.is_success());
}

TEST_CASE("ending: has a name", "[tools][ending]") {
  CHECK(to_string(Ending{Kind::exited, 3}) == "status 3");
  CHECK(to_string(Ending{Kind::signaled, SIGSEGV}) == "SIGSEGV");
  CHECK(to_string(Ending{Kind::signaled, SIGRTMIN + 3}) == "signal " + std::to_string(SIGRTMIN + 3));
  CHECK(to_string(Ending{Kind::not_started, ENOENT}) ==
        std::string("not started (") + std::strerror(ENOENT) + ")");
}

TEST_CASE("restart_policy: a replica that failed is started again up to the limit", "[tools][restart]") {
  const launcher::RestartPolicy policy{.limit = 2};
  for (const Ending& failure : {Ending{Kind::exited, 1}, Ending{Kind::signaled, SIGKILL}}) {
    CHECK(policy.restarts(failure, 0));
    CHECK(policy.restarts(failure, 1));
    CHECK_FALSE(policy.restarts(failure, 2));
  }
}

TEST_CASE("restart_policy: a success and a missing program are final", "[tools][restart]") {
  const launcher::RestartPolicy policy{.limit = 2};
  CHECK_FALSE(policy.restarts({Kind::exited, 0}, 0));
  CHECK_FALSE(policy.restarts({Kind::not_started, ENOENT}, 0));
}

TEST_CASE("restart_policy: nothing is started again unless it is asked for", "[tools][restart]") {
  CHECK_FALSE(launcher::RestartPolicy{}.restarts({Kind::signaled, SIGKILL}, 0));
}

TEST_CASE("ending: a restart that found no room is tried again, for some time", "[tools][restart]") {
  using launcher::RestartPolicy;
  std::chrono::milliseconds waited{0};
  for (int retries = 0; retries < RestartPolicy::k_retries; ++retries)
    for (const int code : {EAGAIN, ENOMEM}) {
      const auto delay = RestartPolicy::retry_after({Kind::not_started, code}, 1, retries);
      REQUIRE(delay);
      CHECK(delay->count() == 100 << retries);
      if (code == EAGAIN) waited += *delay;
    }
  CHECK(waited == std::chrono::milliseconds(12'700));
  CHECK_FALSE(RestartPolicy::retry_after({Kind::not_started, EAGAIN}, 1, RestartPolicy::k_retries));
  CHECK_FALSE(RestartPolicy::retry_after({Kind::not_started, EAGAIN}, 0, 0));  // the first start
  CHECK_FALSE(RestartPolicy::retry_after({Kind::not_started, ENOENT}, 1, 0));
  CHECK_FALSE(RestartPolicy::retry_after({Kind::exited, EAGAIN}, 1, 0));
  CHECK_FALSE(RestartPolicy::retry_after({Kind::signaled, ENOMEM}, 1, 0));
}
