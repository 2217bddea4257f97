// SPDX-License-Identifier: MIT
// The file of a session: space, permissions, strangers, damage.
#include "processes/scenario.hpp"

#include <algorithm>
#include <atomic>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <sys/mount.h>
#include <sys/stat.h>
#include <utility>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// A trainer of one replica over the session "test", attached.
struct Attached {
  explicit Attached(const std::string& folder, Index size = 10)
      : w(variables.add("w", Eigen::VectorXd::Zero(size))),
        trainer(Sgd{1.0}, variables, {.replicas_to_aggregate = 1},
                SharedMemory{.name = "test", .directory = folder, .patience = 30s}) {}
  Variables<double> variables;
  Handle<Eigen::VectorXd, double> w;
  SyncReplicas<Sgd, SharedMemory, double> trainer;
};

/// What attaching says; empty if it works.
std::string attach(const std::string& folder, Index size = 10) {
  try {
    const Attached attached(folder, size);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string file_in(const SessionFolder& folder) { return folder.path() + "/lockstep.test"; }

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
std::string read(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(bytes).str();
}

/// Of the mappings of files in a folder, in this process.
std::size_t bytes_on_large_pages(const std::string& folder) {
  std::ifstream file("/proc/self/smaps");
  std::size_t bytes = 0;
  bool is_there = false;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    std::size_t kilobytes = 0;
    words >> key;
    if (key.find('-') != std::string::npos) is_there = line.find(folder) != std::string::npos;
    if (is_there && key == "ShmemPmdMapped:" && words >> kilobytes) bytes += kilobytes * 1024;
  }
  return bytes;
}

}  // namespace

TEST_CASE("a segment has mode 0600 and is gone when the last one leaves", "[processes][segment]") {
  const SessionFolder folder;
  {
    const Attached attached(folder.path());
    struct stat status {};
    REQUIRE(::stat(file_in(folder).c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    // Reserved, not only promised.
    CHECK(status.st_blocks * 512 >= status.st_size);
  }
  CHECK(folder.files().empty());
}

TEST_CASE("a large segment is on large pages, in whoever attaches it", "[processes][segment]") {
  const Watchdog watchdog;
  constexpr std::size_t large = detail::k_large_page;
  const SessionFolder folder;
  // What the system can do with a file of the same folder.
  {
    detail::SharedFile file(folder.path(), O_TMPFILE, 0600);
    REQUIRE(file);
    REQUIRE(::posix_fallocate(file.number(), 0, 2 * large) == 0);
    std::byte* const mapped = file.map(2 * large, folder.path());
    CHECK(reinterpret_cast<std::uintptr_t>(mapped) % large == 0);
    detail::move_to_large_pages(mapped, 2 * large, Clock::now() + 30s);
    if (bytes_on_large_pages(folder.path()) == 0) SKIP("the system gives /dev/shm no large pages");
  }
  using Numbers = SharedMemory::Session<int>;
  const SharedMemory net{.name = "test", .directory = folder.path()};
  const SessionSpec spec{.bytes = 5 * large};
  Numbers session(net, 0, spec);
  std::fill(session.memory().begin(), session.memory().end(), std::byte{7});
  const Shared<std::atomic<std::size_t>> found_by_other;
  Process other([&] {
    Numbers again(net, 0, spec);
    const auto memory = again.memory();
    const bool is_right =
        std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{7}; });
    *found_by_other = is_right ? bytes_on_large_pages(folder.path()) : 0;
    return 0;
  });
  REQUIRE(other.wait() == 0);
  CHECK(bytes_on_large_pages(folder.path()) >= 4 * large);
  CHECK(*found_by_other >= 4 * large);
}

TEST_CASE("names that are no file names are refused", "[processes][segment]") {
  Variables<double> variables;
  (void)variables.add("w", Eigen::VectorXd::Zero(10));
  // The last one would be the file of session "a".
  for (const std::string& name :
       {std::string(), std::string("a/b"), std::string("../x"), std::string("a\0b", 3)})
    CHECK_THROWS_AS(
        (SyncReplicas{Sgd{1.0}, variables, {.replicas_to_aggregate = 1}, SharedMemory{.name = name}}),
        InvalidArgument);
}

TEST_CASE("BR-107: lack of space is an error with path, needed and free bytes",
          "[processes][segment][BR-107]") {
  const SessionFolder folder;
  const std::string mount = folder.path() + "/small";
  std::filesystem::create_directory(mount);
  if (::mount("tmpfs", mount.c_str(), "tmpfs", 0, "size=1m") != 0)
    SKIP("mounting a tmpfs of 1 MiB needs root");
  {
    constexpr Index size = (Index{8} << 20) / Index{sizeof(double)};  // 8 MiB
    const std::string said = attach(mount, size);
    INFO(said);
    CHECK(has(said, mount + "/lockstep.test"));
    const std::string before = "cannot reserve ";
    REQUIRE(has(said, before));
    CHECK(std::stoll(said.substr(said.find(before) + before.size())) >= 8'388'608);
    CHECK(has(said, "No space left on device"));
    CHECK(has(said, "free in its directory: 1048576 bytes"));
    CHECK(std::filesystem::is_empty(mount));
    // Filled to the last 4 KiB.
    write(mount + "/full", std::string(1048576 - 4096, 'x'));
    CHECK(has(attach(mount, 1000), "free in its directory: 4096 bytes"));
    CHECK(!std::filesystem::exists(mount + "/lockstep.test"));
    std::filesystem::remove(mount + "/full");
    CHECK(attach(mount, 1000) == "");
  }
  ::umount(mount.c_str());
}

TEST_CASE("BR-110: who is alive is not asked by process number", "[processes][segment][BR-110]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const Shared<FoundByAll<2>> all;
  const Plan plan{{.replicas_to_aggregate = 2, .departure = Departure::wait, .deadline = 30s}, folder.path()};
  Process zero([&] { return train(plan, 0, all->replica[0], steps(1, 4)); });
  Process one([&] {
    return train(plan, 1, all->replica[1], [](auto& replica, const auto& w, Found& found) {
      steps(1, 2)(replica, w, found);
      for (;;) ::pause();
    });
  });
  wait_until([&] { return all->replica[1].rounds == 2; });
  one.send(SIGKILL);
  (void)one.wait();
  // Whatever process numbers the file holds now belong to this process, which lives and is no replica.
  {
    const int file = ::open(file_in(folder).c_str(), O_RDWR);
    const std::int64_t stranger = ::getpid();
    REQUIRE(::pwrite(file, &stranger, sizeof(stranger), offsetof(detail::SegmentHeader, holder)) ==
            sizeof(stranger));
    ::close(file);
  }
  Process again([&] { return train(plan, 1, all->replica[1], steps(1, 4)); });
  CHECK(again.wait() == 0);
  CHECK(zero.wait() == 0);
  CHECK(all->replica[0].value == -4);
  CHECK(all->replica[1].value == -4);
  CHECK(all->replica[1].incarnation == 2);
}

TEST_CASE("BR-117: a file that may not be opened is an error at once", "[processes][segment][BR-117]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  write(file_in(folder), "secret");
  REQUIRE(::chmod(file_in(folder).c_str(), 0) == 0);
  REQUIRE(::chmod(folder.path().c_str(), 0777) == 0);
  const Shared<std::array<char, 400>> said;
  Process stranger([&] {
    if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return 5;
    const bool at_once = is_within(1s, [&] {
      const auto begin = Clock::now();
      std::strncpy(said->data(), attach(folder.path()).c_str(), said->size() - 1);
      return Clock::now() - begin;
    });
    return at_once ? 0 : 6;
  });
  CHECK(stranger.wait() == 0);
  CHECK(has(said->data(), file_in(folder)));
  CHECK(has(said->data(), "Permission denied"));
}

TEST_CASE("a folder that does not exist is named", "[processes][segment]") {
  const std::string said = attach("/nonexistent/folder");
  CHECK(has(said, "/nonexistent/folder/lockstep.test"));
  CHECK(has(said, "No such file or directory"));
}

TEST_CASE("a stranger's file is neither used nor removed", "[processes][segment]") {
  const SessionFolder folder;
  write(file_in(folder), "somebody's letters");
  CHECK(has(attach(folder.path()), "no segment of lockstep"));
  CHECK(read(file_in(folder)) == "somebody's letters");
}

TEST_CASE("BR-105: an unfinished or old file of a dead process is replaced", "[processes][segment][BR-105]") {
  const SessionFolder folder;
  write(file_in(folder), "");
  CHECK(attach(folder.path()) == "");
  write(file_in(folder), std::string(100'000, '\0'));
  CHECK(attach(folder.path()) == "");
  write(file_in(folder), "lockstep" + std::string(20, '\x7f'));
  CHECK(attach(folder.path()) == "");
  CHECK(folder.files().empty());
}

TEST_CASE("a policy that differs is told by its name", "[processes][segment]") {
  const SessionFolder folder;
  const Attached attached(folder.path());
  Variables<double> variables;
  variables.add("w", Eigen::VectorXd::Zero(10));
  std::string said;
  try {
    const SyncReplicas other{Sgd{1.0},
                             variables,
                             {.replicas_to_aggregate = 1, .departure = Departure::stop},
                             SharedMemory{.name = "test", .directory = folder.path()}};
  } catch (const LayoutMismatch& error) {
    said = error.what();
  }
  CHECK(has(said, "who joins has 'departure: stop', the session has 'departure: redistribute'"));
}

TEST_CASE("a damaged segment in use is refused, whatever is wrong with it", "[processes][segment]") {
  const Watchdog watchdog(120s);
  const SessionFolder folder;
  // A good one, to damage copies of.
  std::string good;
  {
    const Attached attached(folder.path());
    good = read(file_in(folder));
  }
  // Somebody is attached, so the file is not simply replaced.
  const auto attach_to = [&](const std::string& bytes, Index size = 10) {
    write(file_in(folder), bytes);
    const detail::SharedFile user(file_in(folder), 0);
    REQUIRE(user.try_share(detail::Segment::k_attached));
    const std::string said = attach(folder.path(), size);
    std::filesystem::remove(file_in(folder));
    return said;
  };
  CHECK(attach_to(good) == "");
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{7}, std::size_t{100}, sizeof(detail::SegmentHeader), good.size() - 1}) {
    INFO(length << " bytes");
    CHECK(has(attach_to(good.substr(0, length)), "cannot attach"));
  }
  CHECK(has(attach_to(good + 'x'), "damaged"));
  constexpr std::size_t k_compared =
      offsetof(detail::SegmentHeader, shape) + sizeof(detail::SegmentHeader::shape);
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = good;
    for (int k = 0; k < 3; ++k) bytes[random() % k_compared] ^= static_cast<char>(1 + random() % 255);
    if (bytes == good) continue;
    CHECK(attach_to(bytes) != "");
  }
  const auto with = [&](std::size_t offset, auto value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
    return bytes;
  };
  // A mutex that a dead process holds, or none at all.
  for (const std::uint32_t word : {1U, 12345U, 0x40000000U, 0x80000000U, 0xffffffffU})
    CHECK(attach_to(with(offsetof(detail::SegmentHeader, mutex), word)) == "");
  for (const std::uint32_t given_out : {0U, 0x3ffffffeU, 0x3fffffffU, 0xffffffffU})
    CHECK(attach_to(with(offsetof(detail::SegmentHeader, owners), given_out)) == "");
  // What would lead to memory that is not the session's, or to values that their types do not have.
  alignas(detail::SegmentHeader) std::array<std::byte, sizeof(detail::SegmentHeader)> raw;
  std::memcpy(raw.data(), good.data(), raw.size());
  const auto& header = *reinterpret_cast<const detail::SegmentHeader*>(raw.data());
  const detail::SegmentPlan plan(header.shape);
  const std::size_t state = plan.states + (header.commits & 1) * plan.stride;
  const std::size_t round = state + offsetof(detail::Control, round);
  const std::size_t place = round + offsetof(protocol::Round, places);
  for (const std::string& bytes :
       {with(round + offsetof(protocol::Round, total), 1 << 30),
        with(round + offsetof(protocol::Round, total), 0),
        with(round + offsetof(protocol::Round, required_setting), 2),
        with(round + offsetof(protocol::Round, phase), '\3'),
        with(round + offsetof(protocol::Round, culprit), 1),
        with(round + offsetof(protocol::Round, readers), 1),
        with(place + offsetof(protocol::Place, published), '\2'),
        with(place + offsetof(protocol::Place, seat), '\4'),
        with(place + offsetof(protocol::Place, served), 3),
        with(place + offsetof(protocol::Place, last_poisons), '\2'),
        with(state + offsetof(detail::Control, planner), 1),
        with(state + offsetof(detail::Control, initialised), '\2'),
        with(state + offsetof(detail::Control, plan) + offsetof(UpdatePlan, grad_steps), std::int64_t{0})})
    CHECK(has(attach_to(bytes), "its state is damaged"));
  // A program with other variables does not look into a damaged state either.
  CHECK(has(attach_to(with(round + offsetof(protocol::Round, total), 1 << 30), 20), "who joins has"));
}
