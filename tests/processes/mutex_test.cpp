// SPDX-License-Identifier: MIT
// The mutex of a session when its owner, or those who wait for it, are killed.
#include "support/catch.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include <lockstep/transport/robust_mutex.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sched.h>
#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

constexpr auto k_there = [](std::uint32_t) { return true; };

struct Scene {
  bool lock(std::uint32_t me, std::chrono::milliseconds patience = 30s) {
    return mutex.lock(me, patience, k_there);
  }
  detail::RobustMutex mutex;
  std::atomic<int> waiting{0};
  std::atomic<bool> stop{false}, got_it{false};
};

/// The calling process stays on the first core that it may use.
void stay_on_one_core() {
  cpu_set_t allowed, first;
  CPU_ZERO(&first);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  std::size_t core = 0;
  while (!CPU_ISSET(core, &allowed)) ++core;
  CPU_SET(core, &first);
  (void)::sched_setaffinity(0, sizeof(first), &first);
}

/// The process sleeps in the kernel.
bool is_asleep(const Process& process) {
  std::ifstream file(detail::text("/proc/", process.id(), "/stat"));
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(") ");  // 12 (name) S ...
  return name_end != std::string::npos && line.compare(name_end + 2, 1, "S") == 0;
}

}  // namespace

TEST_CASE("who comes back at once does not keep out those who have to be woken", "[processes][segment]") {
  const Watchdog watchdog(120s);
  const Shared<Scene> scene;
  const auto transition = [&](std::uint32_t me) {
    if (!scene->lock(me)) return false;
    for (const auto end = Clock::now() + 3ms; Clock::now() < end;) {
    }
    scene->mutex.unlock();
    return true;
  };
  const Shared<std::atomic<int>> made, longest;
  Process busy([&] {
    while (!scene->stop)
      if (transition(1)) ++*made;
    return 0;
  });
  wait_until([&] { return *made > 0; });
  std::vector<Process> others;
  for (std::uint32_t me = 2; me < 5; ++me)
    others.emplace_back([&, me] {
      for (int i = 0; i < 20; ++i) {
        const int before = *made;
        if (!scene->lock(me)) return 1;
        const int waited = *made - before;
        scene->mutex.unlock();
        int most = *longest;
        while (waited > most && !longest->compare_exchange_weak(most, waited)) {
        }
      }
      return 0;
    });
  for (Process& other : others) CHECK(other.wait() == 0);
  scene->stop = true;
  CHECK(busy.wait() == 0);
  CHECK(*longest < 200);  // without giving way more than 600 have been seen
}

TEST_CASE("a mutex passes on from who is there no more, and from nobody else", "[processes][segment]") {
  const Watchdog watchdog(120s);
  detail::RobustMutex mutex;
  std::vector<std::uint32_t> asked;
  bool is_there = true;
  const auto ask = [&](std::uint32_t owner) {
    asked.push_back(owner);
    return is_there;
  };
  REQUIRE(mutex.lock(7, 30s, ask));
  CHECK(asked.empty());
  CHECK_FALSE(mutex.lock(8, 50ms, ask));
  CHECK(std::count(asked.begin(), asked.end(), 7) == static_cast<std::ptrdiff_t>(asked.size()));
  CHECK(!asked.empty());
  is_there = false;
  asked.clear();
  CHECK_FALSE(mutex.lock(7, 50ms, ask));  // another thread of its own process
  CHECK(asked.empty());
  CHECK(mutex.lock(8, 30s, ask));
  is_there = true;
  CHECK_FALSE(mutex.lock(7, 50ms, ask));
  CHECK(asked.back() == 8);
  mutex.unlock();
  asked.clear();
  CHECK(mutex.lock(9, 50ms, ask));
  CHECK(asked.empty());
}

TEST_CASE("one who is woken and killed before it has the mutex takes nobody's turn with it",
          "[processes][segment]") {
  const Watchdog watchdog(120s);
  for (int round = 0; round < 3; ++round) {
    const Shared<Scene> scene;
    REQUIRE(scene->lock(1));
    Process victim([&] {
      stay_on_one_core();
      const sched_param none{};
      ::sched_setscheduler(0, SCHED_IDLE, &none);
      ++scene->waiting;
      (void)scene->lock(2);
      ::pause();
      return 0;
    });
    wait_until([&] { return scene->waiting == 1 && is_asleep(victim); });  // first in the kernel's line
    Process other([&] {
      ++scene->waiting;
      scene->got_it = scene->lock(3);
      if (scene->got_it) scene->mutex.unlock();
      return 0;
    });
    // So that the victim is woken, but does not run.
    Process busy([&] {
      stay_on_one_core();
      while (!scene->stop) {
      }
      return 0;
    });
    wait_until([&] { return scene->waiting == 2 && is_asleep(other); });
    scene->mutex.unlock();
    const bool was_faster = scene->lock(1, 1ms);
    victim.send(SIGKILL);
    scene->stop = true;
    CHECK(victim.wait() == 128 + SIGKILL);
    if (was_faster) scene->mutex.unlock();
    CHECK(other.wait() == 0);
    CHECK(scene->got_it);
  }
}
