// SPDX-License-Identifier: MIT
/// @file
/// The search itself, on models whose states can be counted by hand.
#include "explorer/explore.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace lockstep::test;

/// A number that can be doubled or increased up to `most`; forbidden values, dead ends and edges back can be
/// put in.
struct Numbers {
  using State = int;
  using Event = char;
  using Key = Bits<1>;
  static constexpr std::string_view k_can_go_on = "goes on";

  int most = 8;
  int forbidden = -1;
  int dead_end = -1;
  int goes_back = -1;

  State initial() const { return 1; }
  Key key(State n) const {
    Key bits;
    bits.put(n, 8);
    return bits;
  }
  bool is_bound(State n) const { return n == most; }
  void events(State n, std::vector<Event>& list) const {
    if (n == dead_end) return;
    if (n == goes_back) list.push_back('<');
    list.push_back('+');
    if (2 * n <= most) list.push_back('*');
  }
  State after(State n, Event event) const {
    const int next = event == '+' ? n + 1 : event == '*' ? 2 * n : n - 2;
    expect(next != forbidden, "allowed", "it is the forbidden one");
    return next;
  }
  Role role(State, Event event, State) const { return event == '*' ? Role::disturbance : Role::progress; }
  void check_stuck(State n) const { expect(n == 3, k_can_go_on, "it does not"); }
  std::string text(Event event) const { return {event}; }
};

}  // namespace

TEST_CASE("explore: visits every state once and every transition", "[explorer]") {
  Numbers model;
  const Exploration result = Explorer<Numbers>(model).run();
  CHECK(result.violated.empty());
  CHECK(result.states == 8);        // 1 to 8
  CHECK(result.transitions == 11);  // an increment from 1 to 7 each, a doubling from 1 to 4
}

TEST_CASE("explore: names the broken invariant and the shortest way to it", "[explorer]") {
  Numbers model{.most = 20, .forbidden = 9};
  const Exploration result = Explorer<Numbers>(model).run();
  CHECK(result.violated == "allowed");
  CHECK(result.report == "allowed: it is the forbidden one; after:\n  +\n  *\n  *\n  +");
}

TEST_CASE("explore: finds a state where nothing goes on", "[explorer]") {
  Numbers allowed{.dead_end = 3};
  CHECK(Explorer<Numbers>(allowed).run().violated.empty());
  Numbers stuck{.dead_end = 5};
  const Exploration result = Explorer<Numbers>(stuck).run();
  CHECK(result.violated == "goes on");
  CHECK(result.report == "goes on: it does not; after:\n  +\n  *\n  +");
}

TEST_CASE("explore: finds states that come again and again", "[explorer]") {
  Numbers model{.goes_back = 6};
  CHECK(Explorer<Numbers>(model).run().violated == "goes on");
}

TEST_CASE("explore: keys tell states apart and refuse what does not fit", "[explorer]") {
  Bits<2> a, b;
  for (const unsigned width : {60U, 8U, 12U}) {
    a.put((std::int64_t{1} << width) - 1, width);
    b.put((std::int64_t{1} << width) - 1, width);
  }
  CHECK(a == b);
  CHECK(a.hash() == b.hash());
  a.put(1, 1);
  b.put(0, 1);
  CHECK_FALSE(a == b);
  CHECK_THROWS_AS(a.put(4, 2), std::logic_error);
  CHECK_THROWS_AS(a.put(-1, 2), std::logic_error);
  CHECK_THROWS_AS(a.put(0, 60), std::logic_error);
}
