// SPDX-License-Identifier: MIT
// Processes of different pid namespaces, as in containers that share a folder: each is number 1 of its own.
#include "processes/scenario.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <fstream>
#include <ostream>
#include <sched.h>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Why there are no such namespaces here; empty if there are.
std::string no_namespaces() {
  Process probe([] { return ::unshare(CLONE_NEWPID) == 0 ? 0 : errno; });
  const int error = probe.wait();
  return error == 0 ? "" : "unshare: no pid namespaces here: " + detail::reason(error);
}

/// A process that has called `enter()` has a child that calls `body()`; `id` is the child's number for the
/// calling process, and is known before the body begins: a signal to number 0 would end the tests.
template <class Enter, class F>
Process inside(std::atomic<pid_t>& id, Enter enter, F body) {
  return Process([&id, enter, body] {
    if (!enter()) return 98;
    Process child([&] {
      wait_until([&] { return id != 0; });
      return body();
    });
    id = child.id();
    return child.wait();
  });
}

/// The first process of a new pid namespace calls `body()`.
template <class F>
Process contained(std::atomic<pid_t>& id, F body) {
  return inside(
      id, [] { return ::unshare(CLONE_NEWPID) == 0; }, [body] { return ::getpid() == 1 ? body() : 97; });
}

#if defined(CLONE_NEWTIME)
/// Calls `body()` in a process whose monotonic clock is a day ahead.
template <class F>
Process a_day_ahead(std::atomic<pid_t>& id, F body) {
  const auto enter = [] {
    if (::unshare(CLONE_NEWTIME) != 0) return false;
    std::ofstream("/proc/self/timens_offsets") << "monotonic 86400 0" << std::endl;
    return true;
  };
  return inside(id, enter, body);
}
#endif

/// The process sleeps in the kernel. @param id as the calling process sees it.
bool sleeps(pid_t id) {
  std::ifstream file(detail::text("/proc/", id, "/stat"));
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(") ");
  return name_end != std::string::npos && line.compare(name_end + 2, 1, "S") == 0;
}

struct Number {
  std::int64_t value = 0;
};
using Numbers = SharedMemory::Session<Number>;

struct Contenders {
  std::atomic<pid_t> owner{0}, waiter{0};
  std::atomic<bool> is_inside{false}, is_waiting{false}, lets_go{false};
};

/// Adds `n`, inside the mutex until it is told to let go.
int add_slowly(const SharedMemory& net, Contenders& scene, std::int64_t n) {
  Numbers session(net, Number{}, {.bytes = 64, .description = "numbers"});
  session.exclusive([&](Number& number) {
    number.value += n;
    scene.is_inside = true;
    wait_until([&] { return scene.lets_go.load(); });
  });
  return 0;
}

}  // namespace

TEST_CASE("a mutex is its owner's, whoever has the same number elsewhere and is killed",
          "[processes][segment][namespaces]") {
  if (const std::string why = no_namespaces(); !why.empty()) SKIP(why);
  const Watchdog watchdog(120s);
  const SessionFolder folder;
  const Shared<Contenders> scene;
  const SharedMemory net{.name = "test", .directory = folder.path(), .patience = 30s};
  const SessionSpec spec{.bytes = 64, .description = "numbers"};
  Numbers here(net, Number{}, spec);
  SharedMemory impatient = net;
  impatient.patience = 300ms;
  Numbers other(impatient, Number{}, spec);
  const auto value = [](Numbers& session) {
    return session.exclusive([](const Number& number) { return number.value; });
  };

  Process owner = contained(scene->owner, [&] { return add_slowly(net, *scene, 5); });
  wait_until([&] { return scene->is_inside.load(); });
  Process waiter = contained(scene->waiter, [&] {
    Numbers session(net, Number{}, spec);  // attaching waits for the mutex
    return 0;
  });
  wait_until([&] { return scene->waiter != 0 && sleeps(scene->waiter); });
  std::this_thread::sleep_for(50ms);  // it may have slept on its way to the mutex
  ::kill(scene->waiter, SIGKILL);
  CHECK(waiter.wait() == 128 + SIGKILL);
  CHECK_THROWS_AS(value(other), TimeoutError);
  scene->lets_go = true;
  CHECK(owner.wait() == 0);
  CHECK(value(here) == 5);
}

TEST_CASE("a mutex passes on from an owner that is killed in another pid namespace",
          "[processes][segment][namespaces]") {
  if (const std::string why = no_namespaces(); !why.empty()) SKIP(why);
  const Watchdog watchdog(120s);
  const SessionFolder folder;
  const SharedMemory net{.name = "test", .directory = folder.path(), .patience = 30s};
  Numbers here(net, Number{}, {.bytes = 64, .description = "numbers"});
  for (int i = 0; i < 5; ++i) {
    const Shared<Contenders> scene;
    Process owner = contained(scene->owner, [&] { return add_slowly(net, *scene, 5); });
    wait_until([&] { return scene->is_inside.load(); });
    ::kill(scene->owner, SIGKILL);
    // What it had not committed has not happened.
    here.exclusive([](Number& number) { number.value += 1; });
    CHECK(here.exclusive([](const Number& number) { return number.value; }) == i + 1);
    CHECK(owner.wait() == 128 + SIGKILL);
  }
}

TEST_CASE("transitions of different pid namespaces exclude each other while some are killed",
          "[processes][segment][namespaces]") {
  if (const std::string why = no_namespaces(); !why.empty()) SKIP(why);
  const Watchdog watchdog(120s);
  struct Counts {
    std::int64_t all = 0;
    std::array<std::int64_t, 3> by{};
  };
  const SessionFolder folder;
  const SharedMemory net{.name = "test", .directory = folder.path(), .patience = 30s};
  const SessionSpec spec{.bytes = 64, .description = "counts"};
  SharedMemory::Session<Counts> here(net, Counts{}, spec);
  const auto count = [](SharedMemory::Session<Counts>& session, std::size_t place) {
    session.exclusive([&](Counts& counts) {
      ++counts.all;
      ++counts.by[place];
    });
  };
  const auto look = [&] { return here.exclusive([](const Counts& counts) { return counts; }); };
  std::int64_t mine = 0;
  for (int death = 0; death < 40; ++death) {
    const Shared<std::array<std::atomic<pid_t>, 2>> ids;
    std::vector<Process> others;
    for (const std::size_t i : {0U, 1U})
      others.push_back(contained((*ids)[i], [&, i] {
        SharedMemory::Session<Counts> session(net, Counts{}, spec);
        for (;;) count(session, i + 1);
        return 0;
      }));
    const Counts before = look();
    while (look().by[1] == before.by[1] || look().by[2] == before.by[2] || mine % 100 != death) {
      count(here, 0);
      ++mine;
    }
    for (const std::atomic<pid_t>& id : *ids) ::kill(id, SIGKILL);
    for (Process& other : others) CHECK(other.wait() == 128 + SIGKILL);
    const Counts after = look();
    CHECK(after.by[0] == mine);
    CHECK(after.all == after.by[0] + after.by[1] + after.by[2]);
  }
}

TEST_CASE("replicas of different pid namespaces train as one, and one is replaced",
          "[processes][namespaces]") {
  if (const std::string why = no_namespaces(); !why.empty()) SKIP(why);
  const Watchdog watchdog(120s);
  const SessionFolder folder;
  const Shared<FoundByAll<3>> all;
  const Shared<Contenders> scene;
  const Plan plan{{.replicas_to_aggregate = 3, .departure = Departure::wait, .deadline = 60s}, folder.path()};
  constexpr int k_rounds = 300;
  std::atomic<pid_t>& victim = scene->owner;
  std::atomic<pid_t>& nobody = scene->waiter;
  Process zero([&] { return train(plan, 0, all->replica[0], steps(1, k_rounds)); });
  Process one = contained(nobody, [&] { return train(plan, 1, all->replica[1], steps(2, k_rounds)); });
  Process two = contained(victim, [&] { return train(plan, 2, all->replica[2], steps(3, k_rounds)); });
  wait_until([&] { return all->replica[2].rounds >= k_rounds / 3; });
  ::kill(victim, SIGKILL);
  const int code = two.wait();
  Process again = contained(nobody, [&] { return train(plan, 2, all->replica[2], steps(3, k_rounds)); });
  CHECK(zero.wait() == 0);
  CHECK(one.wait() == 0);
  CHECK(again.wait() == 0);
  if (code != 0) CHECK(all->replica[2].incarnation == 2);  // else it was done before
  for (const Found& found : all->replica) {
    INFO(found.text());
    CHECK(found.global_step == k_rounds);
    CHECK(found.value == -2.0 * k_rounds);  // the mean of 1, 2 and 3 in each round
  }
  CHECK(folder.files().empty());
}

TEST_CASE("a death is noticed although the dead one's clock was ahead", "[processes][namespaces]") {
#if defined(CLONE_NEWTIME)
  if (Process([] { return ::unshare(CLONE_NEWTIME) == 0 ? 0 : 1; }).wait() != 0)
    SKIP("unshare: no time namespaces here");
  const Watchdog watchdog(120s);
  const SessionFolder folder;
  const Shared<FoundByAll<2>> all;
  const Shared<std::atomic<pid_t>> id;
  const Plan plan{{.replicas_to_aggregate = 2, .departure = Departure::shrink, .deadline = 20s},
                  folder.path()};
  Process ahead = a_day_ahead(*id, [&] { return train(plan, 0, all->replica[0], steps(1, 1'000'000)); });
  Process stays([&] {
    return train(plan, 1, all->replica[1], [&](auto& replica, const auto& w, Found& found) {
      steps(1, 2)(replica, w, found);
      std::this_thread::sleep_for(300ms);  // the other one waits, and looks for the dead
      ::kill(*id, SIGKILL);
      steps(1, 5)(replica, w, found);
    });
  });
  INFO(all->replica[1].text());
  CHECK(stays.wait() == 0);
  CHECK(all->replica[1].global_step == 5);
  CHECK(ahead.wait() == 128 + SIGKILL);
#else
  SKIP("the C library does not know time namespaces");
#endif
}
