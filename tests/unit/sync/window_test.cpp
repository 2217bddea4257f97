// SPDX-License-Identifier: MIT
// The window of a replica around another optimizer: what its errors leave, what its length follows, what it
// counts.
#include "unit/sync/scene.hpp"

#include <limits>
#include <utility>

using namespace lockstep;
using namespace lockstep::test;

namespace {

constexpr double k_not_a_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEMPLATE_TEST_CASE("window: what the inner optimizer refuses stays in the window", "[sync][window]", double,
                   Eigen::bfloat16) {
  using T = std::conditional_t<std::same_as<TestType, double>, double, float>;
  Net<T, TestType> net;
  double rate = k_not_a_number;
  const auto refused = [&](auto&& call) { return caught<InvalidArgument>(thrown_by(call)).has_value(); };
  GradientAggregation trainer{Local{Sgd{Schedule([&](std::int64_t) { return rate; })}, net.variables},
                              {.grad_steps = 2}};
  trainer.run([&](auto& optimizer) {
    step(optimizer, net.w, 1);
    CHECK(refused([&] { step(optimizer, net.w, 3); }));
    CHECK(net.value() == 0);
    CHECK(optimizer.global_step() == 0);
    CHECK(optimizer.pending() == 2);
    CHECK(optimizer.sequence() == 2);
    CHECK(refused([&] { optimizer.flush(); }));
    CHECK(optimizer.pending() == 2);
    rate = 1;
    CHECK(optimizer.flush().status == Status::accepted);
    CHECK(net.value() == -2);
    CHECK(optimizer.pending() == 0);
    CHECK(optimizer.sequence() == 2);

    step(optimizer, net.w, 5);
    step(optimizer, net.w, 7);
    CHECK(net.value() == -8);
    CHECK(optimizer.sequence() == 4);
    CHECK(optimizer.updates() == 2);
  });
}

TEST_CASE("window: alone, a refused gradient stays as it was set", "[sync][window]") {
  Net<> net;
  double rate = k_not_a_number;
  GradientAggregation trainer{Local{Sgd{Schedule([&](std::int64_t) { return rate; })}, net.variables},
                              {.grad_steps = 1}};
  trainer.run([&](auto& optimizer) {
    CHECK(caught<InvalidArgument>(thrown_by([&] { step(optimizer, net.w, 3); })));
    CHECK(optimizer.pending() == 0);
    CHECK(optimizer.sequence() == 0);
    rate = 1;
    CHECK(optimizer.apply_gradients().status == Status::accepted);
    CHECK(net.value() == -3);
    CHECK(optimizer.sequence() == 1);
  });
}

TEST_CASE("window: its length follows the updates of the trainer, not those of the replica object",
          "[sync][window][thread]") {
  const Watchdog watchdog;
  const WindowLength longer([](std::int64_t updates) { return updates + 1; });
  Net<> net;
  GradientAggregation trainer{
      SyncReplicas{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2, .global_step = 1000}},
      {.grad_steps = longer}};
  std::array<std::vector<std::int64_t>, 2> lengths;
  const auto one_update = [&](auto& replica) {
    std::int64_t length = 0;
    StepResult result;
    do {
      result = step(replica, net.w, 1);
      ++length;
    } while (result.status == Status::accumulated);
    lengths[at(replica.index())].push_back(length);
  };
  trainer.run([&](auto& replica) {
    for (int i = 0; i < 2; ++i) one_update(replica);
  });
  const auto snapshot = trainer.inner.snapshot();
  trainer.run(one_update);  // a new run
  trainer.inner.restore(snapshot);
  trainer.run(one_update);  // and one from before it
  for (const auto& one : lengths) CHECK(one == std::vector<std::int64_t>{1, 2, 3, 3});
}

TEST_CASE("window: the sequence counts micro-batches over all who sat at the number",
          "[sync][window][thread]") {
  const Watchdog watchdog;
  Net<> net;
  GradientAggregation trainer{
      SyncReplicas{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 1}},
      {.grad_steps = WindowLength([](std::int64_t updates) { return updates == 0 ? 2 : 4; })}};
  trainer.run([&](auto& replica) {
    for (int i = 0; i < 6; ++i) {
      CHECK(replica.sequence() == i);
      step(replica, net.w, 1);
    }
    CHECK(trainer.global_step() == 2);
    step(replica, net.w, 1);
    CHECK(replica.sequence() == 7);
    replica.flush();
    CHECK(replica.sequence() == 7);
    step(replica, net.w, 1);  // of a window that stays open
    CHECK(replica.sequence() == 8);
  });
  trainer.run([&](auto& replica) { CHECK(replica.sequence() == 7); });
}

TEMPLATE_TEST_CASE("window: while a contribution is pending nothing is taken in", "[sync][window]", double,
                   Eigen::half) {
  using T = std::conditional_t<std::same_as<TestType, double>, double, float>;
  const Watchdog watchdog;
  Net<T, TestType> net;
  GradientAggregation trainer{SyncReplicas{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2}},
                              {.grad_steps = 2}};
  auto replica = trainer.join(0);
  step(replica, net.w, 1);
  CHECK(caught<TimeoutError>(thrown_by([&] { step(replica, net.w, 3, {.timeout = 1ms}); })));
  CHECK(replica.sequence() == 2);
  CHECK(caught<UsageError>(thrown_by([&] { step(replica, net.w, 100); })));
  CHECK(caught<UsageError>(thrown_by([&] { replica.apply_gradients(); })));
  CHECK(replica.sequence() == 2);
  CHECK(replica.withdraw());
  CHECK(replica.sequence() == 0);
  step(replica, net.w, 1);
  CHECK(caught<TimeoutError>(thrown_by([&] { step(replica, net.w, 3, {.timeout = 1ms}); })));
  std::thread other([&] {
    auto second = trainer.join(1);
    for (const double gradient : {5, 7}) step(second, net.w, gradient);
  });
  CHECK(replica.resume().status == Status::accepted);
  other.join();
  CHECK(net.value() == -4);  // of 1, 3, 5, 7
  CHECK(replica.sequence() == 2);
}

TEST_CASE("window: a timeout below zero is refused by every call that has one", "[sync][window]") {
  Net<> net, other;
  const auto refused = [](auto&& call) { return caught<InvalidArgument>(thrown_by(call)).has_value(); };
  GradientAggregation trainer{
      SyncReplicas{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 1, .driver = Driver::chief}},
      {.grad_steps = 2}};
  auto& inner = trainer.inner;
  CHECK(refused([&] { (void)trainer.join(0, std::stop_token(), -1ms); }));
  auto replica = trainer.join(0);
  step(replica, net.w, 1);
  CHECK(refused([&] { replica.flush({.timeout = -1ms}); }));
  CHECK(refused([&] { replica.resume({.timeout = -1ms}); }));
  CHECK(refused([&] { inner.chief_step(-1ms); }));
  CHECK(refused([&] { (void)inner.snapshot(-1ms); }));
  CHECK(refused([&] { inner.restore(inner.snapshot(), -1ms); }));
  CHECK(refused([&] { inner.start_over(-1ms); }));
  CHECK(replica.pending() == 1);

  VariableReplicas by_variable{Sgd{1.0}, other.variables, {.replicas_to_aggregate = 1}};
  auto one = by_variable.join(0);
  CHECK(refused([&] { step(one, other.w, 1, {.timeout = -1ms}); }));
  CHECK(refused([&] { (void)by_variable.token(0, -1ms); }));
}
