// SPDX-License-Identifier: MIT
// A session that cannot be entered, at each transition once, as if somebody had stopped inside it for longer
// than one has patience. The call times out and is resumed: it has counted once, what it had begun is carried
// on, and nobody else waits for it in vain.
#include "kill/everywhere.hpp"
#include "support/catch.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include <lockstep/lockstep.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <Eigen/Core>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

/// Shared memory that refuses transitions of the calling thread.
struct Refusing {
  static constexpr bool k_survives_kill = true;

  /// Which ones: `count` of them, from the one with number `first`, beginning with 1.
  struct Script {
    int first = 0, count = 0, passed = 0;
    bool refuses() { return first > 0 && ++passed >= first && passed < first + count; }
    bool has_refused() const { return first > 0 && passed >= first; }
  };
  static Script& script() {
    static thread_local Script script;
    return script;
  }

  SharedMemory net;

  template <class State>
  class Session : public SharedMemory::Session<State> {
    using Base = SharedMemory::Session<State>;

   public:
    Session(const Refusing& net, const State& initial, const SessionSpec& spec)
        : Base(net.net, initial, spec) {}
    template <class F>
    decltype(auto) exclusive(F&& transition) {
      return exclusive(std::forward<F>(transition), [](const State&) {});
    }
    template <class F, class Then>
    decltype(auto) exclusive(F&& transition, Then&& then) {
      if (script().refuses()) throw TimeoutError("somebody has stopped inside", {});
      return Base::exclusive(std::forward<F>(transition), std::forward<Then>(then));
    }
  };
};

/// Calls `f()`, of which transitions are refused. @return whether it has timed out.
template <class F>
bool times_out(int first, int count, F&& f) {
  Refusing::script() = {.first = first, .count = count};
  bool timed_out = false;
  try {
    f();
  } catch (const TimeoutError&) {
    timed_out = true;
  }
  const bool has_refused = std::exchange(Refusing::script(), {}).has_refused();
  if (timed_out) REQUIRE(has_refused);
  return timed_out;
}

constexpr int k_ever = 1000;

/// Calls `f(first, count)` for one refusal at each place, and for refusals that do not end.
template <class F>
void at_each_transition(F&& f) {
  for (const int count : {1, 2, k_ever})
    for (int first = 1; first <= 12; ++first) f(first, count);
}

struct OneVector {
  Variables<double> variables;
  decltype(variables.add("", Eigen::VectorXd())) w = variables.add("w", Eigen::VectorXd::Zero(3));
};

/// A replica that takes steps on a thread of its own until `ends`, which it sets where it fails.
/// @param before `before(step)` is called before each of them.
template <class Trainer, class Model, class Before>
std::jthread steps_alone(Trainer& trainer, int place, Model& model, std::atomic<bool>& ends,
                         std::exception_ptr& trouble, Before before) {
  return std::jthread([&, place, before] {
    try {
      auto replica = trainer.join(place);
      for (std::int64_t steps = 0;; ++steps) {
        before(steps);
        if (ends) return;
        replica.gradient(model.w).setConstant(1);
        replica.apply_gradients();
      }
    } catch (...) {
      trouble = std::current_exception();
      ends = true;
    }
  });
}

/// Steps of replica 0, each with transitions that are refused, and of replica 1 on a thread of its own.
/// @param gives_last replica 0 gives the last contribution to each update, otherwise the first one.
/// @param has_given `has_given(place, step)`: its gradient of this step counts already.
template <class Trainer, class Model, class HasGiven, class Step>
void step_in_turn(Trainer& trainer, Model& model, bool gives_last, HasGiven&& has_given, Step&& step) {
  auto replica = trainer.join(0);
  std::atomic<bool> ends{false};
  std::exception_ptr trouble;
  std::jthread other = steps_alone(trainer, 1, model, ends, trouble, [&](std::int64_t steps) {
    if (!gives_last) wait_until([&] { return ends || has_given(0, steps); });
  });
  std::int64_t steps = 0;
  at_each_transition([&](int first, int count) {
    INFO("refused " << count << " times at " << first);
    if (gives_last) wait_until([&] { return ends || has_given(1, steps); });
    REQUIRE(!ends);
    step(replica, first, count);
    CHECK(replica.sequence() == ++steps);
  });
  ends = true;
  if constexpr (requires { trainer.close(); }) trainer.close();
  replica.leave();
  other.join();
  CHECK(message_of(trouble) == "");
}

}  // namespace

TEST_CASE("a step to which the session is closed for a while is resumed", "[kill][sync]") {
  const Watchdog watchdog(300s);
  const double nan = std::nan("");
  struct {
    const char* text;
    SyncOptions options;
    double gradient = 3;  // of replica 0
    bool gives_last = true;
    double change = -0.5;  // of the variable, in a step
    Status status = Status::accepted;
  } settings[]{
      {"planner", {}},
      {"helper", {}, 3, false},
      {"clipped", {.clip_norm = 1e9}},
      {"with a hook", {.hooks = {.after_update = [](const UpdateInfo&) {}}}},
      {"reads snapshots", {.reading = Reading::snapshot}},
      {"helper that reads snapshots", {.reading = Reading::snapshot}, 3, false},
      {"skipped", {.non_finite = NonFinite::skip_update}, nan, true, 0, Status::skipped},
      {"left out", {.non_finite = NonFinite::skip_contribution}, nan, true, -0.25, Status::skipped},
  };
  for (auto& setting : settings) {
    INFO(setting.text);
    setting.options.replicas_to_aggregate = 2;
    setting.options.deadline = 20s;
    const SessionFolder folder;
    OneVector model;
    SyncReplicas trainer{Sgd{0.25}, model.variables, setting.options, Refusing{net_in(folder)}};
    const auto has_given = [&](int place, std::int64_t step) { return trainer.stats(place).accepted > step; };
    double expected = 0;
    step_in_turn(trainer, model, setting.gives_last, has_given, [&](auto& replica, int first, int count) {
      replica.gradient(model.w).setConstant(setting.gradient);
      StepResult result;
      if (times_out(first, count, [&] { result = replica.apply_gradients(); })) result = replica.resume();
      CHECK(result.status == setting.status);
      CHECK(replica.value(model.w)[0] == (expected += setting.change));
    });
  }
}

TEST_CASE("a hold that could not be ended does not keep the variables still", "[kill][sync]") {
  const Watchdog watchdog(300s);
  const SessionFolder folder;
  OneVector model;
  SyncReplicas trainer{Sgd{0.25},
                       model.variables,
                       {.replicas_to_aggregate = 1, .total_num_replicas = 2, .deadline = 20s},
                       Refusing{net_in(folder)}};
  auto late = trainer.join(0), other = trainer.join(1);
  const auto step = [&](auto& replica) {
    replica.gradient(model.w).setConstant(1);
    return replica.apply_gradients().status;
  };
  CHECK(step(other) == Status::accepted);
  CHECK(times_out(3, k_ever, [&] { step(late); }));  // it is stale, and has copied the variables
  CHECK(late.withdraw());
  CHECK(step(late) == Status::accepted);
  CHECK(late.value(model.w)[0] == -0.5);
}

TEST_CASE("a window that the session does not let in is resumed", "[kill][sync][per_variable]") {
  const Watchdog watchdog(300s);
  const SessionFolder folder;
  const Refusing net{net_in(folder)};
  const auto check = [](auto trainer, const auto& w) {
    auto window = trainer.join(0);
    double expected = 0;
    at_each_transition([&](int first, int count) {
      INFO("refused " << count << " times at " << first);
      for (const double gradient : {1.0, 3.0}) {
        window.gradient(w).setConstant(gradient);
        if (times_out(gradient == 1 ? 0 : first, count, [&] { window.apply_gradients(); })) window.resume();
      }
      CHECK(window.value(w)[0] == (expected -= 0.5));
    });
  };
  OneVector model;
  check(GradientAggregation{SyncReplicas{Sgd{0.25}, model.variables, SyncOptions{.deadline = 20s}, net}, {2}},
        model.w);
  OneVector other;
  check(
      GradientAggregation{VariableReplicas{Sgd{0.25}, other.variables, VariableOptions{.deadline = 20s}, net},
                          {2}},
      other.w);
}

TEST_CASE("replicas of variables to which the session is closed for a while go on", "[kill][per_variable]") {
  const Watchdog watchdog(300s);
  for (const bool gives_last : {true, false}) {
    INFO("gives last: " << gives_last);
    const SessionFolder folder;
    OneVector model;
    VariableReplicas trainer{Sgd{0.25}, model.variables,
                             VariableOptions{.replicas_to_aggregate = 2, .deadline = 20s},
                             Refusing{net_in(folder)}};
    const auto has_given = [&](int, std::int64_t step) {
      return trainer.global_step() == step && trainer.num_accumulated(0) == 1;
    };
    double expected = 0;
    step_in_turn(trainer, model, gives_last, has_given, [&](auto& replica, int first, int count) {
      replica.gradient(model.w).setConstant(3);
      StepResult result;
      if (times_out(first, count, [&] { result = replica.apply_gradients(); })) result = replica.resume();
      CHECK(result.status == Status::accepted);
      CHECK(replica.value(model.w)[0] == (expected -= 0.5));
    });
  }
}

TEST_CASE("a chief to whom the session is closed for a while is called again", "[kill][sync][per_variable]") {
  const Watchdog watchdog(300s);
  // The replica takes a step whenever an update has come.
  const auto check = [](auto& trainer, OneVector& model, auto&& is_due, auto&& step) {
    std::exception_ptr trouble;
    std::atomic<bool> ends{false};
    std::jthread replica_thread = steps_alone(trainer, 0, model, ends, trouble, [](std::int64_t) {});
    std::int64_t steps = 0;
    at_each_transition([&](int first, int count) {
      INFO("refused " << count << " times at " << first);
      wait_until([&] { return ends || is_due(steps); });
      REQUIRE(!ends);
      times_out(first, count, step);
      if (trainer.global_step() == steps) step();
      CHECK(trainer.global_step() == ++steps);
    });
    wait_until([&] { return ends || is_due(steps); });
    ends = true;
    step();
    replica_thread.join();
    CHECK(message_of(trouble) == "");
    CHECK(model.variables.value(model.w)[0] == -0.25 * static_cast<double>(steps + 1));
  };
  const SessionFolder folder;
  const Refusing net{net_in(folder)};
  for (const bool has_hook : {false, true}) {
    INFO("hook: " << has_hook);
    OneVector model;
    SyncOptions options{.deadline = 20s, .driver = Driver::chief};
    if (has_hook) options.hooks.after_update = [](const UpdateInfo&) {};
    SyncReplicas trainer{Sgd{0.25}, model.variables, options, net};
    check(
        trainer, model, [&](std::int64_t steps) { return trainer.stats(0).accepted > steps; },
        [&] { trainer.chief_step(); });
  }
  OneVector model;
  VariableReplicas trainer{Sgd{0.25}, model.variables,
                           VariableOptions{.deadline = 20s, .driver = Driver::chief}, net};
  trainer.init_chief();
  auto chief = trainer.chief();
  check(
      trainer, model,
      [&](std::int64_t) { return trainer.num_accumulated(0) > 0 || chief.taken() == std::vector{true}; },
      [&] { chief.step(); });
}

TEST_CASE("a failure that the others cannot be told of yet", "[kill][sync]") {
  const Watchdog watchdog(300s);
  const SessionFolder folder;
  OneVector model;
  bool fails = false;
  const auto fail = [&fails](bool here) {
    if (fails && here) throw InvalidArgument("on purpose");
  };
  const auto first_step = [&](bool in_hook, auto&& use) {
    const Sgd rule{.learning_rate = [&](std::int64_t) { return fail(!in_hook), 0.25; }};
    SyncOptions options{.deadline = 20s};
    if (in_hook) options.hooks.after_update = [&](const UpdateInfo&) { fail(true); };
    SyncReplicas trainer{rule, model.variables, options, Refusing{net_in(folder)}};
    auto replica = trainer.join(0);
    replica.gradient(model.w).setConstant(1);
    fails = true;
    use(replica);
  };
  SECTION("in a schedule: who has failed hears of it, and may make the plan again") {
    first_step(false, [&](auto& replica) {
      CHECK_THROWS_AS(times_out(2, k_ever, [&] { replica.apply_gradients(); }), InvalidArgument);
      Refusing::script() = {};
      fails = false;
      CHECK(replica.resume().status == Status::accepted);
      CHECK(replica.value(model.w)[0] == -0.25);
    });
  }
  SECTION("in a hook: the failure comes when the update has been ended") {
    first_step(true, [&](auto& replica) {
      CHECK(times_out(4, k_ever, [&] { replica.apply_gradients(); }));
      CHECK_THROWS_AS(replica.resume(), InvalidArgument);
      CHECK(replica.value(model.w)[0] == -0.25);
      CHECK(replica.resume().status == Status::accepted);
    });
  }
}

TEST_CASE("who cannot enter the session to join or leave is settled as dead", "[kill][sync]") {
  const Watchdog watchdog(300s);
  const SessionFolder folder;
  OneVector model;
  SyncReplicas trainer{Sgd{0.25},
                       model.variables,
                       {.replicas_to_aggregate = 1, .departure = Departure::wait, .deadline = 20s},
                       Refusing{net_in(folder)}};
  const auto come_and_go = [&] {
    auto replica = trainer.join(0);
    replica.gradient(model.w).setConstant(1);
    replica.apply_gradients();
    replica.leave();
  };
  at_each_transition([&](int first, int count) {
    INFO("refused " << count << " times at " << first);
    times_out(first, count, come_and_go);
    trainer.start_over();
    come_and_go();
    CHECK(trainer.global_step() == trainer.stats(0).accepted);
    CHECK(model.variables.value(model.w)[0] == -0.25 * static_cast<double>(trainer.global_step()));
  });
}

TEST_CASE("a place in line that could not be given up is given up next", "[kill][accumulator][token_queue]") {
  const Watchdog watchdog(300s);
  const SessionFolder folder;
  const Refusing net{net_in(folder)};
  const auto forget = [](auto&& request) {
    const auto forgotten = std::move(request);
    Refusing::script() = {.first = 1, .count = k_ever};
  };
  SECTION("of a sum") {
    ConditionalAccumulator<double, Refusing> sum({.shape = Shape{1}, .max_takers = 2}, net);
    forget(sum.begin_take(1));
    Refusing::script() = {};
    auto second = sum.begin_take(1);
    sum.apply_grad(std::array{2.0}, 0);
    CHECK(second.get(1s).elements == std::vector{2.0});
    SECTION("also one that was served") {
      auto served = sum.begin_take(1);
      sum.apply_grad(std::array{3.0}, 1);
      forget(std::move(served));
      Refusing::script() = {};
      const auto one = sum.begin_take(1), another = sum.begin_take(1);  // there is room for both
    }
  }
  SECTION("of a queue") {
    TokenQueue<Refusing> queue(net);
    forget(queue.begin_dequeue());
    Refusing::script() = {};
    queue.enqueue_many(7, 1);
    CHECK(queue.size() == 1);
  }
}
