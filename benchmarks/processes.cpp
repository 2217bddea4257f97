// SPDX-License-Identifier: MIT
// Two processes over shared memory: large steps beside the floors of the machine, small ones beside threads,
// and what it costs that a process may be killed at any instruction.
#include "support/child.hpp"
#include "support/floors.hpp"
#include "support/large_page_folder.hpp"
#include "support/program.hpp"
#include "support/shared_replica.hpp"
#include "support/two_processes.hpp"

#include <algorithm>
#include <sstream>
#include <string>
#include <sys/prctl.h>

namespace {

using namespace lockstep;
using namespace lockstep::bench;

const std::string& session() {
  static const std::string name = "lockstep-benchmark-" + std::to_string(getpid());
  return name;
}

const LargePageFolder& large_pages() {
  static const LargePageFolder folder;
  return folder;
}

/// One of the processes, in both folders.
class Member {
 public:
  explicit Member(int place)
      : in_shm_(session(), place), on_large_pages_(session(), place, large_pages().path()) {}
  double run(const Task& task) {
    return (task.on_large_pages ? on_large_pages_ : in_shm_).run(task.rule, task.elements, task.steps);
  }

 private:
  SharedReplica in_shm_, on_large_pages_;
};

/// The other process: commands are tasks, answers are nanoseconds per step.
void serve(int descriptor) {
  Lines lines(descriptor);
  Member member(1);
  for (std::string command = lines.read(); !command.empty(); command = lines.read()) {
    std::istringstream words(command);
    lines.write(std::to_string(1e9 * member.run(Task::from(words))));
  }
}

/// Both processes; the slower one counts.
class TwoProcesses {
 public:
  TwoProcesses() : other_(serve), mine_(0) {}
  double run(const Task& task) {
    other_.tell(task.text());
    const double here = mine_.run(task);
    return std::max(here, 1e-9 * std::stod(other_.answer()));
  }

 private:
  Child other_;
  Member mine_;
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
  const auto add = [&](const std::string& name, const std::string& rule, bool on_large_pages) {
    rounds.add(name, [&processes, rule, on_large_pages] {
      return processes.run({rule, elements, 4, on_large_pages});
    });
  };
  const bool has_large_pages = !large_pages().path().empty();
  add("sgd", "sgd", false);
  add("adam", "adam", false);
  if (has_large_pages) {
    add("sgd on large pages", "sgd", true);
    add("adam on large pages", "adam", true);
  }
  rounds.run(15);
  const auto report_rows = [&](const std::string& where, const std::string& suffix) {
    report("processes/2x25e6/sgd/" + where,
           floors.roofline(rounds, "sgd" + suffix, floor_bytes<Sgd>(elements, 2)), "of peak", rounds);
    report("processes/2x25e6/adam/" + where,
           floors.roofline(rounds, "adam" + suffix, floor_bytes<Adam>(elements, 2)), "of peak");
  };
  report_rows("roofline", "");
  if (has_large_pages) report_rows("large_pages", " on large pages");
}

/// Memory that is touched meanwhile is on small pages, as segments are.
class OnSmallPages {
 public:
  OnSmallPages() { ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); }
  OnSmallPages(const OnSmallPages&) = delete;
  OnSmallPages& operator=(const OnSmallPages&) = delete;
  ~OnSmallPages() { ::prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0); }
};

/// Nobody can be killed alone in these, so what differs is what crash safety costs, and what pages do.
template <class R>
void compare_safety(const std::string& rule) {
  constexpr Index elements = 10'000'000;
  SyncStep<R> plain(elements, 2);
  plain(4);  // touches all of its memory
  const OnSmallPages from_now_on;
  SyncStep<R> small_pages(elements, 2);
  SyncStep<R, SharedMemory> safe(elements, 2, 1, for_threads(rule));
  Interleaved rounds;
  rounds.add("InProcess", steps_of(plain, 5));
  rounds.add("InProcess on small pages", steps_of(small_pages, 5));
  rounds.add("SharedMemory", steps_of(safe, 5));
  rounds.run(31);
  report("processes/undo/" + rule, rounds.ratio("SharedMemory", "InProcess on small pages"), "x the time",
         rounds);
  report("processes/crash_safety/" + rule, rounds.ratio("SharedMemory", "InProcess"), "x the time");
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
  session();  // both processes must know these
  large_pages();
  TwoProcesses processes;
  const auto compare = [&] {
    compare_round_trip(processes);
    compare_safety<Sgd>("sgd");
    compare_safety<Adam>("adam");
    compare_large(processes);
  };
  return run_program(argc, argv, compare, [&] {
    register_two_processes("sync_replicas", [&](const Task& task) { return processes.run(task); });
  });
}
