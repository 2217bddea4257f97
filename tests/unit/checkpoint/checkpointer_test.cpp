// SPDX-License-Identifier: MIT
// Checkpoints that are copied inside an update and written outside of it.
#include "support/allocations.hpp"
#include "unit/checkpoint/scene.hpp"
#include <lockstep/checkpoint/checkpointer.hpp>

#include <future>
#include <mutex>
#include <semaphore>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A trainer as far as a Checkpointer looks at one.
struct StillTrainer {
  Snapshot<double> snapshot() const {
    Snapshot<double> snapshot;
    snapshot.counters.window.global_step = step;
    snapshot.arrays.push_back({"w", "", {1}, false, {static_cast<double>(step)}});
    return snapshot;
  }
  std::int64_t step = 0;
};

/// Keeps what would be written, and waits or fails where a test says so.
struct Written {
  CheckpointerOptions<double> options(std::int64_t every) {
    return {.every = every,
            .write = [this](const std::filesystem::path& path, const Snapshot<double>& snapshot) {
              entered.release();
              if (waits) go_on.acquire();
              if (fails) throw SystemError("disk full");
              const std::lock_guard lock(mutex);
              paths.push_back(path.string());
              steps.push_back(snapshot.counters.window.global_step);
            }};
  }
  std::counting_semaphore<> entered{0}, go_on{0};
  std::atomic<bool> waits{false}, fails{false};
  std::mutex mutex;
  std::vector<std::string> paths;
  std::vector<std::int64_t> steps;
};

}  // namespace

TEST_CASE("checkpointer: a copy every n updates, written when somebody asks", "[checkpoint]") {
  const Folder folder;
  const auto path = folder / "model.safetensors";
  Net<> net;
  Checkpointer<double> checkpoints(path, {.every = 3});
  Local optimizer{Momentum{.learning_rate = 1}, net.variables};
  std::optional<Snapshot<double>> of_three;
  CHECK_FALSE(checkpoints.write_pending());
  for (int i = 1; i <= 5; ++i) {
    step(optimizer, net.w, i);
    CHECK(checkpoints.take(optimizer, optimizer.global_step()) == (i == 3));
    if (i == 3) of_three = optimizer.snapshot();
  }
  CHECK(folder.files().empty());
  CHECK_FALSE(checkpoints.written());
  CHECK(checkpoints.write_pending());
  CHECK_FALSE(checkpoints.write_pending());
  CHECK(checkpoints.written() == 3);
  CHECK(same(load<double>(path), *of_three));
}

TEST_CASE("checkpointer: files may carry the step in their name", "[checkpoint]") {
  Written written;
  StillTrainer trainer;
  Checkpointer<double> checkpoints("folder/at-{step}.safetensors", written.options(10));
  for (const std::int64_t step : {10, 20}) {
    trainer.step = step;
    checkpoints.take(trainer, step);
    checkpoints.write_pending();
  }
  CHECK(written.paths == std::vector<std::string>{"folder/at-10.safetensors", "folder/at-20.safetensors"});
}

TEST_CASE("checkpointer: a newer copy replaces the one that waits", "[checkpoint]") {
  Written written;
  StillTrainer trainer;
  Checkpointer<double> checkpoints("file", written.options(1));
  for (trainer.step = 1; trainer.step <= 3; ++trainer.step) checkpoints.take(trainer, trainer.step);
  CHECK(checkpoints.write_pending());
  CHECK_FALSE(checkpoints.write_pending());
  CHECK(written.steps == std::vector<std::int64_t>{3});
}

TEST_CASE("checkpointer: while one writes, copies are taken and nobody else writes", "[checkpoint][thread]") {
  const Watchdog watchdog;
  Written written;
  StillTrainer trainer{1};
  Checkpointer<double> checkpoints("file", written.options(1));
  written.waits = true;
  checkpoints.take(trainer, 1);
  bool wrote = false;
  std::jthread writer([&] { wrote = checkpoints.write_pending(); });
  written.entered.acquire();  // inside of it now
  trainer.step = 2;
  CHECK(checkpoints.take(trainer, 2));
  CHECK_FALSE(checkpoints.write_pending());
  CHECK_FALSE(checkpoints.written());
  written.waits = false;
  written.go_on.release();
  writer.join();
  CHECK(wrote);
  CHECK(checkpoints.written() == 1);
  CHECK(checkpoints.write_pending());
  CHECK(written.steps == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("checkpointer: what could not be written waits, unless there is a newer copy", "[checkpoint]") {
  Written written;
  StillTrainer trainer{1};
  Checkpointer<double> checkpoints("file", written.options(1));
  checkpoints.take(trainer, 1);
  written.fails = true;
  CHECK_THROWS_AS(checkpoints.write_pending(), SystemError);
  CHECK_THROWS_AS(checkpoints.write_pending(), SystemError);
  written.fails = false;
  CHECK(checkpoints.write_pending());
  CHECK(checkpoints.written() == 1);
  checkpoints.take(trainer, 1);
  written.fails = true;
  CHECK_THROWS_AS(checkpoints.write_pending(), SystemError);
  written.fails = false;
  trainer.step = 2;
  checkpoints.take(trainer, 2);
  CHECK(checkpoints.write_pending());
  CHECK(written.steps == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("checkpointer: a thread of the program writes until it is stopped, the last copy too",
          "[checkpoint][thread]") {
  const Watchdog watchdog;
  Written written;
  StillTrainer trainer{1};
  Checkpointer<double> checkpoints("file", written.options(1));
  std::stop_source stop;
  auto writer = std::async(std::launch::async, [&] { checkpoints.write_until(stop.get_token()); });
  checkpoints.take(trainer, 1);
  wait_until([&] { return checkpoints.written() == 1; });
  written.waits = true;
  trainer.step = 2;
  checkpoints.take(trainer, 2);
  written.entered.acquire();
  written.entered.acquire();  // writes the second one
  trainer.step = 3;
  checkpoints.take(trainer, 3);
  stop.request_stop();
  written.waits = false;
  written.go_on.release();
  writer.get();
  CHECK(written.steps == std::vector<std::int64_t>{1, 2, 3});

  written.fails = true;
  checkpoints.take(trainer, 3);
  auto failing = std::async(std::launch::async, [&] { checkpoints.write_until({}); });
  CHECK_THROWS_AS(failing.get(), SystemError);
}

TEST_CASE("checkpointer: replicas that save in their loop can be resumed with the same bits",
          "[checkpoint][thread]") {
  const Watchdog watchdog;
  const Folder folder;
  const auto path = folder / "model.safetensors";
  const auto train = [](auto& trainer, const Model& model, std::int64_t last, auto&& after_step) {
    trainer.run([&](auto& replica) {
      while (replica.global_step() < last) {
        contribute(replica, model, 3 * replica.global_step() + replica.index());
        after_step();
      }
    });
  };
  Model whole;
  Checkpointer<float> checkpoints(path, {.every = 4});
  using Trainer = SyncReplicas<MovingAverage<Adam>>;
  const MovingAverage<Adam> rule{Adam{.learning_rate = 0.01}};
  std::vector<std::int64_t> taken;
  SyncOptions options{.replicas_to_aggregate = 3};
  std::function<void(const UpdateInfo&)> hook;
  options.hooks.after_update = [&](const UpdateInfo& info) { hook(info); };
  Trainer trainer{rule, whole.variables, options};
  hook = [&](const UpdateInfo& info) {
    if (checkpoints.take(trainer, info.global_step)) taken.push_back(info.global_step);
  };
  train(trainer, whole, 30, [&] { checkpoints.write_pending(); });
  checkpoints.write_pending();
  CHECK(taken == std::vector<std::int64_t>{4, 8, 12, 16, 20, 24, 28});
  CHECK(checkpoints.written() == 28);
  CHECK(folder.files() == std::vector<std::string>{"model.safetensors"});

  Model resumed;
  Trainer after{rule, resumed.variables, {.replicas_to_aggregate = 3}};
  after.restore(load(path));
  CHECK(after.global_step() == 28);
  train(after, resumed, 30, [] {});
  CHECK(resumed.bits() == whole.bits());
  CHECK(after.slot("average", resumed.weights) == trainer.slot("average", whole.weights));
}

TEST_CASE("checkpointer: replicas go on while a file is being written", "[checkpoint][thread]") {
  const Watchdog watchdog;
  Written written;
  written.waits = true;
  Net<> net;
  Checkpointer<double> checkpoints("file", written.options(10));
  using Trainer = SyncReplicas<Momentum, InProcess, double>;
  Trainer* of_hook = nullptr;
  SyncOptions options{.replicas_to_aggregate = 2};
  options.hooks.after_update = [&](const UpdateInfo& info) { checkpoints.take(*of_hook, info.global_step); };
  Trainer trainer{Momentum{.learning_rate = 1}, net.variables, options};
  of_hook = &trainer;
  std::stop_source stop;
  auto writer = std::async(std::launch::async, [&] { checkpoints.write_until(stop.get_token()); });
  trainer.run([&](auto& replica) {
    while (replica.global_step() < 95) {
      step(replica, net.w, 1);
      // The disk takes as long as the training: nobody could come here if an update waited for it.
      if (replica.index() == 0 && replica.global_step() == 10) written.entered.acquire();
    }
  });
  CHECK_FALSE(checkpoints.written());
  stop.request_stop();
  written.waits = false;
  written.go_on.release();
  writer.get();
  CHECK(written.steps == std::vector<std::int64_t>{10, 90});  // the first one, and the newest that waited
}

TEST_CASE("checkpointer: copies after the first ones take no memory", "[checkpoint]") {
  StillTrainer slow;
  Written written;
  Checkpointer<double> of_slow("file", written.options(1));
  CHECK(of_slow.take(slow, 1));  // a trainer that only gives snapshots will do

  using Recipe = GradientAggregation<MovingAverage<Adam>>;
  const Recipe recipe{MovingAverage<Adam>{Adam{.learning_rate = 0.01}}, {.grad_steps = 2}};
  Model model;
  std::vector<std::uint64_t> taken;
  Checkpointer<float> checkpoints("file", {.write = [](const auto&, const auto&) {}});
  const auto take = [&](const auto& trainer, std::int64_t step) {
    const std::uint64_t before = allocations();
    checkpoints.take(trainer, step);
    taken.push_back(allocations() - before);
  };
  SECTION("of a trainer, written at once, or late") {
    SyncReplicas<Recipe>* of_hook = nullptr;
    SyncOptions options{.replicas_to_aggregate = 1};
    options.hooks.after_update = [&](const UpdateInfo& info) { take(*of_hook, info.global_step); };
    SyncReplicas<Recipe> trainer{recipe, model.variables, options};
    of_hook = &trainer;
    auto replica = trainer.join();
    for (int i = 0; i < 24; ++i) {
      contribute(replica, model, i);
      if (i % 3 == 0) checkpoints.write_pending();
    }
  }
  SECTION("of one optimizer, with an open window") {
    Local optimizer{recipe, model.variables};
    for (int i = 0; i < 24; ++i) {
      contribute(optimizer, model, 1);
      if (optimizer.pending() == 0) continue;
      take(optimizer, optimizer.global_step());
      checkpoints.write_pending();
    }
  }
  REQUIRE(taken.size() >= 12);
  CHECK((taken.front() > 0 || allocations() == 0));  // nothing counts under the sanitizers of clang
  CHECK(std::count(taken.begin() + 6, taken.end(), 0U) == std::ssize(taken) - 6);
}

TEST_CASE("checkpointer: an interval of nothing is refused", "[checkpoint]") {
  CHECK_THROWS_AS(Checkpointer<float>("file", {.every = 0}), InvalidArgument);
  CHECK_THROWS_WITH(Checkpointer<float>("file", {.every = -2}),
                    ContainsSubstring("every") && ContainsSubstring("-2"));
}
