// SPDX-License-Identifier: MIT
#include "unit/sync/scene.hpp"
#include <lockstep/transport/wait.hpp>

#include <chrono>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;

namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr hours k_centuries(24 * 365 * 300);  // more than nanoseconds can hold

static_assert(Timeout(milliseconds(7)).duration() == milliseconds(7));
static_assert(Timeout(nanoseconds(1)).duration() == nanoseconds(1));
static_assert(Timeout(std::chrono::duration<double>(0.25)).duration() == milliseconds(250));
static_assert(Timeout(hours(24 * 364)).duration() == hours(24 * 364));
static_assert(Timeout(milliseconds::max()).duration() == Timeout::k_longest);
static_assert(Timeout(nanoseconds::max()).duration() == Timeout::k_longest);
static_assert(Timeout(k_centuries).duration() == Timeout::k_longest);
static_assert(Timeout(milliseconds::min()).duration() == -Timeout::k_longest);

}  // namespace

TEST_CASE("wait: the longest durations are deadlines without end", "[transport][wait]") {
  CHECK(Deadline(milliseconds::max()).end() == Clock::time_point::max());
  CHECK(Deadline(k_centuries).end() == Clock::time_point::max());
  CHECK(!Deadline(milliseconds::max()).passed());
  CHECK(Deadline(hours(24 * 364)).end() < Clock::time_point::max());
  CHECK_THROWS_AS(Deadline(milliseconds::min()), InvalidArgument);
  CHECK_THROWS_AS(Deadline(nanoseconds(0)), InvalidArgument);
}

TEST_CASE("wait: replicas, accumulators and queues take the longest durations", "[transport][wait][thread]") {
  const Watchdog watchdog;
  for (const milliseconds longest : {milliseconds::max(), milliseconds(k_centuries)}) {
    Net<> net, by_variable;
    SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .deadline = longest}};
    trainer.run([&](auto& replica) {
      step(replica, net.w, 1);
      step(replica, net.w, 1, {.timeout = longest});
    });
    CHECK(trainer.snapshot(longest).counters.window.updates == 2);

    VariableReplicas trainer_by_variable{
        Sgd{1.0}, by_variable.variables, {.replicas_to_aggregate = 2, .deadline = longest}};
    trainer_by_variable.run([&](auto& replica) {
      step(replica, by_variable.w, 1);
      step(replica, by_variable.w, 1, {.timeout = longest});
    });
    CHECK(trainer_by_variable.global_step() == 2);

    TokenQueue<> queue;
    queue.enqueue_many(5, 2);
    CHECK(queue.dequeue(longest) == 5);
    CHECK(queue.begin_dequeue().get(longest) == 5);
    ConditionalAccumulator<double> accumulator;
    accumulator.apply_grad(std::vector<double>{2}, 0);
    CHECK(accumulator.take_grad(1, longest).elements.front() == 2);
  }
}
