// SPDX-License-Identifier: MIT
/// @file
/// What the state of a session says of its replicas and of the whole.
#include "lockstep-top/look.hpp"
#include "support/catch.hpp"

using lockstep::Departure;
using lockstep::protocol::Ending;
using lockstep::protocol::Round;
using top::Activity;
using top::activity_of;
using top::is_waiting;
using top::Look;

namespace {

constexpr top::Sitter k_alive{.process = 7, .is_alive = true};

/// N = R replicas, of which the first `joined` have joined.
Round round_of(int replicas, int joined, Departure departure = Departure::redistribute) {
  Round round(replicas, replicas, departure, 0);
  for (int i = 0; i < joined; ++i) round.join(i);
  return round;
}

}  // namespace

TEST_CASE("top look: what a replica does follows its contribution", "[tools][top]") {
  Round round = round_of(3, 2);
  CHECK(activity_of(round, 0, k_alive) == Activity::computing);
  CHECK(activity_of(round, 2, {}) == Activity::expected);
  CHECK_FALSE(is_waiting(round, 0));

  round.contribute(0, 0);
  CHECK(activity_of(round, 0, k_alive) == Activity::waiting);
  CHECK(activity_of(round, 1, k_alive) == Activity::computing);
  CHECK(is_waiting(round, 0));
  CHECK_FALSE(is_waiting(round, 1));
  CHECK_FALSE(is_waiting(round, 2));

  round.join(2);
  round.contribute(1, 0);
  round.contribute(2, 0);
  for (int i = 0; i < 3; ++i) {
    CHECK(activity_of(round, i, k_alive) == Activity::updating);
    CHECK_FALSE(is_waiting(round, i));
  }
}

TEST_CASE("top look: a late replica computes while the others update", "[tools][top]") {
  Round round(1, 2, Departure::redistribute, 0);  // one backup replica
  round.join(0);
  round.join(1);
  round.contribute(0, 0);
  CHECK(activity_of(round, 0, k_alive) == Activity::updating);
  CHECK(activity_of(round, 1, k_alive) == Activity::computing);
}

TEST_CASE("top look: what the system knows of a replica comes first", "[tools][top]") {
  Round round = round_of(2, 2);
  round.contribute(0, 0);
  CHECK(activity_of(round, 0, {.process = 7, .is_alive = true, .is_stopped = true}) == Activity::stopped);
  CHECK(activity_of(round, 0, {}) == Activity::lost);
}

TEST_CASE("top look: who has gone", "[tools][top]") {
  Round round = round_of(3, 3);
  round.leave(0);
  round.die(1);
  CHECK(activity_of(round, 0, {}) == Activity::left);
  CHECK(activity_of(round, 1, {}) == Activity::dead);
  CHECK_FALSE(is_waiting(round, 0));
}

TEST_CASE("top look: the condition of the session", "[tools][top]") {
  Look look;
  look.control.round = round_of(3, 1);
  CHECK(condition_of(look) == "training, 2 replica(s) expected");
  look.control.round = round_of(3, 3);
  CHECK(condition_of(look) == "training");
  look.is_in_use = false;
  CHECK(condition_of(look) == "left behind: no process takes part any more");
  look.is_removed = true;
  CHECK(condition_of(look) == "ended");
}

TEST_CASE("top look: why a session does not go on", "[tools][top]") {
  Look look;
  look.control.round = round_of(3, 3, Departure::stop);
  look.control.round.leave(2);
  CHECK(condition_of(look) == "stopped (replica 2)");
  look.control.round = round_of(3, 3);
  for (int i = 0; i < 3; ++i) look.control.round.leave(i);
  CHECK(condition_of(look) == "all have left");
  look.control.round = round_of(3, 3);
  look.control.round.fail(1);
  CHECK(condition_of(look) == "failed (replica 1)");
  look.note = "out of data";
  CHECK(condition_of(look) == "failed (replica 1): out of data");
  look.is_in_use = false;
  CHECK(condition_of(look) == "failed (replica 1): out of data");
}
