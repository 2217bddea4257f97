// SPDX-License-Identifier: MIT
// What threads share must not be touched in a forked child: whoever held a lock does not exist there.
#include "unit/sync/scene.hpp"

#include <memory>
#include <optional>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// In a child, how many of the calls are refused with an error that speaks of the fork; -1 if the child has
/// not ended by itself.
template <class... Call>
int refused_in_child(Call&&... call) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(static_cast<unsigned>(30 * slowdown()));  // there is no watchdog in it
    int refused = 0;
    const auto attempt = [&](auto&& f) {
      const auto error = caught<UsageError>(thrown_by(f));
      if (error && std::string_view(error->what()).find("fork") != std::string_view::npos) ++refused;
    };
    (attempt(call), ...);
    ::_exit(refused);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("fork: a child cannot use its parent's trainer", "[transport][fork]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 1}};
  auto replica = std::make_unique<decltype(trainer.join())>(trainer.join());
  replica->gradient(net.w).setOnes();
  CHECK(refused_in_child([&] { replica->apply_gradients(); }, [&] { (void)trainer.join(0); },
                         [&] { (void)trainer.snapshot(); }, [&] { (void)trainer.stats(0); },
                         [&] { trainer.start_over(); },
                         [&] {
                           replica.reset();  // returns, and its seat stays the parent's
                           (void)trainer.global_step();
                         }) == 6);
  CHECK(replica->apply_gradients().status == Status::accepted);
}

TEST_CASE("fork: a child cannot use its parent's trainer by variable", "[transport][fork]") {
  const Watchdog watchdog;
  Net<> net;
  VariableReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 1}};
  auto replica = std::make_unique<decltype(trainer.join())>(trainer.join());
  replica->gradient(net.w).setOnes();
  CHECK(refused_in_child([&] { replica->apply_gradients(); }, [&] { (void)trainer.join(0); },
                         [&] { (void)trainer.num_accumulated(0); }, [&] { (void)trainer.local_step(0); },
                         [&] { trainer.start_over(); },
                         [&] {
                           replica.reset();
                           (void)trainer.global_step();
                         }) == 6);
  CHECK(replica->apply_gradients().status == Status::accepted);
}

TEST_CASE("fork: a child cannot use its parent's accumulators and queues", "[transport][fork]") {
  const Watchdog watchdog;
  ConditionalAccumulator<float> accumulator;
  TokenQueue<> queue;
  auto taker = std::optional(accumulator.begin_take(1));
  auto waiter = std::optional(queue.begin_dequeue());
  CHECK(refused_in_child([&] { accumulator.set_global_step(1); }, [&] { (void)accumulator.take_grad(1); },
                         [&] { (void)taker->ready(); }, [&] { queue.enqueue_many(1, 1); },
                         [&] { (void)queue.dequeue(); }, [&] { (void)waiter->ready(); },
                         [&] {
                           taker.reset();
                           waiter.reset();
                           (void)queue.size();
                         }) == 7);
  queue.enqueue_many(3, 1);
  CHECK(waiter->get() == 3);
}

TEST_CASE("fork: a child cannot use threads that its parent has for partitions", "[transport][fork]") {
  const Watchdog watchdog;
  Net<> net(4);
  std::optional<Local<GradientAggregation<Sgd>, double>> local(
      std::in_place, GradientAggregation{Sgd{1.0}, {.grad_steps = 2, .num_partitions = 2}}, net.variables);
  step(*local, net.w, 1);
  local->gradient(net.w).setOnes();
  CHECK(refused_in_child([&] { local->apply_gradients(); }, [&] { local->flush(); },
                         [&] {
                           // ThreadSanitizer does not know the parent's threads in a child, and ends it.
                           if (slowdown() == 1) local.reset();
                           throw UsageError("it has returned, after a fork");
                         }) == 3);
  CHECK(local->apply_gradients().status == Status::accepted);
  CHECK(net.value() == -1);
}

TEST_CASE("fork: a child may use a local optimizer that has no threads", "[transport][fork]") {
  const Watchdog watchdog;
  Net<> net;
  Local local{Sgd{1.0}, net.variables};
  CHECK(refused_in_child([&] {
          if (step(local, net.w, 1).status == Status::accepted && net.value() == -1)
            throw UsageError("accepted, after a fork");
        }) == 1);
  CHECK(net.value() == 0);
}
