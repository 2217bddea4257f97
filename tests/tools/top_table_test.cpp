// SPDX-License-Identifier: MIT
/// @file
/// What lockstep-top prints.
#include "lockstep-top/table.hpp"
#include "support/catch.hpp"

#include <string>
#include <vector>

using Lines = std::vector<std::string>;
using lockstep::Departure;
using top::Look;
using top::Rates;

namespace {

/// Two of three replicas have joined, replica 1 waits.
Look example() {
  Look look;
  look.control.updater.window.global_step = 41;
  look.control.round = {3, 3, Departure::wait, 0};
  lockstep::protocol::Round& round = look.control.round;
  round.join(0);
  round.join(1);
  round.contribute(1, 0);
  round.places[0].counters = {.accepted = 1234567, .stale = 1, .not_needed = 2, .skipped = 3};
  round.places[0].local_step = 40;
  round.places[1].local_step = 41;
  look.sitters = {{.process = 4194304, .is_alive = true}, {.is_alive = true}, {}};
  look.rule = "sgd";
  return look;
}

std::string joined(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

Rates rates_of_example() {
  return {.updates_per_second = 12.34, .rounds = 8, .replicas = {{0, 1}, {0.456, 0}, {}}, .slowest = 0};
}

}  // namespace

TEST_CASE("top table: a session", "[tools][top]") {
  CHECK(joined(view_lines("demo", example(), rates_of_example())) ==
        R"(session demo: training, 1 replica(s) expected
2 of 3 replicas, R = 3, departure wait, rule sgd
step 41, 12.3 updates/s, 1 of 3 contributions

replica  process incarnation      step  state     waiting  last  accepted   stale not needed  skipped
      0  4194304           1        40  computing      0%  100%   1234567       1          2        3  < slowest
      1        -           1        41  waiting       46%    0%         1       0          0        0
      2        -           0         0  expected       0%    0%         0       0          0        0
)");
}

TEST_CASE("top table: an open window", "[tools][top]") {
  Look look = example();
  look.control.updater.window.pending = 3;
  CHECK(view_lines("demo", look, rates_of_example()).at(2) ==
        "step 41, 12.3 updates/s, 1 of 3 contributions, 3 pending in the window");
}

TEST_CASE("top table: the list of sessions", "[tools][top]") {
  CHECK(top::list_lines(
            {entry_of("demo", example()), {"a-longer-name", "-", "-", "it is no segment of lockstep"}}) ==
        Lines{"session          replicas      step  state",
              "demo               2 of 3        41  training, 1 replica(s) expected",
              "a-longer-name           -         -  it is no segment of lockstep"});
}

TEST_CASE("top table: what does not fit on the screen", "[tools][top]") {
  const Lines lines{"one", "two", "three", "four"};
  CHECK(top::fitted(lines, 0, 0) == lines);
  CHECK(top::fitted(lines, 4, 5) == lines);
  CHECK(top::fitted(lines, 3, 0) == Lines{"one", "two", "... and 2 more"});
  CHECK(top::fitted(lines, 4, 3) == Lines{"one", "two", "thr", "fou"});
}

TEST_CASE("top table: what others wrote gives no orders to the terminal", "[tools][top]") {
  CHECK(top::printable("a b~ \xC3\xA4 \xE2\x82\xAC") == "a b~ \xC3\xA4 \xE2\x82\xAC");
  CHECK(top::printable("\x1b[31m\x07\n\x7f") == "?[31m???");
  CHECK(top::printable(std::string("\xC2\x9B") + "31m \xC2\xA0") == "\xC2?31m \xC2\xA0");
  CHECK(top::printable({}).empty());
}
