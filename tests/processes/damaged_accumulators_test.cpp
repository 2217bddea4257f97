// SPDX-License-Identifier: MIT
// States of accumulators and token queues that nobody can have written.
#include "processes/scenario.hpp"
#include <lockstep/accumulators/conditional_accumulator.hpp>
#include <lockstep/accumulators/sparse_conditional_accumulator.hpp>
#include <lockstep/accumulators/token_queue.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Accumulator = ConditionalAccumulator<double, SharedMemory>;
using Queue = TokenQueue<SharedMemory>;
using Takes = detail::SharedTakes;
using Tokens = protocol::TokenQueue<>;

/// What `attach()` says while the state of the session, which is in use, is as `damage(state)` leaves it.
template <class State, class Damage, class Attach>
std::string attach_to_damaged(const SharedMemory& net, Damage&& damage, Attach&& attach) {
  SharedMemory::Session<State> session(net, State{}, {.description = "a test"});
  const State whole = session.exclusive([](const State& state) { return state; });
  session.exclusive([&](State& state) { damage(state); });
  std::string said;
  try {
    attach();
  } catch (const SystemError& error) {
    said = error.what();
  }
  session.exclusive([&](State& state) { state = whole; });
  return said;
}

/// What is written into a state.
struct Bytes {
  std::size_t offset;
  std::int64_t value;
};

template <class State, class T>
void overwrite(State& state, std::size_t offset, T value) {
  std::memcpy(reinterpret_cast<std::byte*>(&state) + offset, &value, sizeof(value));
}

}  // namespace

TEST_CASE("the damaged state of an accumulator is refused", "[processes][accumulator]") {
  const SessionFolder folder;
  const SharedMemory net{.name = "test", .directory = folder.path(), .patience = 30s};
  const AccumulatorOptions options{.shape = Shape{1}, .max_takers = 2};  // four buffers
  Accumulator accumulator(options, net);
  accumulator.apply_grad(std::array{1.0}, 0);
  auto served = accumulator.begin_take(1);
  auto waiting = accumulator.begin_take(5);
  accumulator.apply_grad(std::array{2.0}, 1);
  const auto attach = [&](auto&& damage) {
    return attach_to_damaged<Takes>(net, damage, [&] { Accumulator other(options, net); });
  };

  // Of the line: 64 takers, each a ticket and what it asks for, then where it begins and how many there are;
  // then gradients, step, next ticket. The one who waits has the second place and ticket 2.
  constexpr std::size_t k_taker = 16, k_first = 64 * k_taker;
  static_assert(sizeof(protocol::Accumulator<64>) == k_first + 40);
  CHECK(attach([](Takes&) {}) == "");
  for (const Bytes& at : {
           Bytes{k_first, 64},
           {k_first + 8, 65},
           {k_first + 8, 0},
           {k_first + 16, -1},
           {k_first + 16, std::numeric_limits<std::int64_t>::max()},
           {k_first + 32, 2},
           {k_first + 32, -1},
           {k_taker, 0},
           {k_taker, 1},
           {k_taker + 8, 0},
       }) {
    INFO("offset " << at.offset << ", value " << at.value);
    CHECK(has(attach([&](Takes& state) { overwrite(state, at.offset, at.value); }), "its state is damaged"));
  }
  using Damage = void (*)(Takes&);
  for (const Damage damage : {
           Damage([](Takes& state) { state.takers = 0; }),
           Damage([](Takes& state) { state.takers = 3; }),
           Damage([](Takes& state) { state.takers = 65; }),
           Damage([](Takes& state) { state.sum = -1; }),
           Damage([](Takes& state) { state.sum = 4; }),
           Damage([](Takes& state) { state.entries[0].buffer = 4; }),
           Damage([](Takes& state) { state.entries[0].buffer = -1; }),
           Damage([](Takes& state) { state.entries[0].count = -1; }),
           Damage([](Takes& state) { state.entries[0].ticket = 3; }),
           Damage([](Takes& state) { state.entries[1].ticket = 1; }),
           Damage([](Takes& state) { state.entries[1].place = -1; }),
           Damage([](Takes& state) { state.entries[1].place = k_max_replicas; }),
           Damage([](Takes& state) { state.entries[1].buffer = -2; }),
           Damage([](Takes& state) { state.entries[1] = {}; }),
           Damage([](Takes& state) { state.entries[2] = state.entries[0]; }),
       })
    CHECK(has(attach(damage), "its state is damaged"));

  CHECK(served.get().elements == std::vector{1.0});
  CHECK_FALSE(waiting.ready());
}

TEST_CASE("the damaged state of a token queue is refused", "[processes][token_queue]") {
  const SessionFolder folder;
  const SharedMemory net{.name = "test", .directory = folder.path(), .patience = 30s};
  Queue queue(net);
  auto settled = queue.begin_dequeue();
  auto waiting = queue.begin_dequeue();
  queue.enqueue_many(7, 1);
  const auto attach = [&](std::size_t offset, auto value) {
    return attach_to_damaged<Tokens>(
        net, [&](Tokens& state) { overwrite(state, offset, value); }, [&] { Queue other(net); });
  };

  // 512 runs of a value and a number, where they begin, how many there are. 512 requests of ticket, outcome,
  // token and owner, and the same of them. Then those who wait, the tokens, the next ticket, closed.
  constexpr std::size_t k_runs = 512 * 16, k_requests = k_runs + 16, k_request = 32;
  constexpr std::size_t k_request_line = k_requests + 512 * k_request, k_waiting = k_request_line + 16;
  static_assert(sizeof(Tokens) == k_waiting + 32);
  CHECK(attach(k_waiting, std::size_t{1}) == "");  // as it is
  for (const Bytes& at : {
           Bytes{k_runs, 512},
           {k_runs + 8, 513},
           {k_runs + 8, 1},
           {k_request_line, 512},
           {k_request_line + 8, 513},
           {k_request_line + 8, 0},
           {k_requests, 0},
           {k_requests, 3},
           {k_requests + k_request, 1},
           {k_waiting, 0},
           {k_waiting, 2},
           {k_waiting, 3},
           {k_waiting + 8, 1},
           {k_waiting + 8, -1},
           {k_waiting + 16, 2},
           {k_waiting + 16, -1},
       }) {
    INFO("offset " << at.offset << ", value " << at.value);
    CHECK(has(attach(at.offset, at.value), "its state is damaged"));
  }
  for (const int outcome : {0, 3, 255})
    CHECK(has(attach(k_requests + 8, static_cast<unsigned char>(outcome)), "its state is damaged"));
  for (const int owner : {-1, k_max_replicas})
    CHECK(has(attach(k_requests + 24, owner), "its state is damaged"));
  for (const int closed : {1, 2})
    CHECK(has(attach(k_waiting + 24, static_cast<unsigned char>(closed)), "its state is damaged"));

  CHECK(settled.get() == 7);
  CHECK_FALSE(waiting.ready());
}

TEST_CASE("a sum that says that it has more rows than fit has as many as fit", "[processes][accumulator]") {
  const detail::SharedSparseSum<double> sum({.shape = Shape{3, 1}, .reduction = Reduction::sum});
  ZeroedMemory memory(sum.bytes());
  const auto rows = std::numeric_limits<std::size_t>::max() / 2;
  std::memcpy(memory.bytes().data(), &rows, sizeof(rows));
  CHECK(sum.result(memory.bytes().data(), 1).indices.size() == 3);
}
