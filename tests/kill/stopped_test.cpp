// SPDX-License-Identifier: MIT
// Somebody who lives stops inside the session's mutex at a certain point of a step, for longer than the
// others have patience. The step times out, but its gradients have counted once, and it goes on when the
// other one does.
#include "kill/everywhere.hpp"
#include "support/catch.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include <lockstep/optimizers/sgd.hpp>
#include <lockstep/per_variable/variable_replicas.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <Eigen/Core>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

/// A thread that stays inside the session's mutex from `start()` to `end()`.
template <class Trainer>
class StoppedInside {
 public:
  explicit StoppedInside(Trainer& trainer) : trainer_(trainer) {}
  ~StoppedInside() { end(); }
  void start() {
    thread_ = std::jthread([this] {
      call_at_points([this](const char* name) {
        if (std::string(name) != "exclusive: entered" || is_inside_) return;
        is_inside_ = true;
        wait_until([this] { return may_go_on_.load(); });
      });
      trainer_.while_still([] {});
    });
    wait_until([this] { return is_inside_.load(); });
  }
  void end() {
    may_go_on_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  Trainer& trainer_;
  std::atomic<bool> is_inside_{false}, may_go_on_{false};
  std::jthread thread_;
};

struct OneVector {
  Variables<double> variables;
  decltype(variables.add("", Eigen::VectorXd())) w = variables.add("w", Eigen::VectorXd::Constant(3, 1));
};

}  // namespace

TEST_CASE("a step that meets somebody who has stopped inside the session can be resumed",
          "[kill][per_variable]") {
  const Watchdog watchdog(120s);
  for (const char* const point :
       {"push: done", "plan: taken", "plan: made", "update: opened", "token: in line", "token: taken"}) {
    INFO("stopped at " << point);
    const SessionFolder folder;
    SharedMemory net = net_in(folder);
    net.replica = 0;
    net.patience = 50ms;
    OneVector model, of_other;
    const VariableOptions options{.replicas_to_aggregate = 1, .deadline = 5s};
    VariableReplicas trainer{Sgd{0.25}, model.variables, options, net};
    VariableReplicas other{Sgd{0.25}, of_other.variables, options, net};
    auto replica = trainer.join(0);
    const auto step = [&] {
      replica.set_gradient(model.w, Eigen::VectorXd::Constant(3, 1));
      return replica.apply_gradients();
    };
    CHECK(step().global_step == 1);

    StoppedInside stopped(other);
    call_at_points([&, is_first = true](const char* name) mutable {
      if (!is_first || std::string(name) != point) return;
      is_first = false;
      stopped.start();
    });
    CHECK_THROWS_AS(step(), TimeoutError);
    call_at_points({});
    stopped.end();
    CHECK(replica.sequence() == 2);
    const StepResult resumed = replica.resume();
    CHECK(resumed.status == Status::accepted);
    CHECK(resumed.global_step == 2);
    CHECK(step().global_step == 3);
    CHECK(replica.values()[0] == 0.25);
    CHECK(trainer.tokens().empty());
  }
}

TEST_CASE("what could not be cleaned up since somebody had stopped is cleaned up next",
          "[kill][per_variable]") {
  const Watchdog watchdog(120s);
  const SessionFolder folder;
  SharedMemory net = net_in(folder);
  net.replica = 0;
  net.patience = 50ms;
  OneVector model, of_other;
  VariableOptions options{.replicas_to_aggregate = 1, .deadline = 5s};
  const auto with_trainer = [&](auto&& meet, auto&& after) {
    VariableReplicas trainer{Sgd{0.25}, model.variables, options, net};
    VariableReplicas other{Sgd{0.25}, of_other.variables, options, net};
    {
      StoppedInside stopped(other);
      meet(trainer, stopped);
    }
    after(trainer);
  };
  const auto step = [&](auto& trainer) {
    auto replica = trainer.join(0);
    replica.set_gradient(model.w, Eigen::VectorXd::Constant(3, 1));
    return replica.apply_gradients().global_step;
  };
  SECTION("a seat") {
    with_trainer(
        [](auto& trainer, auto& stopped) {
          auto replica = trainer.join(0);
          stopped.start();
          replica.leave();
        },
        [&](auto& trainer) { CHECK(step(trainer) == 1); });
  }
  SECTION("a hold") {
    with_trainer([](auto& trainer, auto& stopped) { trainer.while_still([&] { stopped.start(); }); },
                 [&](auto& trainer) { CHECK(step(trainer) == 1); });
  }
  SECTION("a chief") {
    options.driver = Driver::chief;
    with_trainer(
        [](auto& trainer, auto& stopped) {
          const auto chief = trainer.chief();
          stopped.start();
        },
        [](auto& trainer) { CHECK_NOTHROW(trainer.chief()); });
  }
}
