// SPDX-License-Identifier: MIT
// A process is taken through its critical sections by single instructions and killed after each one, in a new
// process each time. Whoever comes next finds a whole state.
#include "kill/fault_points.hpp"
#include "support/catch.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include <lockstep/lockstep.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <limits>
#include <string>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <utility>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

/// A child process that runs to its next mark, or by one instruction. A mark is `raise(SIGTRAP)`.
class Traced {
 public:
  template <class F>
  explicit Traced(F&& body)
      : process_([&] { return ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? body() : k_refused; }) {}

  /// @return false if it has ended instead.
  bool run_to_mark() {
    while (go_on(PTRACE_CONT))
      if (stands_at_mark()) return true;
    return false;
  }
  /// One instruction. @return false if that was the last one before the next mark.
  bool step() { return go_on(PTRACE_SINGLESTEP) && !stands_at_mark(); }
  /// Instructions, up to `most` or the next mark. @return how many.
  std::int64_t steps(std::int64_t most) {
    std::int64_t done = 0;
    while (done < most && step()) ++done;
    return done;
  }
  /// How it has ended; kills it if it has not.
  int end() {
    if (!ended_) process_.send(SIGKILL);
    return ended_ ? code_ : process_.wait();
  }

  static constexpr int k_refused = 97;
  static constexpr std::int64_t k_all = std::numeric_limits<std::int64_t>::max();

 private:
  /// Until it stops again. @return false if it has ended.
  bool go_on(__ptrace_request how) {
    if (ended_) return false;
    if (std::exchange(started_, true) && ::ptrace(how, process_.id(), nullptr, nullptr) != 0) return false;
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(process_.id()), &info, WEXITED | WSTOPPED | WNOWAIT) != 0)
      if (errno != EINTR) return false;
    ended_ = info.si_code != CLD_TRAPPED && info.si_code != CLD_STOPPED;
    if (ended_) {
      code_ = process_.wait();
      return false;
    }
    (void)::waitpid(process_.id(), nullptr, WNOHANG);  // the stop has been seen
    return true;
  }
  /// A signal that a process has sent, not the trap after an instruction.
  bool stands_at_mark() const {
    siginfo_t info{};
    return ::ptrace(PTRACE_GETSIGINFO, process_.id(), nullptr, &info) == 0 && info.si_signo == SIGTRAP &&
           info.si_code <= 0;
  }

  Process process_;
  bool started_ = false, ended_ = false;
  int code_ = 0;
};

void mark() { ::raise(SIGTRAP); }

/// Why nothing can be taken by single instructions here; empty if it can.
const char* obstacle() {
#if defined(__x86_64__)
  Traced child([] {
    mark();
    mark();
    return 0;
  });
  if (!child.run_to_mark()) return "tracing is not permitted here";
  return child.steps(Traced::k_all) > 5 ? "" : "single steps do not work here";
#else
  return "exclusive loads never succeed by single steps on some processors";
#endif
}

/// Between two transitions all are equal.
struct Equal {
  std::array<std::int64_t, 6> values{};

  bool is_whole() const {
    return std::all_of(values.begin(), values.end(), [this](std::int64_t v) { return v == values[0]; });
  }
};

using Session = SharedMemory::Session<Equal>;

/// Adds 1 to all. `then` tells it to those who look without the mutex.
void advance(Session& session) {
  auto& told = *reinterpret_cast<std::atomic<std::int64_t>*>(session.memory().data());
  session.exclusive(
      [](Equal& state) {
        for (auto& value : state.values) ++value;
      },
      [&](const Equal& state) { told.store(state.values[0]); });
}

/// A trainer of one replica, in the calling process.
struct Model {
  explicit Model(const std::string& folder)
      : w(variables.add("w", Eigen::VectorXd::Zero(3))),
        trainer(Sgd{1.0}, variables,
                {.replicas_to_aggregate = 1, .departure = Departure::wait, .deadline = 30s},
                SharedMemory{.name = "step", .directory = folder, .patience = 30s}) {}
  /// Contribution number n is n + 1.
  void step(auto& replica) {
    replica.gradient(w).setConstant(static_cast<double>(replica.sequence() + 1));
    replica.apply_gradients();
  }
  /// Each contribution so far is in one update, whole.
  bool is_whole(const auto& replica) const {
    const std::int64_t n = replica.sequence();
    return replica.global_step() == n && trainer.stats(0).accepted == n &&
           (replica.value(w).array() == static_cast<double>(-n * (n + 1) / 2)).all();
  }

  Variables<double> variables;
  Handle<Eigen::VectorXd, double> w;
  SyncReplicas<Sgd, SharedMemory, double> trainer;
};

}  // namespace

TEST_CASE("killed after each instruction of a transition", "[kill][single-step]") {
  if (const char* why = obstacle(); *why != '\0') SKIP(why);
  const Watchdog watchdog(600s);
  const SessionFolder folder;
  const SharedMemory net{.name = "step", .directory = folder.path(), .patience = 30s};
  const SessionSpec spec{.bytes = 64, .description = "single steps"};
  Session session(net, Equal{}, spec);
  const auto told = [&] {
    return reinterpret_cast<std::atomic<std::int64_t>*>(session.memory().data())->load();
  };
  const auto child = [&] {
    return Traced([&] {
      Session own(net, Equal{}, spec);
      mark();
      advance(own);
      mark();
      return 0;
    });
  };
  advance(session);  // so that all functions have been found, here and in children
  Traced whole = child();
  REQUIRE(whole.run_to_mark());
  const std::int64_t instructions = whole.steps(Traced::k_all);
  REQUIRE(instructions > 50);
  whole.end();
  std::int64_t value = 1, committed_from = 0;
  for (std::int64_t at = 0; at <= instructions; ++at) {
    INFO("killed after instruction " << at << " of " << instructions);
    Traced doomed = child();
    REQUIRE(doomed.run_to_mark());
    REQUIRE(doomed.steps(at) == at);
    REQUIRE(doomed.end() == 128 + SIGKILL);
    const Equal found = session.exclusive([](const Equal& state) { return state; });
    REQUIRE(found.is_whole());
    // One instruction makes it the state, and after that one it is.
    const bool committed = found.values[0] == value + 1;
    REQUIRE((committed || found.values[0] == value));
    REQUIRE((committed || committed_from == 0));
    if (committed && committed_from == 0) committed_from = at;
    REQUIRE(told() <= found.values[0]);
    advance(session);
    value = found.values[0] + 1;
    REQUIRE(session.exclusive([](const Equal& state) { return state.is_whole() ? state.values[0] : -1; }) ==
            value);
    REQUIRE(told() == value);
  }
  CHECK(committed_from > 0);
  CHECK(committed_from < instructions);
  std::cout << "killed after each of " << instructions
            << " instructions of a transition; committed from number " << committed_from << std::endl;
}

TEST_CASE("killed after instructions of a training step", "[kill][single-step]") {
  if (const char* why = obstacle(); *why != '\0') SKIP(why);
  constexpr std::int64_t most = 16;  // kills between two points
  const Watchdog watchdog(600s);
  const SessionFolder folder;
  const Shared<FaultLog> log;
  Model keeper(folder.path());
  {
    auto replica = keeper.trainer.join(0);
    keeper.step(replica);
  }
  // Stops at point `from` of its step, and at those after it up to its end.
  const auto child = [&](std::int64_t from) {
    return Traced([&, from] {
      Model model(folder.path());
      auto replica = model.trainer.join(0);
      log->passed = 0;
      stop_from(*log, from);
      model.step(replica);
      return 0;
    });
  };
  std::int64_t kills = 0, instructions = 0, points = 0;
  for (std::int64_t point = 1;; ++point) {
    Traced whole = child(point);
    if (!whole.run_to_mark()) break;
    const std::int64_t here = whole.steps(Traced::k_all);
    whole.end();
    points = point;
    instructions += here;
    const std::int64_t stride = here / most + 1;
    for (std::int64_t at = point % stride; at <= here; at += stride) {
      INFO("killed " << at << " instructions after point " << point << " ('" << log->last << "')");
      Traced doomed = child(point);
      REQUIRE(doomed.run_to_mark());
      (void)doomed.steps(at);  // it may be at the next point earlier this time
      kills += doomed.end() == 128 + SIGKILL ? 1 : 0;
      auto replica = keeper.trainer.join(0);
      REQUIRE(keeper.is_whole(replica));
      keeper.step(replica);
      REQUIRE(keeper.is_whole(replica));
    }
  }
  CHECK(points > 10);
  CHECK(kills > points);
  std::cout << "killed after " << kills << " of " << instructions << " instructions between the " << points
            << " points of a training step" << std::endl;
}
