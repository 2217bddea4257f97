// SPDX-License-Identifier: MIT
// A process is killed at each step of what it does with a token queue.
#include "kill/everywhere.hpp"
#include "support/catch.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include <lockstep/accumulators/token_queue.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <array>
#include <chrono>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

TEST_CASE("who is killed at a queue leaves its tokens in order", "[kill][token_queue]") {
  using Queue = TokenQueue<SharedMemory>;
  const Watchdog watchdog(300s);
  const SessionFolder folder;
  {
    Queue queue(net_in(folder));
    const auto prepare = [&] { return Queue(net_in(folder)); };
    const auto rest = [&] {
      std::vector<Index> tokens;
      while (queue.size() > 0) tokens.push_back(queue.dequeue(10s));
      return tokens;
    };
    using Tokens = std::vector<Index>;

    kill_everywhere(
        "enqueuing", prepare,
        [](Queue& subject) {
          subject.enqueue_many(std::array<Index, 2>{7, 8});
        },
        [&] { queue.enqueue_many(5, 1); },
        [&] {
          const Tokens left = rest();
          CHECK((left == Tokens{5} || left == Tokens{5, 7, 8}));
        });
    kill_everywhere(
        "dequeuing", prepare, [](Queue& subject) { (void)subject.dequeue(10s); },
        [&] {
          queue.enqueue_many(std::array<Index, 3>{1, 2, 3});
        },
        [&] {
          const Tokens left = rest();
          CHECK((left == Tokens{1, 2, 3} || left == Tokens{2, 3}));
        });
    kill_everywhere(
        "getting in line and out of it", prepare, [](Queue& subject) { (void)subject.begin_dequeue(); },
        [] {},
        [&] {
          queue.enqueue_many(9, 1);
          CHECK(rest() == Tokens{9});
        });
  }
  CHECK(folder.files().empty());
}
