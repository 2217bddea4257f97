// SPDX-License-Identifier: MIT
/// @file
/// The token queue's state machine against its table of transitions and against a plain model.
#include "support/catch.hpp"
#include <lockstep/protocol/token_queue.hpp>

#include <array>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace ls = lockstep;
using ls::Index;
using Queue = ls::protocol::TokenQueue<3, 4>;
using ls::protocol::Admission;
using ls::protocol::Dequeued;
using ls::protocol::Enqueued;
using ls::protocol::Ticket;
using Outcome = Dequeued::Outcome;

static_assert(std::is_trivially_copyable_v<Queue>);

namespace {

constexpr bool queue_runs_at_compile_time() {
  Queue machine;
  const auto a = machine.begin_dequeue();
  machine.enqueue_many(7, 3);
  return machine.poll(a.ticket) == Dequeued{Outcome::token, 7} && machine.size() == 2;
}
static_assert(queue_runs_at_compile_time());

Dequeued take(Queue& machine) { return machine.poll(machine.begin_dequeue().ticket); }

}  // namespace

TEST_CASE("protocol token_queue: equal neighbours need room for one", "[protocol][token_queue]") {
  Queue machine;
  CHECK(machine.enqueue_many(1, 1'000'000) == Enqueued::accepted);
  CHECK(machine.enqueue_many(1, 5) == Enqueued::accepted);
  CHECK(machine.enqueue_many(2, 1) == Enqueued::accepted);
  CHECK(machine.enqueue_many(1, 1) == Enqueued::accepted);
  const Queue before = machine;
  CHECK(machine.enqueue_many(5, 1) == Enqueued::full);
  CHECK(machine.enqueue(std::array<Index, 3>{1, 1, 5}) == Enqueued::full);
  CHECK(machine == before);
  CHECK(machine.enqueue(std::array<Index, 2>{1, 1}) == Enqueued::accepted);
  CHECK(machine.size() == 1'000'009);
}

TEST_CASE("protocol token_queue: tokens that cannot be counted are refused", "[protocol][token_queue]") {
  constexpr Index k_most = std::numeric_limits<Index>::max();
  Queue machine;
  machine.enqueue_many(1, k_most - 1);
  const Queue before = machine;
  CHECK(machine.enqueue_many(1, 2) == Enqueued::too_many);
  CHECK(machine.enqueue_many(2, k_most) == Enqueued::too_many);
  CHECK(machine.enqueue(std::array<Index, 2>{1, 1}) == Enqueued::too_many);
  CHECK(machine == before);
  CHECK(machine.enqueue(std::array<Index, 1>{2}) == Enqueued::accepted);
  CHECK(machine.size() == k_most);

  Queue with_waiter;
  const auto waiter = with_waiter.begin_dequeue();
  CHECK(with_waiter.enqueue_many(1, k_most) == Enqueued::accepted);
  CHECK(with_waiter.poll(waiter.ticket).outcome == Outcome::token);
  CHECK(with_waiter.enqueue_many(1, 1) == Enqueued::accepted);  // the place of the one that was handed out
}

TEST_CASE("protocol token_queue: only those in line are pending", "[protocol][token_queue]") {
  Queue machine;
  const auto served = machine.begin_dequeue(), waiting = machine.begin_dequeue(),
             left = machine.begin_dequeue();
  CHECK(machine.is_pending(served.ticket));
  machine.enqueue_many(1, 1);
  machine.cancel(left.ticket);
  CHECK_FALSE(machine.is_pending(served.ticket));
  CHECK(machine.is_pending(waiting.ticket));
  CHECK_FALSE(machine.is_pending(left.ticket));
  CHECK_FALSE(machine.is_pending(0));
  machine.close();
  CHECK_FALSE(machine.is_pending(waiting.ticket));
}

TEST_CASE("protocol token_queue: requests of a forgotten owner get nothing, those behind it do",
          "[protocol][token_queue]") {
  Queue machine;
  machine.enqueue_many(1, 1);
  const auto settled = machine.begin_dequeue(5);
  const auto waiting = machine.begin_dequeue(5);
  const auto behind = machine.begin_dequeue(6);
  machine.forget_if([](int owner) { return owner == 5; });
  CHECK(machine.waiting() == 1);
  CHECK(machine.poll(settled.ticket) == Dequeued{});
  CHECK(machine.poll(waiting.ticket) == Dequeued{});
  machine.enqueue_many(2, 2);
  CHECK(machine.poll(behind.ticket) == Dequeued{Outcome::token, 2});
  CHECK(machine.size() == 1);
}

TEST_CASE("protocol token_queue: tokens that go straight to waiters need no room",
          "[protocol][token_queue]") {
  Queue machine;
  std::array<Ticket, 4> tickets{};
  for (Ticket& ticket : tickets) ticket = machine.begin_dequeue().ticket;
  CHECK(machine.enqueue(std::array<Index, 7>{1, 2, 3, 4, 5, 6, 7}) == Enqueued::accepted);
  CHECK(machine.size() == 3);
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(machine.poll(tickets[3 - i]) == Dequeued{Outcome::token, static_cast<Index>(4 - i)});
  CHECK(take(machine) == Dequeued{Outcome::token, 5});
}

TEST_CASE("protocol token_queue: a served waiter cannot be cancelled", "[protocol][token_queue]") {
  Queue machine;
  const Ticket ticket = machine.begin_dequeue().ticket;
  machine.enqueue_many(4, 1);
  CHECK_FALSE(machine.cancel(ticket));
  CHECK(machine.poll(ticket) == Dequeued{Outcome::token, 4});
  CHECK(machine.poll(ticket).outcome == Outcome::cancelled);
}

TEST_CASE("protocol token_queue: a cancelled waiter consumes nothing", "[protocol][token_queue]") {
  Queue machine;
  const Ticket a = machine.begin_dequeue().ticket;
  const Ticket b = machine.begin_dequeue().ticket;
  CHECK(machine.cancel(a));
  CHECK_FALSE(machine.cancel(a));
  machine.enqueue_many(7, 1);
  CHECK(machine.poll(a).outcome == Outcome::cancelled);
  CHECK(machine.poll(b) == Dequeued{Outcome::token, 7});
}

TEST_CASE("protocol token_queue: closing drains, then is out of range", "[protocol][token_queue]") {
  Queue machine;
  machine.enqueue_many(1, 2);
  CHECK(machine.close());
  CHECK_FALSE(machine.close());
  CHECK(machine.is_closed());
  CHECK(machine.enqueue_many(2, 1) == Enqueued::closed);
  CHECK(machine.enqueue(std::array<Index, 1>{2}) == Enqueued::closed);
  CHECK(machine.enqueue_many(2, 0) == Enqueued::accepted);
  CHECK(machine.enqueue({}) == Enqueued::accepted);
  CHECK(take(machine) == Dequeued{Outcome::token, 1});
  CHECK(take(machine) == Dequeued{Outcome::token, 1});
  CHECK(take(machine).outcome == Outcome::out_of_range);
}

TEST_CASE("protocol token_queue: closing ends those who wait", "[protocol][token_queue]") {
  Queue machine;
  const Ticket a = machine.begin_dequeue().ticket;
  const Ticket b = machine.begin_dequeue().ticket;
  machine.enqueue_many(1, 1);
  CHECK(machine.close());
  CHECK(machine.poll(a) == Dequeued{Outcome::token, 1});
  CHECK_FALSE(machine.cancel(b));
  CHECK(machine.poll(b).outcome == Outcome::out_of_range);
}

TEST_CASE("protocol token_queue: a full table refuses, and a collected request makes room",
          "[protocol][token_queue]") {
  Queue machine;
  std::array<Ticket, 4> tickets{};
  for (Ticket& ticket : tickets) ticket = machine.begin_dequeue().ticket;
  CHECK(machine.begin_dequeue().admission == Admission::full);
  machine.enqueue_many(1, 1);
  CHECK(machine.begin_dequeue().admission == Admission::full);
  machine.poll(tickets[0]);
  CHECK(machine.begin_dequeue().admission == Admission::admitted);
}

TEST_CASE("protocol token_queue: random events agree with two deques", "[protocol][token_queue][property]") {
  std::mt19937 random(99);
  const auto below = [&](std::size_t n) { return random() % n; };
  int disagreements = 0;
  for (int run = 0; run < 200; ++run) {
    ls::protocol::TokenQueue<64, 64> machine;
    std::deque<Index> tokens;
    std::deque<Ticket> waiters;
    std::map<Ticket, Dequeued> expected;
    bool closed = false;
    const auto settle = [&] {
      while (!tokens.empty() && !waiters.empty()) {
        expected[waiters.front()] = {Outcome::token, tokens.front()};
        tokens.pop_front();
        waiters.pop_front();
      }
      if (!closed) return;
      for (const Ticket ticket : waiters) expected[ticket] = {Outcome::out_of_range, 0};
      waiters.clear();
    };
    for (int event = 0; event < 60; ++event) {
      switch (below(6)) {
        case 0: {
          const auto value = static_cast<Index>(below(3));
          const std::size_t n = below(4);
          const auto outcome = machine.enqueue_many(value, static_cast<Index>(n));
          if ((outcome == Enqueued::closed) != (closed && n > 0)) ++disagreements;
          if (!closed) tokens.insert(tokens.end(), n, value);
          break;
        }
        case 1: {
          std::vector<Index> values(below(4));
          for (Index& value : values) value = static_cast<Index>(below(2));
          if (machine.enqueue(values) == Enqueued::accepted && !closed)
            tokens.insert(tokens.end(), values.begin(), values.end());
          break;
        }
        case 2:
        case 3: {
          const Ticket ticket = machine.begin_dequeue().ticket;
          waiters.push_back(ticket);
          expected[ticket] = {Outcome::pending, 0};
          break;
        }
        case 4:
          if (!waiters.empty()) {
            const std::size_t at = below(waiters.size());
            if (!machine.cancel(waiters[at])) ++disagreements;
            expected[waiters[at]] = {Outcome::cancelled, 0};
            waiters.erase(waiters.begin() + static_cast<std::ptrdiff_t>(at));
          }
          break;
        default:
          if (below(8) == 0 && machine.close() != !std::exchange(closed, true)) ++disagreements;
      }
      settle();
      if (machine.size() != static_cast<Index>(tokens.size()) || machine.waiting() != waiters.size())
        ++disagreements;
      for (auto at = expected.begin(); at != expected.end();) {
        if (below(3) != 0) {
          ++at;
          continue;
        }
        if (machine.poll(at->first) != at->second) ++disagreements;
        at = at->second.outcome == Outcome::pending ? std::next(at) : expected.erase(at);
      }
    }
  }
  CHECK(disagreements == 0);
}

TEST_CASE("protocol token_queue: a reopened queue is empty, and old tickets name nothing",
          "[protocol][token_queue]") {
  Queue machine;
  machine.enqueue_many(5, 2);
  const Ticket collected = machine.begin_dequeue().ticket;
  machine.poll(collected);
  machine.enqueue_many(6, 1);
  const Ticket left = machine.begin_dequeue().ticket;
  machine.close();
  machine.reopen();
  CHECK_FALSE(machine.is_closed());
  CHECK(machine.size() == 0);
  CHECK(machine.waiting() == 0);
  const Ticket fresh = machine.begin_dequeue().ticket;
  CHECK(fresh > left);
  CHECK(machine.poll(left).outcome == Outcome::cancelled);
  CHECK_FALSE(machine.cancel(left));
  CHECK(machine.is_intact(1));
  CHECK(machine.enqueue_many(7, 1) == Enqueued::accepted);
  CHECK(machine.poll(fresh) == Dequeued{Outcome::token, 7});
}
