// SPDX-License-Identifier: MIT
// Files that processes save, and who goes on from them.
#include "processes/scenario.hpp"
#include <lockstep/checkpoint/checkpointer.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Bits = std::vector<std::uint64_t>;

struct SavedModel {
  Variables<double> variables;
  Handle<Eigen::VectorXd, double> w = variables.add("w", Eigen::VectorXd(Eigen::VectorXd::Zero(7)));
};
const Momentum k_saved_rule{0.1, 0.9};

/// What one of `count` replicas contributes in a step. Sums and means of these are exact, and the same for
/// one, two and four.
double saved_gradient(std::int64_t step, int index, int count) {
  return (2.5 + index - 0.5 * (count - 1)) * static_cast<double>(1 + step % 5);
}
template <class O>
void saved_steps(
    O& optimizer, const SavedModel& model, int index, int count, std::int64_t last,
    const std::function<void()>& after_step = [] {}) {
  while (optimizer.global_step() < last) {
    optimizer.gradient(model.w).setConstant(saved_gradient(optimizer.global_step(), index, count));
    optimizer.apply_gradients();
    after_step();
  }
}
template <class Trainer>
Bits saved_bits(const Trainer& trainer) {
  Bits bits;
  for (const auto& array : trainer.snapshot().arrays)
    for (const double value : array.values) bits.push_back(std::bit_cast<std::uint64_t>(value));
  return bits;
}

}  // namespace

TEST_CASE("processes save files that one optimizer, threads and other processes go on from",
          "[processes][checkpoint]") {
  const Watchdog watchdog(120s);
  const SessionFolder files, folder;
  const std::string pattern = files.path() + "/at-{step}.safetensors";
  const std::string newest = files.path() + "/at-8.safetensors";

  std::vector<Process> processes;
  for (int i = 0; i < 4; ++i)
    processes.emplace_back([&, i] {
      SavedModel model;
      Checkpointer<double> checkpoints(pattern, {.every = 4});
      std::function<void(const UpdateInfo&)> take;
      SyncReplicas trainer{k_saved_rule,
                           model.variables,
                           {.replicas_to_aggregate = 4,
                            .deadline = 30s,
                            .hooks = {.after_update = [&](const UpdateInfo& info) { take(info); }}},
                           SharedMemory{.name = "test", .replica = i, .directory = folder.path()}};
      take = [&](const UpdateInfo& info) { checkpoints.take(trainer, info.global_step); };
      trainer.run([&](auto& replica) {
        saved_steps(replica, model, i, 4, 10, [&] { checkpoints.write_pending(); });
      });
      checkpoints.write_pending();
      return 0;
    });
  for (Process& process : processes) CHECK(process.wait() == 0);
  std::vector<std::string> names = files.files();
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"at-4.safetensors", "at-8.safetensors"});

  Bits never_stopped;
  {
    SavedModel model;
    Local optimizer{k_saved_rule, model.variables};
    saved_steps(optimizer, model, 0, 1, 14);
    never_stopped = saved_bits(optimizer);
  }
  {
    SavedModel model;
    Local optimizer{k_saved_rule, model.variables};
    optimizer.restore(load<double>(newest));
    CHECK(optimizer.global_step() == 8);
    saved_steps(optimizer, model, 0, 1, 14);
    CHECK(saved_bits(optimizer) == never_stopped);
  }
  {
    SavedModel model;
    SyncReplicas trainer{k_saved_rule, model.variables, {.replicas_to_aggregate = 4, .deadline = 30s}};
    trainer.restore(load<double>(newest));
    CHECK(trainer.global_step() == 8);
    trainer.run([&](auto& replica) { saved_steps(replica, model, replica.index(), 4, 14); });
    CHECK(saved_bits(trainer) == never_stopped);
  }
  // Replica 0 restores, whether it comes first or last. When it is started again in the middle, it goes on.
  for (const int late : {0, 1}) {
    const Shared<std::array<std::array<std::uint64_t, 14>, 2>> got;
    const Shared<std::array<std::atomic<std::int64_t>, 3>> began;  // replicas 0 and 1, 0 again
    const Shared<std::atomic<bool>> first_is_in;
    const auto run = [&](int i, bool again) {
      return Process([&, i, again] {
        if (i == late) wait_until([&] { return first_is_in->load(); });
        SavedModel model;
        SyncReplicas trainer{k_saved_rule,
                             model.variables,
                             {.replicas_to_aggregate = 2, .departure = Departure::wait, .deadline = 30s},
                             SharedMemory{.name = "test", .replica = i, .directory = folder.path()}};
        *first_is_in = true;
        if (i == 0 && trainer.global_step() == 0) trainer.restore(load<double>(newest));
        trainer.run([&](auto& replica) {
          (*began)[again ? 2 : static_cast<std::size_t>(i)] = replica.global_step();
          if (i == 0 && !again) {
            saved_steps(replica, model, i, 2, 11);
            ::_exit(3);
          }
          saved_steps(replica, model, i, 2, 14);
        });
        const Bits bits = saved_bits(trainer);
        std::copy(bits.begin(), bits.end(), (*got)[static_cast<std::size_t>(i)].begin());
        return 0;
      });
    };
    Process second = run(1, false), first = run(0, false);
    CHECK(first.wait() == 3);
    Process again = run(0, true);
    CHECK(again.wait() == 0);
    CHECK(second.wait() == 0);
    CHECK((*began)[0] == 8);
    CHECK((*began)[1] == 8);
    CHECK((*began)[2] == 11);
    for (const auto& bits : *got) CHECK(Bits(bits.begin(), bits.end()) == never_stopped);
  }
}
