// SPDX-License-Identifier: MIT
/// @file
/// Rates and shares between two looks, and who is the slowest.
#include "lockstep-top/meter.hpp"
#include "support/catch.hpp"

#include <vector>

using lockstep::Departure;
using lockstep::protocol::Round;
using top::Look;
using top::Meter;
using top::Rates;
using namespace std::chrono_literals;

namespace {

Look look_at(const Round& round, lockstep::Clock::duration time = {}, std::int64_t updates = 0) {
  Look look;
  look.time = lockstep::Clock::time_point(100s + time);
  look.control.round = round;
  look.control.updater.window.updates = updates;
  return look;
}

/// @param aggregate R. All N have joined.
Round round_of(int aggregate, int replicas) {
  Round round(aggregate, replicas, Departure::redistribute, 0);
  for (int i = 0; i < replicas; ++i) round.join(i);
  return round;
}

/// Contributions come in this order; full rounds are committed.
void play(Round& round, const std::vector<int>& order) {
  for (const int place : order) {
    round.observe(place);
    round.contribute(place, 0);
    if (round.phase != lockstep::protocol::Phase::closed) continue;
    round.start_update();
    round.commit(true, false);
  }
}

}  // namespace

TEST_CASE("top meter: updates per second", "[tools][top]") {
  const Round round = round_of(2, 2);
  const Meter meter(look_at(round, 0s, 10));
  CHECK(meter.rates(look_at(round, 500ms, 30)).updates_per_second == 40);
  CHECK(meter.rates(look_at(round, 500ms, 4)).updates_per_second == 0);  // restored
  CHECK(meter.rates(look_at(round, 0s, 30)).updates_per_second == 0);
}

TEST_CASE("top meter: the share of samples in which a replica waits", "[tools][top]") {
  Round round = round_of(2, 2);
  Meter meter(look_at(round));
  meter.sample(round);
  round.contribute(0, 0);
  for (int i = 0; i < 3; ++i) meter.sample(round);
  const Rates rates = meter.rates(look_at(round, 1s));
  CHECK(rates.replicas.at(0).waiting == 0.75);
  CHECK(rates.replicas.at(1).waiting == 0);
}

TEST_CASE("top meter: without samples and rounds all shares are zero", "[tools][top]") {
  const Round round = round_of(2, 2);
  const Rates rates = Meter(look_at(round)).rates(look_at(round));
  CHECK(rates.rounds == 0);
  CHECK(rates.slowest == -1);
  for (const Rates::OfReplica& replica : rates.replicas) {
    CHECK(replica.waiting == 0);
    CHECK(replica.last == 0);
  }
}

TEST_CASE("top meter: in lock-step the slowest is last in most rounds", "[tools][top]") {
  Round round = round_of(3, 3);
  play(round, {0, 1, 2, 0, 1, 2});  // before the interval
  const Meter meter(look_at(round));
  play(round, {0, 2, 1, 2, 0, 1, 1, 2, 0, 0, 2, 1});
  const Rates rates = meter.rates(look_at(round, 1s));
  CHECK(rates.rounds == 4);
  CHECK(rates.replicas.at(0).last == 0.25);
  CHECK(rates.replicas.at(1).last == 0.75);
  CHECK(rates.replicas.at(2).last == 0);
  CHECK(rates.slowest == 1);
}

TEST_CASE("top meter: nobody is the slowest where two are alike, or one is alone", "[tools][top]") {
  Round round = round_of(2, 2);
  const Meter meter(look_at(round));
  play(round, {0, 1, 1, 0});
  CHECK(meter.rates(look_at(round, 1s)).slowest == -1);

  Round alone = round_of(1, 1);
  const Meter of_one(look_at(alone));
  play(alone, {0, 0});
  CHECK(of_one.rates(look_at(alone, 1s)).slowest == -1);
}

TEST_CASE("top meter: with backup replicas the slowest contributes least", "[tools][top]") {
  Round round = round_of(2, 3);
  const Meter meter(look_at(round));
  play(round, {0, 1, 1, 0, 2, 1, 0, 1});  // 1 is last in three of four rounds, and fast
  CHECK(meter.rates(look_at(round, 1s)).slowest == 2);
}

TEST_CASE("top meter: while no round ends the slowest is who waits least", "[tools][top]") {
  Round round = round_of(3, 3);
  Meter meter(look_at(round));
  round.contribute(0, 0);
  round.contribute(2, 0);
  meter.sample(round);
  CHECK(meter.rates(look_at(round, 1s)).slowest == 1);
}

TEST_CASE("top meter: who has left is not the slowest", "[tools][top]") {
  Round round = round_of(3, 3);
  const Meter meter(look_at(round));
  play(round, {0, 1, 2, 0, 1, 2, 0, 2, 1});
  round.leave(2);
  CHECK(meter.rates(look_at(round, 1s)).slowest == 1);
}
