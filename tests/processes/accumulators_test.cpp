// SPDX-License-Identifier: MIT
// Accumulators and token queues that several processes use, some of which are killed.
#include "processes/scenario.hpp"
#include <lockstep/accumulators/conditional_accumulator.hpp>
#include <lockstep/accumulators/sparse_conditional_accumulator.hpp>
#include <lockstep/accumulators/token_queue.hpp>

#include <array>
#include <limits>
#include <optional>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Accumulator = ConditionalAccumulator<double, SharedMemory>;
using SparseAccumulator = SparseConditionalAccumulator<double, SharedMemory>;
using Queue = TokenQueue<SharedMemory>;

constexpr Index k_never_stale = std::numeric_limits<Index>::max();

SharedMemory net_in(const SessionFolder& folder, const char* name = "test") {
  return {.name = name, .directory = folder.path(), .patience = 30s};
}

constexpr int k_workers = 3;
constexpr Index k_size = 30'000;

struct Totals {
  std::atomic<std::int64_t> acknowledged[k_workers] = {};  // gradients of each worker that were accepted
  std::atomic<bool> workers_end{false}, chief_ends{false};
  std::int64_t taken[k_workers] = {};  // gradients of each worker in all results
  std::int64_t takes = 0, too_small = 0, torn = 0;
};

/// Gradients of a worker are 1 at every third element, so a result says how many of each are in it.
int work(const SessionFolder& folder, int worker, Totals& totals) {
  Accumulator accumulator({.shape = Shape{k_size}, .reduction = Reduction::sum}, net_in(folder));
  std::vector<double> gradient(k_size);
  for (std::size_t i = static_cast<std::size_t>(worker); i < gradient.size(); i += k_workers) gradient[i] = 1;
  while (!totals.workers_end)
    if (accumulator.apply_grad(gradient, k_never_stale)) ++totals.acknowledged[worker];
  return 0;
}

int take_all(const SessionFolder& folder, Totals& totals) {
  Accumulator accumulator({.shape = Shape{k_size}, .reduction = Reduction::sum}, net_in(folder));
  const auto take = [&](Index num_required) {
    const Tensor<double> sum = accumulator.take_grad(num_required, 20ms);
    ++totals.takes;
    double count = 0;
    for (std::size_t worker = 0; worker < k_workers; ++worker) {
      count += sum.elements[worker];
      totals.taken[worker] += static_cast<std::int64_t>(sum.elements[worker]);
    }
    if (count < static_cast<double>(num_required)) ++totals.too_small;
    for (std::size_t i = 0; i < sum.elements.size(); ++i)
      if (sum.elements[i] != sum.elements[i % k_workers]) {
        ++totals.torn;
        break;
      }
  };
  while (!totals.chief_ends) try {
      take(5);
    } catch (const TimeoutError&) {
    }
  if (accumulator.num_accumulated() > 0) take(1);
  return 0;
}

}  // namespace

TEST_CASE("sums hold every accepted gradient once, however often a worker is killed",
          "[processes][accumulator]") {
  const Watchdog watchdog(300s);
  constexpr int k_kills = 40;
  const SessionFolder folder;
  const Shared<Totals> totals;
  std::optional<Accumulator> keeper;  // so that the session outlives the victim
  keeper.emplace(AccumulatorOptions{.shape = Shape{k_size}, .reduction = Reduction::sum}, net_in(folder));
  Process chief([&] { return take_all(folder, *totals); });
  const auto start = [&](int worker) {
    return Process([&, worker] { return work(folder, worker, *totals); });
  };
  std::vector<Process> others;
  for (int worker = 1; worker < k_workers; ++worker) others.push_back(start(worker));
  for (int kill = 0; kill < k_kills; ++kill) {
    Process victim = start(0);
    const auto before = totals->acknowledged[0].load();
    wait_until([&] { return totals->acknowledged[0] > before + 2; });
    std::this_thread::sleep_for(std::chrono::microseconds(37 * kill));
    victim.send(SIGKILL);
    CHECK(victim.wait() == 128 + SIGKILL);
  }
  totals->workers_end = true;
  for (Process& other : others) CHECK(other.wait() == 0);
  totals->chief_ends = true;
  REQUIRE(chief.wait() == 0);
  keeper.reset();

  CHECK(totals->torn == 0);
  CHECK(totals->too_small == 0);
  CHECK(totals->takes > 0);
  for (int worker = 1; worker < k_workers; ++worker)
    CHECK(totals->taken[worker] == totals->acknowledged[worker]);
  // A victim may have been killed between the commit and its own count.
  CHECK(totals->taken[0] >= totals->acknowledged[0]);
  CHECK(totals->taken[0] <= totals->acknowledged[0] + k_kills);
  CHECK(folder.files().empty());
}

namespace {

/// A process that waits in line for more gradients than there are, until it is killed.
Process first_in_line(const SessionFolder& folder) {
  const Shared<std::atomic<bool>> is_in_line;
  Process first([&] {
    Accumulator theirs({.shape = Shape{1}}, net_in(folder));
    auto taker = theirs.begin_take(100);
    *is_in_line = true;
    ::pause();
    return 0;
  });
  wait_until([&] { return is_in_line->load(); });
  return first;
}

}  // namespace

TEST_CASE("a taker that is killed in line lets the next one through", "[processes][accumulator]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const bool asks = GENERATE(false, true);
  Accumulator accumulator({.shape = Shape{1}}, net_in(folder));
  Process first = first_in_line(folder);
  auto taker = accumulator.begin_take(1);
  accumulator.apply_grad(std::array{3.0}, 0);
  CHECK_FALSE(taker.ready());
  first.send(SIGKILL);
  CHECK(first.wait() == 128 + SIGKILL);
  if (asks) CHECK(taker.ready());
  CHECK(taker.get(30s).elements == std::vector{3.0});
}

TEST_CASE("who attaches at the place of a killed taker leaves nobody waiting who is due",
          "[processes][accumulator]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  Accumulator accumulator({.shape = Shape{1}}, net_in(folder));
  Process first = first_in_line(folder);
  auto taker = accumulator.begin_take(1);
  accumulator.apply_grad(std::array{3.0}, 0);
  first.send(SIGKILL);
  CHECK(first.wait() == 128 + SIGKILL);
  const Accumulator third({.shape = Shape{1}}, net_in(folder));
  CHECK(taker.get(30s).elements == std::vector{3.0});
}

TEST_CASE("a waiter that is killed in line gets no token", "[processes][token_queue]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const Shared<std::atomic<bool>> is_in_line;
  Queue queue(net_in(folder));
  Process first([&] {
    Queue theirs(net_in(folder));
    auto waiter = theirs.begin_dequeue();
    *is_in_line = true;
    ::pause();
    return 0;
  });
  wait_until([&] { return is_in_line->load(); });
  auto waiter = queue.begin_dequeue();
  first.send(SIGKILL);
  CHECK(first.wait() == 128 + SIGKILL);
  queue.enqueue_many(7, 1);
  CHECK(waiter.get(30s) == 7);
}

TEST_CASE("a wait that is in vain names the processes that are attached", "[processes][accumulator]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const Shared<std::atomic<int>> attached;
  const auto other = [&] {
    Accumulator accumulator({.shape = Shape{1}}, net_in(folder, "sum"));
    Queue queue(net_in(folder, "tokens"));
    ++*attached;
    ::pause();
    return 0;
  };
  Process one(other), two(other);
  wait_until([&] { return *attached == 2; });
  Accumulator accumulator({.shape = Shape{1}}, net_in(folder, "sum"));
  Queue queue(net_in(folder, "tokens"));
  for (const Process* process : {&one, &two}) {
    const auto named = ContainsSubstring(detail::text(" ", process->id()));
    CHECK_THROWS_WITH(accumulator.take_grad(1, 1ms), named);
    CHECK_THROWS_WITH(queue.dequeue(1ms), named);
  }
}

TEST_CASE("accumulators in shared memory want to know how large a sum is", "[processes][accumulator]") {
  const SessionFolder folder;
  const SharedMemory net = net_in(folder);
  CHECK_THROWS_AS(Accumulator({}, net), InvalidArgument);
  CHECK_THROWS_AS(Accumulator({.shape = Shape{k_unknown, 2}}, net), InvalidArgument);
  CHECK_THROWS_AS(Accumulator({.shape = Shape{2}, .max_takers = 0}, net), InvalidArgument);
  CHECK_THROWS_AS(Accumulator({.shape = Shape{2}, .max_takers = 65}, net), InvalidArgument);
  CHECK_THROWS_AS(SparseAccumulator({}, net), InvalidArgument);
  CHECK_THROWS_AS(SparseAccumulator({.shape = Shape{}}, net), InvalidArgument);
  CHECK_THROWS_AS(SparseAccumulator({.shape = Shape{3, k_unknown}}, net), InvalidArgument);
  CHECK_THROWS_AS(SparseAccumulator({.shape = Shape{k_unknown, 2}}, net), InvalidArgument);
  CHECK_THROWS_AS(SparseAccumulator({.shape = Shape{3, 2}, .max_rows = -1}, net), InvalidArgument);
  CHECK(folder.files().empty());
}

TEST_CASE("sums that no session can hold are refused", "[processes][accumulator]") {
  const SessionFolder folder;
  const SharedMemory net = net_in(folder);
  const Index huge = std::numeric_limits<Index>::max();
  const auto refused = ContainsSubstring("more than a session may have, 70368744177664 bytes");
  // 2^61 elements of 8 bytes, and 2^32 times 2^32 of them, would be none in 64 bits.
  CHECK_THROWS_WITH(Accumulator({.shape = Shape{Index{1} << 61}}, net), refused);
  CHECK_THROWS_WITH(Accumulator({.shape = Shape{Index{1} << 32, Index{1} << 32}}, net), refused);
  CHECK_THROWS_WITH(Accumulator({.shape = Shape{huge, huge, 0}}, net), refused);
  CHECK_THROWS_WITH(SparseAccumulator({.shape = Shape{k_unknown, huge}, .max_rows = 1}, net), refused);
  CHECK_THROWS_WITH(SparseAccumulator({.shape = Shape{huge}}, net), refused);
  CHECK_THROWS_WITH(SparseAccumulator({.shape = Shape{k_unknown, 2}, .max_rows = Index{1} << 60}, net),
                    refused && ContainsSubstring("(1152921504606846976) times 32 bytes"));
  CHECK_THROWS_AS(SparseAccumulator({.shape = Shape{huge}}, net), InvalidArgument);
  CHECK(folder.files().empty());
}

TEST_CASE("accumulators with other options do not share a session", "[processes][accumulator]") {
  const SessionFolder folder;
  const SharedMemory net = net_in(folder);
  const Accumulator accumulator({.shape = Shape{4}}, net);
  CHECK_THROWS_WITH(Accumulator({.shape = Shape{2, 2}}, net), ContainsSubstring("shape"));
  CHECK_THROWS_WITH(Accumulator({.shape = Shape{4}, .reduction = Reduction::sum}, net),
                    ContainsSubstring("reduction"));
  CHECK_THROWS_WITH(Accumulator({.shape = Shape{4}, .max_takers = 3}, net), ContainsSubstring("max_takers"));
  CHECK_THROWS_AS((ConditionalAccumulator<float, SharedMemory>({.shape = Shape{4}}, net)), LayoutMismatch);
  CHECK_THROWS_AS(SparseAccumulator({.shape = Shape{4}}, net), LayoutMismatch);
  CHECK_THROWS_AS(Queue(net), LayoutMismatch);
}

TEST_CASE("accumulators and queues of another build do not share a session", "[processes][accumulator]") {
  const SessionFolder folder;
  const std::string of_sums =
      detail::text("accumulator: dense, float64, shape (4)\nreduction: ", static_cast<int>(Reduction::mean),
                   "\nmax_takers: 4");
  const std::string other = "\nbuild: lockstep 0.0.0";
  const auto refused = ContainsSubstring("the session has 'build: lockstep 0.0.0'");
  detail::SharedTakes takes;
  takes.takers = 4;
  const SharedMemory sums = net_in(folder, "sums"), tokens = net_in(folder, "tokens");
  const SharedMemory::Session<detail::SharedTakes> older_sums(sums, takes, {.description = of_sums + other});
  const SharedMemory::Session<protocol::TokenQueue<>> older_tokens(tokens, {},
                                                                   {.description = "token queue" + other});
  CHECK_THROWS_WITH(Accumulator({.shape = Shape{4}}, sums), refused);
  CHECK_THROWS_WITH(Queue(tokens), refused);
}

TEST_CASE("what does not fit into the session leaves the accumulator as it was", "[processes][accumulator]") {
  const SessionFolder folder;
  SparseAccumulator accumulator({.shape = Shape{k_unknown, 1}, .max_takers = 1, .max_rows = 2},
                                net_in(folder));
  const std::array<Index, 2> rows{3, 5}, other_rows{4, 5};
  const std::array<double, 2> values{1, 2};
  CHECK(accumulator.apply_grad({.indices = rows, .values = {values, {2, 1}}}, 0));
  CHECK_THROWS_AS(accumulator.apply_grad({.indices = other_rows, .values = {values, {2, 1}}}, 0),
                  CapacityExceeded);
  CHECK(accumulator.num_accumulated() == 1);
  {
    auto taker = accumulator.begin_take(1);
    CHECK_THROWS_WITH(accumulator.begin_take(1),
                      ContainsSubstring("1 requests are in line or not collected"));
    CHECK_THROWS_AS(accumulator.begin_take(1), CapacityExceeded);
    const auto result = taker.get();
    CHECK(result.indices == std::vector<Index>{3, 5});
    CHECK(result.values.elements == std::vector<double>{1, 2});
    CHECK(result.dense_shape == Shape{k_unknown, 1});
    CHECK_THROWS_AS(taker.get(), UsageError);
  }
  { const auto lost = accumulator.begin_take(1); }
  CHECK(accumulator.apply_grad({.indices = other_rows, .values = {values, {2, 1}}}, 1));
  CHECK(accumulator.take_grad(1).indices == std::vector<Index>{4, 5});
}
