// SPDX-License-Identifier: MIT
/// @file
/// The line of fixed capacity.
#include "support/catch.hpp"
#include <lockstep/protocol/fifo.hpp>

#include <deque>
#include <random>

using Line = lockstep::protocol::Fifo<int, 3>;

static_assert(std::is_trivially_copyable_v<Line>);

TEST_CASE("fifo: is full at its capacity and empty after as many pops", "[protocol][fifo]") {
  Line line;
  CHECK(line.is_empty());
  for (int value : {1, 2, 3}) line.push(value);
  CHECK(line.is_full());
  CHECK(line.front() == 1);
  CHECK(line.back() == 3);
  for (int value : {1, 2, 3}) {
    CHECK(line.front() == value);
    line.pop();
  }
  CHECK(line.is_empty());
}

TEST_CASE("fifo: equality looks at the order of values, not at where they lie", "[protocol][fifo]") {
  Line a, b;
  a.push(0);
  a.pop();
  for (int value : {1, 2, 3}) {
    a.push(value);
    b.push(value);
  }
  CHECK(a == b);
  b.pop();
  CHECK_FALSE(a == b);
}

TEST_CASE("fifo: random pushes, pops and erasures agree with a deque", "[protocol][fifo][property]") {
  std::mt19937 random(7);
  lockstep::protocol::Fifo<int, 5> line;
  std::deque<int> model;
  int disagreements = 0;
  for (int i = 0; i < 5000; ++i) {
    const unsigned choice = random() % 4;
    if (choice < 2 && !line.is_full()) {
      line.push(i);
      model.push_back(i);
    } else if (choice == 2 && !line.is_empty()) {
      line.pop();
      model.pop_front();
    } else if (choice == 3 && !line.is_empty()) {
      const std::size_t at = random() % model.size();
      line.erase(at);
      model.erase(model.begin() + static_cast<std::ptrdiff_t>(at));
    }
    if (line.size() != model.size()) ++disagreements;
    for (std::size_t at = 0; at < model.size(); ++at)
      if (line[at] != model[at]) ++disagreements;
  }
  CHECK(disagreements == 0);
}
