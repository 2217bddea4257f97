// SPDX-License-Identifier: MIT
// Two processes over shared memory: large steps beside the floors of the machine, small ones beside threads,
// and what it costs that a process may be killed at any instruction.
#include "support/child.hpp"
#include "support/floors.hpp"
#include "support/program.hpp"
#include "support/shared_replica.hpp"
#include "support/two_processes.hpp"

#include <algorithm>
#include <sstream>
#include <string>

namespace {

using namespace lockstep;
using namespace lockstep::bench;

const std::string& session() {
  static const std::string name = "lockstep-benchmark-" + std::to_string(getpid());
  return name;
}

/// The other process: commands are tasks, answers are nanoseconds per step.
void serve(int descriptor) {
  Lines lines(descriptor);
  SharedReplica mine(session(), 1);
  for (std::string command = lines.read(); !command.empty(); command = lines.read()) {
    std::istringstream words(command);
    const Task task = Task::from(words);
    lines.write(std::to_string(1e9 * mine.run(task.rule, task.elements, task.steps)));
  }
}

/// Both processes; the slower one counts.
class TwoProcesses {
 public:
  TwoProcesses() : other_(serve), mine_(session(), 0) {}
  double run(const Task& task) {
    other_.tell(task.text());
    const double here = mine_.run(task.rule, task.elements, task.steps);
    return std::max(here, 1e-9 * std::stod(other_.answer()));
  }

 private:
  Child other_;
  SharedReplica mine_;
};

/// Threads over a segment: the same memory, locks and copies as between processes.
SharedMemory for_threads(const std::string& rule) {
  return {.name = session() + "-threads-" + rule, .replicas_here = 2};
}

void compare_large(TwoProcesses& processes) {
  constexpr Index elements = 25'000'000;
  Floors floors(elements, 2);
  Interleaved rounds;
  floors.add_to(rounds);
  rounds.add("sgd", [&] { return processes.run({"sgd", elements, 4}); });
  rounds.add("adam", [&] { return processes.run({"adam", elements, 4}); });
  rounds.run(15);
  report("processes/2x25e6/sgd/roofline", floors.roofline(rounds, "sgd", floor_bytes<Sgd>(elements, 2)),
         "of peak", rounds);
  report("processes/2x25e6/adam/roofline", floors.roofline(rounds, "adam", floor_bytes<Adam>(elements, 2)),
         "of peak");
}

/// Nobody can be killed alone in these, so what differs is what crash safety costs.
template <class R>
void compare_safety(const std::string& rule, Index elements, const std::string& name) {
  SyncStep<R> plain(elements, 2);
  SyncStep<R, SharedMemory> safe(elements, 2, 1, for_threads(rule));
  const auto batch = static_cast<int>(50'000'000 / elements);
  Interleaved rounds;
  rounds.add("InProcess", steps_of(plain, batch));
  rounds.add("SharedMemory", steps_of(safe, batch));
  rounds.run(31);
  report(name + rule, rounds.ratio("SharedMemory", "InProcess"), "x the time", rounds);
}

void compare_round_trip(TwoProcesses& processes) {
  SyncStep<Sgd> threads(16, 2);
  Interleaved rounds;
  rounds.add("processes", [&] { return processes.run({"sgd", 16, 1000}); });
  rounds.add("threads", steps_of(threads, 1000));
  rounds.run(51);
  report("processes/round_trip", rounds.ratio("processes", "threads"), "x the time", rounds);
}

}  // namespace

int main(int argc, char** argv) {
  session();  // both processes must know it
  TwoProcesses processes;
  const auto compare = [&] {
    compare_round_trip(processes);
    for (const Index elements : {1'000'000, 3'000'000}) {
      const std::string name = "processes/undo_of_" + std::to_string(elements) + '/';
      compare_safety<Sgd>("sgd", elements, name);
      compare_safety<Adam>("adam", elements, name);
    }
    compare_safety<Sgd>("sgd", 10'000'000, "processes/undo/");
    compare_safety<Adam>("adam", 10'000'000, "processes/undo/");
    compare_large(processes);
  };
  return run_program(argc, argv, compare, [&] {
    register_two_processes("sync_replicas", [&](const Task& task) { return processes.run(task); });
  });
}
