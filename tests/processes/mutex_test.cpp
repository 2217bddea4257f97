// SPDX-License-Identifier: MIT
// The mutex of a session when those who wait for it are killed.
#include "support/catch.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include <lockstep/transport/robust_mutex.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <fstream>
#include <sched.h>
#include <string>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

struct Scene {
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

TEST_CASE("one who is woken and killed before it has the mutex takes nobody's turn with it",
          "[processes][segment]") {
  const Watchdog watchdog(120s);
  for (int round = 0; round < 3; ++round) {
    const Shared<Scene> scene;
    scene->mutex.initialise();
    REQUIRE(scene->mutex.lock(30s));
    Process victim([&] {
      stay_on_one_core();
      const sched_param none{};
      ::sched_setscheduler(0, SCHED_IDLE, &none);
      ++scene->waiting;
      (void)scene->mutex.lock(30s);
      ::pause();
      return 0;
    });
    wait_until([&] { return scene->waiting == 1 && is_asleep(victim); });  // first in the kernel's line
    Process other([&] {
      ++scene->waiting;
      scene->got_it = scene->mutex.lock(30s);
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
    const bool was_faster = scene->mutex.lock(1ms);
    victim.send(SIGKILL);
    scene->stop = true;
    CHECK(victim.wait() == 128 + SIGKILL);
    if (was_faster) scene->mutex.unlock();
    CHECK(other.wait() == 0);
    CHECK(scene->got_it);
  }
}
