// SPDX-License-Identifier: MIT
/// @file
/// The token queue: order, closing, deadlines and threads.
#include "support/catch.hpp"
#include "support/hooked_transport.hpp"
#include "support/threads.hpp"
#include <lockstep/accumulators/token_queue.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <numeric>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace ls = lockstep;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using ls::Index;

TEST_CASE("token_queue: tokens come out in the order they went in", "[token_queue]") {
  ls::TokenQueue queue;
  queue.enqueue_many(4, 2);
  queue.enqueue_many(std::array<Index, 3>{5, 4, 6});
  CHECK(queue.size() == 5);
  for (const Index token : {4, 4, 5, 4, 6}) CHECK(queue.dequeue() == token);
  CHECK(queue.size() == 0);
}

TEST_CASE("token_queue: a number of tokens below zero means nothing", "[token_queue]") {
  ls::TokenQueue queue;
  CHECK_THROWS_AS(queue.enqueue_many(1, -1), ls::InvalidArgument);
}

TEST_CASE("token_queue: too many different steps are refused as a whole", "[token_queue]") {
  ls::TokenQueue queue;
  std::vector<Index> steps(100'000);
  std::iota(steps.begin(), steps.end(), 0);
  CHECK_THROWS_AS(queue.enqueue_many(steps), ls::CapacityExceeded);
  CHECK(queue.size() == 0);
  queue.enqueue_many(1, 1'000'000'000'000);
  CHECK(queue.size() == 1'000'000'000'000);
}

TEST_CASE("token_queue: an error tells apart too many tokens and too many steps", "[token_queue]") {
  ls::TokenQueue queue;
  queue.enqueue_many(1, 5);
  const auto refused = [&](Index value, Index n, const std::string& text) {
    CHECK_THROWS_AS(queue.enqueue_many(value, n), ls::CapacityExceeded);
    CHECK_THROWS_WITH(queue.enqueue_many(value, n), ContainsSubstring(text));
  };
  refused(1, std::numeric_limits<Index>::max(),
          "has 5 tokens, and with 9223372036854775807 more it would have more than 2^63 - 1");
  refused(2, std::numeric_limits<Index>::max() - 4, "with 9223372036854775803 more");
  for (Index value = 2; value <= 512; ++value) queue.enqueue_many(value, 1);
  refused(513, 1, "too many different steps");
  CHECK(queue.size() == 516);
}

TEST_CASE("token_queue: too many waiters are refused, and the line is intact", "[token_queue]") {
  ls::TokenQueue queue;
  std::vector<ls::TokenQueue<>::Waiter> waiters;
  bool is_full = false;
  while (!is_full && waiters.size() < 100'000) {
    try {
      waiters.push_back(queue.begin_dequeue());
    } catch (const ls::CapacityExceeded&) {
      is_full = true;
    }
  }
  CHECK(is_full);
  queue.enqueue_many(3, 1);
  CHECK(waiters.front().get() == 3);
  CHECK_FALSE(waiters.back().ready());
  CHECK_NOTHROW(queue.begin_dequeue());
}

TEST_CASE("token_queue: a waiter keeps what it got", "[token_queue][waiter]") {
  ls::TokenQueue queue;
  auto a = queue.begin_dequeue();
  auto b = queue.begin_dequeue();
  CHECK_FALSE(a.ready());
  queue.enqueue_many(std::array<Index, 2>{1, 2});
  CHECK(b.get() == 2);
  CHECK(a.get() == 1);
  CHECK(a.get() == 1);
  CHECK_FALSE(a.cancel());
}

TEST_CASE("token_queue: a waiter that goes away leaves the line and its room", "[token_queue][waiter]") {
  ls::TokenQueue queue;
  for (int i = 0; i < 10'000; ++i) {
    const auto abandoned = queue.begin_dequeue();
  }
  queue.enqueue_many(1, 10'001);
  for (int i = 0; i < 10'000; ++i) {
    const auto served_and_abandoned = queue.begin_dequeue();
  }
  CHECK(queue.size() == 1);
  CHECK(queue.dequeue() == 1);
}

TEST_CASE("token_queue: waiters move", "[token_queue][waiter]") {
  ls::TokenQueue queue;
  auto a = queue.begin_dequeue();
  auto b = queue.begin_dequeue();
  auto c = std::move(b);
  a = std::move(c);  // cancels the first request
  queue.enqueue_many(1, 1);
  CHECK(a.ready());
  CHECK_THROWS_AS(b.cancel(),
                  ls::UsageError);  // NOLINT(bugprone-use-after-move): that it throws is the point
  CHECK(a.get() == 1);
}

TEST_CASE("token_queue: closing drains, then is out of range, and is done once", "[token_queue][close]") {
  ls::TokenQueue queue;
  queue.enqueue_many(1, 1);
  CHECK_FALSE(queue.is_closed());
  queue.close();
  CHECK(queue.is_closed());
  CHECK_THROWS_AS(queue.close(), ls::Cancelled);
  CHECK_THROWS_AS(queue.enqueue_many(1, 1), ls::Cancelled);
  CHECK_NOTHROW(queue.enqueue_many(1, 0));
  CHECK(queue.dequeue() == 1);
  CHECK_THROWS_AS(queue.dequeue(), ls::OutOfRange);
}

TEST_CASE("token_queue: a deadline ends the wait without a trace", "[token_queue][deadline]") {
  ls::TokenQueue queue;
  CHECK_THROWS_AS(queue.dequeue(2ms), ls::TimeoutError);
  CHECK_THROWS_WITH(queue.dequeue(2ms), ContainsSubstring("no token after 2 ms"));
  CHECK_THROWS_AS(queue.dequeue(0ms), ls::InvalidArgument);
  queue.enqueue_many(1, 1);
  CHECK(queue.size() == 1);
  auto waiter = queue.begin_dequeue();
  auto next = queue.begin_dequeue();
  CHECK(waiter.get() == 1);
  CHECK_THROWS_AS(next.get(2ms), ls::TimeoutError);
  queue.enqueue_many(2, 1);
  CHECK(next.get(1s) == 2);
}

TEST_CASE("token_queue: a stop cancels a wait and consumes nothing", "[token_queue][stop][thread]") {
  const ls::test::Watchdog watchdog;
  ls::TokenQueue queue;
  std::stop_source stop;
  std::atomic<bool> was_cancelled = false;
  std::jthread waiting([&] {
    try {
      queue.dequeue(50s, stop.get_token());
    } catch (const ls::Cancelled&) {
      was_cancelled = true;
    }
  });
  std::this_thread::sleep_for(2ms);
  stop.request_stop();
  waiting.join();
  CHECK(was_cancelled);
  queue.enqueue_many(1, 1);
  CHECK_THROWS_AS(queue.dequeue(1s, stop.get_token()), ls::Cancelled);
  CHECK(queue.size() == 1);
}

TEST_CASE("token_queue: closing ends waits in other threads", "[token_queue][close][thread]") {
  const ls::test::Watchdog watchdog;
  ls::TokenQueue queue;
  std::atomic<int> out_of_range = 0;
  const auto thrown = ls::test::run_replicas(4, [&](int id) {
    if (id == 0) {
      std::this_thread::sleep_for(2ms);
      return queue.close();
    }
    try {
      queue.dequeue(50s);
    } catch (const ls::OutOfRange&) {
      ++out_of_range;
    }
  });
  for (const auto& exception : thrown) CHECK(ls::test::message_of(exception) == "");
  CHECK(out_of_range == 3);
}

TEST_CASE("token_queue: concurrent takers get every token once, also when deadlines pass",
          "[token_queue][thread][deadline]") {
  const ls::test::Watchdog watchdog;
  constexpr int k_takers = 4, k_steps = 200, k_copies = 3;
  ls::TokenQueue queue;
  std::array<std::map<Index, int>, k_takers> taken;
  const auto thrown = ls::test::run_replicas(k_takers + 1, [&](int id) {
    if (id == k_takers) {
      for (int step = 0; step < k_steps; ++step) {
        queue.enqueue_many(step, k_copies);
        std::this_thread::sleep_for(20us);
      }
      return queue.close();
    }
    while (true) {
      try {
        ++taken[static_cast<std::size_t>(id)][queue.dequeue(50us)];
      } catch (const ls::TimeoutError&) {
      } catch (const ls::OutOfRange&) {
        return;
      }
    }
  });
  for (const auto& exception : thrown) CHECK(ls::test::message_of(exception) == "");
  std::map<Index, int> total;
  for (const auto& one : taken)
    for (const auto& [token, times] : one) total[token] += times;
  int wrong = 0;
  for (int step = 0; step < k_steps; ++step)
    if (total[step] != k_copies) ++wrong;
  CHECK(wrong == 0);
  CHECK(total.size() == k_steps);
}

TEST_CASE("token_queue: a token that comes in the last moment of a wait is not thrown away",
          "[token_queue][deadline][stop]") {
  const ls::test::Hooked net;
  ls::TokenQueue queue(net);
  std::stop_source stop;
  // The first section is the registration, the second the look that finds nothing.
  net.script->countdown = 2;
  SECTION("at the deadline") {
    net.script->action = [&] {
      queue.enqueue_many(7, 1);
      std::this_thread::sleep_for(3ms);
    };
    CHECK(queue.dequeue(2ms) == 7);
  }
  SECTION("at a stop") {
    net.script->action = [&] {
      queue.enqueue_many(7, 1);
      stop.request_stop();
    };
    CHECK(queue.dequeue(50s, stop.get_token()) == 7);
  }
  CHECK(queue.size() == 0);
}

TEST_CASE("token_queue: tokens wake waiters, and nobody is woken where nobody waits",
          "[token_queue][thread]") {
  const ls::test::Hooked net;
  ls::TokenQueue queue(net);
  queue.enqueue_many(1, 1);
  auto served = queue.begin_dequeue();
  CHECK(net.script->wakes.load() == 0);
  auto waiting = queue.begin_dequeue();
  queue.enqueue_many(1, 1);
  CHECK(net.script->wakes.load() == 1);
  queue.close();
  CHECK(net.script->wakes.load() == 2);
}
