// SPDX-License-Identifier: MIT
/// @file
/// The file of a session as lockstep-top reads it: whole states only, and not a byte is changed.
#include "lockstep-top/session_file.hpp"
#include "lockstep-top/watcher.hpp"
#include "support/catch.hpp"
#include "support/processes.hpp"
#include <lockstep/accumulators/conditional_accumulator.hpp>
#include <lockstep/accumulators/token_queue.hpp>
#include <lockstep/optimizers/sgd.hpp>
#include <lockstep/per_variable/variable_replicas.hpp>
#include <lockstep/sync/description.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

using lockstep::detail::Control;
using top::SessionFile;
using Session = lockstep::SharedMemory::Session<Control>;

namespace {

constexpr int k_replicas = 3;

Session make_session(const std::string& directory) {
  return Session(
      {.name = "top", .directory = directory}, Control({.replicas_to_aggregate = k_replicas}),
      {.bytes = 1000, .description = "rule: Lion, slots m\nbuild: " + lockstep::detail::build_text()});
}

}  // namespace

TEST_CASE("top session_file: the state, the description and the note", "[tools][top]") {
  const lockstep::test::SessionFolder folder;
  Session session = make_session(folder.path());
  const SessionFile file(session.path());
  CHECK(file.state().round.total == k_replicas);
  CHECK(file.described("rule") == "Lion, slots m");
  CHECK(file.described("rul").empty());
  CHECK(file.note().empty());
  session.exclusive([](Control& control) {
    control.updater.window.global_step = 77;
    control.round.join(2);
  });
  session.leave_note("out of data");
  const Control seen = file.state();
  CHECK(seen.updater.window.global_step == 77);
  CHECK(seen.round.places[2].incarnation == 1);
  CHECK(file.note() == "out of data");
}

TEST_CASE("top session_file: every state that is seen is one that was committed", "[tools][top]") {
  const lockstep::test::SessionFolder folder;
  Session session = make_session(folder.path());
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    for (std::int64_t i = 1; !is_over; ++i) {
      session.exclusive([&](Control& control) {
        control.updater.window.global_step = i;
        for (int place = 0; place < k_replicas; ++place)
          control.round.places[static_cast<std::size_t>(place)].sequence = i;
        control.round.id = i;
      });
      std::this_thread::yield();
    }
  });
  int broken = 0, backwards = 0;
  std::int64_t last = 0;
  std::string failure;
  try {
    const SessionFile file(session.path());
    for (int looks = 0; looks < 20'000 || last < 1000; ++looks) {
      const Control seen = file.state();
      bool is_whole = seen.round.id == seen.updater.window.global_step;
      for (int place = 0; place < k_replicas; ++place)
        is_whole = is_whole && seen.round.places[static_cast<std::size_t>(place)].sequence == seen.round.id;
      broken += is_whole ? 0 : 1;
      backwards += seen.round.id < last ? 1 : 0;
      last = seen.round.id;
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  is_over = true;
  writer.join();
  CHECK(failure.empty());
  CHECK(broken == 0);
  CHECK(backwards == 0);
}

TEST_CASE("top session_file: who sits where", "[tools][top]") {
  const lockstep::test::SessionFolder folder;
  Session session = make_session(folder.path());
  const SessionFile file(session.path());
  auto lease = session.lease(1);
  CHECK_FALSE(file.is_held(1));
  REQUIRE(lease.take());
  CHECK(file.is_held(1));
  CHECK_FALSE(file.is_held(0));
  CHECK(file.processes(k_replicas) == std::vector<pid_t>{0, ::getpid(), 0});
}

TEST_CASE("top session_file: it is known when the session has ended", "[tools][top]") {
  const lockstep::test::SessionFolder folder;
  std::optional<SessionFile> file;
  {
    const Session session = make_session(folder.path());
    file.emplace(session.path());
    CHECK(file->is_in_use());
    CHECK_FALSE(file->is_removed());
  }
  CHECK_FALSE(file->is_in_use());
  CHECK(file->is_removed());
  CHECK(file->state().round.total == k_replicas);
}

TEST_CASE("top session_file: a session that is just being left is seen as ended", "[tools][top]") {
  const lockstep::test::SessionFolder folder;
  const std::string path = folder.path() + "/lockstep.copy";
  {
    const Session session = make_session(folder.path());
    std::filesystem::copy_file(session.path(), path);
  }
  const SessionFile file(path);
  CHECK(condition_of(top::glance(file)) == "left behind: no process takes part any more");
  std::optional<lockstep::detail::SharedFile> last(std::in_place, path, 0);
  REQUIRE(last->try_lock(lockstep::detail::Segment::k_gate));
  std::thread leaving([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::filesystem::remove(path);
    last.reset();
  });
  const top::Look look = top::glance(file);
  leaving.join();
  CHECK(condition_of(look) == "ended");
}

TEST_CASE("top session_file: reading changes nothing", "[tools][top]") {
  const lockstep::test::SessionFolder folder;
  const Session session = make_session(folder.path());
  const auto content = [&] {
    std::ifstream file(session.path(), std::ios::binary);
    std::string bytes(std::filesystem::file_size(session.path()), '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  };
  const std::string before = content();
  {
    const SessionFile file(session.path());
    (void)file.state();
    (void)file.note();
    (void)file.is_in_use();
    (void)file.processes(k_replicas);
  }
  CHECK(content() == before);
}

TEST_CASE("top session_file: a damaged state is refused", "[tools][top]") {
  const lockstep::test::SessionFolder folder;
  Session session = make_session(folder.path());
  const SessionFile file(session.path());
  session.exclusive([](Control& control) { control.round.total = 4711; });
  CHECK_THROWS_WITH(file.state(), "its state is damaged: its rounds have no settings");
}

TEST_CASE("top session_file: a header that is damaged later leads nowhere", "[tools][top]") {
  const lockstep::test::SessionFolder folder;
  const Session session = make_session(folder.path());
  const SessionFile file(session.path());
  const int writable = ::open(session.path().c_str(), O_WRONLY | O_CLOEXEC);
  const std::vector<std::uint64_t> damage(sizeof(lockstep::detail::SegmentShape) / sizeof(std::uint64_t),
                                          std::uint64_t{1} << 45);
  const std::size_t bytes = damage.size() * sizeof(std::uint64_t);
  const ssize_t written = ::pwrite(writable, damage.data(), bytes,
                                   static_cast<off_t>(offsetof(lockstep::detail::SegmentHeader, shape)));
  ::close(writable);
  REQUIRE(written == static_cast<ssize_t>(bytes));
  CHECK(file.described("rule") == "Lion, slots m");
  CHECK(file.state().round.total == k_replicas);
}

TEST_CASE("top session_file: sessions without a training", "[tools][top]") {
  const lockstep::test::SessionFolder folder;
  const lockstep::TokenQueue queue(lockstep::SharedMemory{.name = "queue", .directory = folder.path()});
  CHECK_THROWS_WITH(SessionFile(folder.path() + "/lockstep.queue"), "it holds no training: token queue");
  const lockstep::ConditionalAccumulator<float, lockstep::SharedMemory> sum(
      {.shape = lockstep::Shape{2}}, {.name = "sum", .directory = folder.path()});
  CHECK_THROWS_WITH(SessionFile(folder.path() + "/lockstep.sum"),
                    "it holds no training: accumulator: dense, float32, shape (2)");
}

TEST_CASE("top session_file: a training with accumulators is not shown", "[tools][top]") {
  const lockstep::test::SessionFolder folder;
  lockstep::Variables<float> variables;
  variables.add("w", Eigen::Vector2f(0, 0));
  const lockstep::VariableReplicas trainer(
      lockstep::Sgd{}, variables, lockstep::VariableOptions{},
      lockstep::SharedMemory{.name = "by-variable", .directory = folder.path()});
  CHECK_THROWS_WITH(SessionFile(folder.path() + "/lockstep.by-variable"),
                    "it is a training of VariableReplicas, which is not shown");
}

TEST_CASE("top session_file: a line on a lock names a place", "[tools][top]") {
  const auto line = [](const char* kind, const char* access, std::int64_t first, std::int64_t last) {
    const std::int64_t start = std::int64_t{1} << 40;
    return "lock:\t1: " + std::string(kind) + "  ADVISORY  " + access + " -1 00:1b:3982 " +
           std::to_string(start + first) + ' ' + std::to_string(start + last);
  };
  CHECK(top::place_of_lock(line("OFDLCK", "WRITE", 3, 3)) == 0);
  CHECK(top::place_of_lock(line("OFDLCK", "WRITE", 130, 130)) == 127);
  CHECK(top::place_of_lock(line("OFDLCK", "WRITE", 131, 131)) == -1);
  CHECK(top::place_of_lock(line("OFDLCK", "WRITE", 2, 2)) == -1);  // a visitor
  CHECK(top::place_of_lock(line("OFDLCK", "READ", 1, 1)) == -1);   // attached
  CHECK(top::place_of_lock(line("POSIX", "WRITE", 3, 3)) == -1);
  CHECK(top::place_of_lock(line("OFDLCK", "WRITE", 3, 4)) == -1);
  CHECK(top::place_of_lock("lock:\t1: OFDLCK  ADVISORY  WRITE -1 00:1b:3982 0 EOF") == -1);
  CHECK(top::place_of_lock("pos:\t0") == -1);
  CHECK(top::place_of_lock("") == -1);
}
