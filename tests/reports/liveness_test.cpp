// SPDX-License-Identifier: MIT
// Section D of the reports, and what section E says of threads: failure, time limits, fork.
#include "reports/scenario.hpp"

#include <array>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <stdexcept>

#if defined(__linux__)
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("BR-083: an exception in one replica ends the others, and reaches its own caller",
          "[reports][BR-083]") {
  const Watchdog watchdog;
  for (const int n : {2, 4, 7})
    for (const int bad_round : {1, 3})
      for (const int bad : {0, n / 2, n - 1}) {
        INFO("N " << n << ", replica " << bad << " throws in round " << bad_round);
        Model<> model;
        // The deadline is far away: the others are told, they do not time out.
        SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = n, .deadline = 500s}};
        std::vector<double> seen(at(n));
        const auto thrown = run_replicas(n, [&](int i) {
          auto replica = trainer.join(i);
          for (int round = 1; round <= 5; ++round) {
            seen[at(i)] = replica.value(model.w)[0];
            if (i == bad && round == bad_round) throw std::out_of_range("no more images");
            step(replica, model.w, 1);
          }
        });
        for (int i = 0; i < n; ++i) {
          CHECK(seen[at(i)] == -(bad_round - 1));
          if (i == bad) {
            CHECK(caught<std::out_of_range>(thrown[at(i)]));
            continue;
          }
          const auto error = caught<PeerFailed>(thrown[at(i)]);
          REQUIRE(error);
          CHECK(error->replica() == bad);
          CHECK(has(error->what(), "replica " + std::to_string(bad) + " failed"));
        }
        CHECK(model.value() == -(bad_round - 1));
        CHECK(trainer.global_step() == bad_round - 1);
      }
}

TEST_CASE("BR-083: run() rethrows the cause, and can be called again", "[reports][BR-083]") {
  const Watchdog watchdog;
  Model<> model;
  SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 4, .deadline = 500s}};
  const auto cause = thrown_by([&] {
    trainer.run([&](auto& replica) {
      for (int round = 1; round <= 5; ++round) {
        if (replica.index() == 2 && round == 3) throw std::out_of_range("no more images");
        step(replica, model.w, 1);
      }
    });
  });
  CHECK(caught<std::out_of_range>(cause));
  CHECK(model.value() == -2);
  // Not derived from std::exception.
  const auto number = thrown_by([&] {
    trainer.run([&](auto& replica) {
      if (replica.index() == 0) throw 42;
      step(replica, model.w, 1);
    });
  });
  CHECK(caught<int>(number) == 42);
  CHECK(model.value() == -2);
  // One that does not leave the loop is nobody else's business.
  trainer.run([&](auto& replica) {
    try {
      if (replica.index() == 1) throw std::runtime_error("handled");
    } catch (const std::runtime_error&) {
    }
    step(replica, model.w, 1);
  });
  CHECK(model.value() == -3);
  CHECK(trainer.global_step() == 3);
}

TEST_CASE("BR-086: the deadline is an argument, and its error lists who is missing", "[reports][BR-086]") {
  const Watchdog watchdog;

  SECTION("those who never joined") {
    Model<> model;
    SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 5, .deadline = 300ms}};
    std::array<std::chrono::nanoseconds, 5> took{};
    std::array<std::exception_ptr, 5> errors;
    std::barrier all(3);
    const auto thrown = run_replicas(5, [&](int i) {
      if (i == 1 || i == 3) return;
      auto replica = trainer.join(i);
      all.arrive_and_wait();
      const auto begin = Clock::now();
      errors[at(i)] = thrown_by([&] { step(replica, model.w, 1); });
      took[at(i)] = Clock::now() - begin;
      all.arrive_and_wait();
    });
    CHECK(messages(thrown) == "");
    for (const int i : {0, 2, 4}) {
      const auto error = caught<TimeoutError>(errors[at(i)]);
      REQUIRE(error);
      CHECK(error->missing() ==
            std::vector{Missing{1, Missing::Why::not_joined}, Missing{3, Missing::Why::not_joined}});
      CHECK(has(error->what(), "replica 1 has not joined, replica 3 has not joined"));
      CHECK(has(error->what(), "300 ms"));
      CHECK(took[at(i)] >= 300ms);
    }
  }
  SECTION("those who are slow, by a limit of this call; then the round goes on") {
    Model<> model;
    SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 5}};
    std::array<std::chrono::nanoseconds, 5> took{};
    std::array<std::exception_ptr, 5> errors;
    std::barrier all(5);
    const auto thrown = run_replicas(5, [&](int i) {
      auto replica = trainer.join(i);
      all.arrive_and_wait();
      if (i == 1 || i == 3) {
        all.arrive_and_wait();
        step(replica, model.w, i);
        return;
      }
      const auto begin = Clock::now();
      errors[at(i)] = thrown_by([&] { step(replica, model.w, i, {.timeout = 200ms}); });
      took[at(i)] = Clock::now() - begin;
      all.arrive_and_wait();
      const StepResult result = replica.resume();
      if (result.contributions != 5 || result.global_step != 1) throw Error("the round went on without some");
    });
    CHECK(messages(thrown) == "");
    for (const int i : {0, 2, 4}) {
      const auto error = caught<TimeoutError>(errors[at(i)]);
      REQUIRE(error);
      CHECK(error->missing() == std::vector{Missing{1, Missing::Why::slow}, Missing{3, Missing::Why::slow}});
      CHECK(took[at(i)] >= 200ms);
    }
    CHECK(model.value() == -2);
  }
  SECTION("one of each kind, at a place that is kept") {
    Model<> model;
    SyncReplicas trainer{Sgd{1.0},
                         model.variables,
                         {.replicas_to_aggregate = 4, .departure = Departure::wait, .deadline = 200ms}};
    std::exception_ptr timeout;
    std::barrier all(3);
    const auto thrown = run_replicas(3, [&](int i) {
      auto replica = trainer.join(i);
      all.arrive_and_wait();
      if (i == 1) replica.leave();
      all.arrive_and_wait();
      if (i == 0) timeout = thrown_by([&] { step(replica, model.w, 1); });
      all.arrive_and_wait();
    });
    CHECK(messages(thrown) == "");
    const auto error = caught<TimeoutError>(timeout);
    REQUIRE(error);
    CHECK(error->missing() == std::vector{Missing{1, Missing::Why::left}, Missing{2, Missing::Why::slow},
                                          Missing{3, Missing::Why::not_joined}});
  }
  SECTION("the default is minutes, not half an hour") {
    CHECK(SyncOptions{}.deadline > 0ms);
    CHECK(SyncOptions{}.deadline <= 3min);
  }
}

TEST_CASE("BR-086: after a deadline the last contribution can be taken back", "[reports][BR-086]") {
  const Watchdog watchdog;
  for (const int r : {2, 4}) {
    INFO("R " << r);
    Model<> model;
    SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = r, .total_num_replicas = 2}};
    std::barrier both(2);
    std::int64_t sequence = -1, accepted = -1;
    bool taken_back = false;
    const auto thrown = run_replicas(2, [&](int i) {
      auto replica = trainer.join(i);
      if (i == 0) {
        for (int k = 1; k < r / 2; ++k) step(replica, model.w, 1);
        if (!thrown_by([&] { step(replica, model.w, 100, {.timeout = 100ms}); })) throw Error("no timeout");
        taken_back = replica.withdraw();
        sequence = replica.sequence();
        accepted = trainer.stats(0).accepted;
      }
      both.arrive_and_wait();
      while (replica.global_step() < 1) step(replica, model.w, 1);
    });
    CHECK(messages(thrown) == "");
    CHECK(taken_back);
    CHECK(sequence == r / 2 - 1);
    CHECK(accepted == r / 2 - 1);
    CHECK(model.value() == -1);
  }
}

#if defined(__linux__)

namespace {

int threads_of_process() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

/// Keeps the calling thread, and those it starts, on the first processor that it may use.
class OneCore {
 public:
  OneCore() {
    ::sched_getaffinity(0, sizeof(all_), &all_);
    cpu_set_t one{};
    std::size_t first = 0;
    while (!CPU_ISSET(first, &all_)) ++first;
    CPU_SET(first, &one);
    ::sched_setaffinity(0, sizeof(one), &one);
  }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;
  ~OneCore() { ::sched_setaffinity(0, sizeof(all_), &all_); }

 private:
  cpu_set_t all_{};
};

}  // namespace

TEST_CASE("BR-087: more replicas than cores, and no hidden threads", "[reports][BR-087]") {
  const Watchdog watchdog;
  const bool one_core = GENERATE(false, true);
  constexpr int n = 8, rounds = 1000;
  const int before = threads_of_process();
  std::optional<OneCore> pinned;
  if (one_core) pinned.emplace();
  Model<float> model(0, 256);  // 1 KiB
  SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = n}};
  CHECK(threads_of_process() == before);
  std::array<int, n> most{};
  trainer.run([&](auto& replica) {
    for (int round = 0; round < rounds; ++round) {
      step(replica, model.w, replica.index());  // mean 3.5
      if (round % 100 == 0)
        most[at(replica.index())] = std::max(most[at(replica.index())], threads_of_process());
    }
  });
  for (const int count : most) CHECK(count <= before + n - 1);  // one replica runs on the caller's thread
  CHECK(threads_of_process() == before);
  CHECK((model.variables.value(model.w).array() == -3500.0F).all());
  CHECK(trainer.global_step() == rounds);
}

TEST_CASE("BR-115: a trainer refuses to work in a forked child, and the parent goes on",
          "[reports][BR-115]") {
  const Watchdog watchdog;
  enum Found : char { nothing = 'n', refused = 'r', other = 'o' };
  Model<> model;
  SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 2}};
  const auto initial = trainer.snapshot();
  std::string told;
  int status = -1;
  const auto thrown = run_replicas(2, [&](int i) {
    auto replica = trainer.join(i);
    for (int round = 1; round <= 5; ++round) {
      step(replica, model.w, i == 0 ? 1 : 3);
      if (i != 0 || round != 1) continue;
      std::array<int, 2> ends{};
      if (::pipe(ends.data()) != 0) throw Error("pipe");
      const pid_t child = ::fork();
      if (child < 0) throw Error("fork");
      if (child == 0) {
        // Replica 1 may hold any lock of the trainer at this moment, and does not exist here.
        const auto attempt = [](auto&& call) {
          try {
            call();
            return nothing;
          } catch (const UsageError& error) {
            return has(error.what(), "fork") ? refused : other;
          } catch (...) {
            return other;
          }
        };
        std::array<char, 10> found{attempt([&] { step(replica, model.w, 1); }),
                                   attempt([&] { replica.apply_gradients(); }),
                                   attempt([&] { (void)trainer.global_step(); }),
                                   attempt([&] { (void)trainer.stats(1); }),
                                   attempt([&] { (void)trainer.join(0); }),
                                   attempt([&] { (void)trainer.snapshot(); }),
                                   attempt([&] { trainer.restore(initial); }),
                                   attempt([&] { trainer.start_over(); }),
                                   attempt([&] { trainer.run([](auto&) {}); }),
                                   attempt([&] {
                                     auto mine = std::move(replica);  // leaves, were it not a copy in a child
                                     (void)mine;
                                     throw UsageError("the destructor of a replica in a fork returned");
                                   })};
        const auto written = ::write(ends[1], found.data(), found.size());
        ::_exit(written == static_cast<ssize_t>(found.size()) ? 0 : 1);
      }
      ::close(ends[1]);
      pollfd readable{ends[0], POLLIN, 0};
      // A child that hangs in an inherited lock says nothing.
      int ready = 0;
      do {
        ready = ::poll(&readable, 1, 20'000 * slowdown());
      } while (ready < 0 && errno == EINTR);
      std::array<char, 16> buffer{};
      const auto count = ready > 0 ? ::read(ends[0], buffer.data(), buffer.size()) : 0;
      told.assign(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
      ::close(ends[0]);
      if (ready <= 0) ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
    }
  });
  CHECK(messages(thrown) == "");
  CHECK(told == std::string(10, 'r'));
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(model.value() == -10);
  CHECK(trainer.global_step() == 5);
  CHECK(trainer.stats(0).accepted == 5);
}

#endif
