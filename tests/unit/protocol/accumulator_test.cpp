// SPDX-License-Identifier: MIT
/// @file
/// The accumulator's state machine against its table of transitions and against a plain model of
/// TensorFlow's.
#include "support/catch.hpp"
#include <lockstep/protocol/accumulator.hpp>

#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <type_traits>
#include <vector>

namespace ls = lockstep;
using ls::Index;
using Machine = ls::protocol::Accumulator<4>;
using ls::protocol::Admission;
using ls::protocol::Push;
using ls::protocol::Ticket;

static_assert(std::is_trivially_copyable_v<Machine>);

namespace {

constexpr bool runs_at_compile_time() {
  Machine machine;
  const auto taker = machine.begin_take(2);
  machine.on_apply(0);
  if (machine.serve()) return false;
  machine.on_apply(5);
  const auto served = machine.serve();
  return served && served->ticket == taker.ticket && served->count == 2 && machine.step() == 1 &&
         machine.count() == 0;
}
static_assert(runs_at_compile_time());

/// The reference: unbounded line in which cancelled takers stay as tombstones, and every event tries to
/// serve.
struct TombstoneModel {
  struct Entry {
    Ticket ticket;
    Index num_required;
    bool cancelled = false;
  };
  std::deque<Entry> line;
  std::map<Ticket, Index> served;  // ticket, divisor
  Index count = 0;
  Index step = 0;

  void serve() {
    while (!line.empty() && (line.front().cancelled || count >= line.front().num_required)) {
      if (!line.front().cancelled) {
        served[line.front().ticket] = count;
        ++step;
        count = 0;
      }
      line.pop_front();
    }
  }
};

}  // namespace

TEST_CASE("protocol accumulator: only a strictly lower local step is stale", "[protocol][accumulator]") {
  Machine machine;
  CHECK_FALSE(machine.set_global_step(3));
  CHECK(machine.on_apply(2) == Push::dropped);
  CHECK(machine.count() == 0);
  CHECK(machine.on_apply(3) == Push::accepted);
  CHECK(machine.on_apply(1000) == Push::accepted);
  CHECK(machine.count() == 2);
  CHECK(machine.step() == 3);
}

TEST_CASE("protocol accumulator: the divisor is the count, not what was required",
          "[protocol][accumulator]") {
  Machine machine;
  for (int i = 0; i < 4; ++i) machine.on_apply(0);
  const auto begun = machine.begin_take(2);
  CHECK(machine.serve() == Machine::Served{begun.ticket, 4});
  CHECK(machine.count() == 0);
  CHECK(machine.step() == 1);
  CHECK_FALSE(machine.serve());
}

TEST_CASE("protocol accumulator: a big request at the head blocks a small one behind it",
          "[protocol][accumulator]") {
  Machine machine;
  const auto big = machine.begin_take(3);
  const auto small = machine.begin_take(1);
  machine.on_apply(0);
  CHECK_FALSE(machine.serve());
  SECTION("until it is served") {
    machine.on_apply(0);
    CHECK(machine.due() == 0);
    machine.on_apply(0);
    CHECK(machine.due() == big.ticket);
    CHECK(machine.serve() == Machine::Served{big.ticket, 3});
    CHECK_FALSE(machine.serve());
    machine.on_apply(1);
    CHECK(machine.serve() == Machine::Served{small.ticket, 1});
  }
  SECTION("until it is cancelled") {
    CHECK(machine.cancel(big.ticket));
    CHECK(machine.serve() == Machine::Served{small.ticket, 1});
  }
}

TEST_CASE("protocol accumulator: cancelling twice, after serving, or a strange ticket does nothing",
          "[protocol][accumulator]") {
  Machine machine;
  const auto a = machine.begin_take(1);
  CHECK(machine.cancel(a.ticket));
  const Machine before = machine;
  CHECK_FALSE(machine.cancel(a.ticket));
  CHECK_FALSE(machine.cancel(0));
  CHECK_FALSE(machine.cancel(77));
  CHECK(machine == before);
  const auto b = machine.begin_take(1);
  machine.on_apply(0);
  CHECK(machine.serve());
  CHECK_FALSE(machine.cancel(b.ticket));
}

TEST_CASE("protocol accumulator: refused requests leave no trace", "[protocol][accumulator]") {
  Machine machine;
  for (Index n = 1; n <= 4; ++n) CHECK(machine.begin_take(n).admission == Admission::admitted);
  const Machine before = machine;
  CHECK(machine.begin_take(1).admission == Admission::full);
  CHECK(machine.begin_take(0).admission == Admission::bad_request);
  CHECK(machine.begin_take(-1).admission == Admission::bad_request);
  CHECK(machine == before);
}

TEST_CASE("protocol accumulator: a step set backwards is reported, and the sum stays",
          "[protocol][accumulator]") {
  Machine machine;
  machine.on_apply(0);
  CHECK_FALSE(machine.set_global_step(5));
  CHECK_FALSE(machine.set_global_step(5));
  CHECK(machine.set_global_step(2));
  CHECK(machine.step() == 2);
  CHECK(machine.count() == 1);
}

TEST_CASE("protocol accumulator: the last step does not overflow", "[protocol][accumulator]") {
  Machine machine;
  constexpr Index last = std::numeric_limits<Index>::max();
  machine.set_global_step(last);
  machine.on_apply(last);
  machine.begin_take(1);
  CHECK(machine.serve());
  CHECK(machine.step() == last);
}

TEST_CASE("protocol accumulator: random events give what a line with tombstones gives",
          "[protocol][accumulator][property]") {
  std::mt19937 random(20240611);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int disagreements = 0;
  for (int run = 0; run < 300; ++run) {
    ls::protocol::Accumulator<64> machine;
    TombstoneModel model;
    std::map<Ticket, Index> served;
    std::vector<Ticket> tickets;
    for (int event = 0; event < 60; ++event) {
      switch (below(8)) {
        case 0:
        case 1: {
          const Index required = 1 + below(4);
          const auto begun = machine.begin_take(required);
          tickets.push_back(begun.ticket);
          model.line.push_back({begun.ticket, required});
          break;
        }
        case 2:
          if (!tickets.empty()) {
            const Ticket ticket = tickets[static_cast<std::size_t>(below(static_cast<int>(tickets.size())))];
            machine.cancel(ticket);
            for (auto& entry : model.line)
              if (entry.ticket == ticket) entry.cancelled = true;
          }
          break;
        case 3: {
          const Index step = model.step + below(3) - 1;
          if (machine.set_global_step(step) != (step < model.step)) ++disagreements;
          model.step = step;
          break;
        }
        default: {
          const Index local_step = model.step + below(4) - 1;
          const bool accepted = machine.on_apply(local_step) == Push::accepted;
          if (accepted != (local_step >= model.step)) ++disagreements;
          if (accepted) ++model.count;
        }
      }
      if (const auto now = machine.serve()) served[now->ticket] = now->count;
      if (machine.serve()) ++disagreements;
      model.serve();
      if (machine.count() != model.count || machine.step() != model.step || served != model.served)
        ++disagreements;
    }
  }
  CHECK(disagreements == 0);
}
