// SPDX-License-Identifier: MIT
#include "session_file.hpp"

#include <lockstep/sync/description.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>

namespace top {
namespace {

namespace fs = std::filesystem;
using lockstep::detail::Control;
using lockstep::detail::reason;
using lockstep::detail::Segment;
using lockstep::detail::SegmentHeader;
using lockstep::detail::SegmentShape;
using lockstep::detail::SharedFile;
using lockstep::protocol::Place;
using lockstep::protocol::Round;

constexpr int k_attempts = 10'000;  // to catch a moment between two transitions

struct stat status_of(const SharedFile& file) {
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) throw Unreadable("cannot ask for its size: " + reason());
  return status;
}

SharedFile opened(const std::string& path) {
  SharedFile file(path, O_NOFOLLOW | O_NONBLOCK);
  if (!file) throw Unreadable("cannot open it: " + reason());
  return file;
}

/// The header is read into memory of this process first: nothing is mapped before it is known to be there.
SegmentShape checked_shape(const SharedFile& file) {
  const struct stat status = status_of(file);
  if (!S_ISREG(status.st_mode)) throw Unreadable("it is no file");
  alignas(SegmentHeader) std::array<std::byte, sizeof(SegmentHeader)> raw{};
  const ssize_t size = ::pread(file.number(), raw.data(), raw.size(), 0);
  const auto& header = *reinterpret_cast<const SegmentHeader*>(raw.data());
  if (size < static_cast<ssize_t>(sizeof header.magic) || header.magic != SegmentHeader::k_magic)
    throw Unreadable("it is no segment of lockstep");
  if (size < static_cast<ssize_t>(raw.size()) || header.format == 0)
    throw Unreadable("it is not complete: a process is making it, or was killed while it did");
  const std::string fault = lockstep::detail::fault_of(header, static_cast<std::uint64_t>(status.st_size));
  if (!fault.empty()) throw Unreadable(fault);
  return header.shape;
}

/// Copies whole words, each at once and in order, from where others write.
void copy_words(const std::byte* from, std::byte* to, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
    auto& shared = *reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from + i));
    const std::uint64_t word = std::atomic_ref(shared).load(std::memory_order_acquire);
    std::memcpy(to + i, &word, sizeof word);
  }
}

/// Calls `use(file)` for each open file of each process that is the same as `wanted`.
template <class F>
void for_each_holder(const struct stat& wanted, F&& use) {
  std::error_code ignored;  // processes end, and those of others cannot be looked at
  for (fs::directory_iterator process("/proc", ignored), end; process != end; process.increment(ignored)) {
    const std::string name = process->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    for (fs::directory_iterator file(process->path() / "fd", ignored); file != end; file.increment(ignored)) {
      struct stat status {};
      if (::stat(file->path().c_str(), &status) == 0 && status.st_dev == wanted.st_dev &&
          status.st_ino == wanted.st_ino)
        use(static_cast<pid_t>(std::stol(name)), process->path() / "fdinfo" / file->path().filename());
    }
  }
}

}  // namespace

ReadOnlyMapping::ReadOnlyMapping(int file, std::size_t bytes) : bytes_(bytes) {
  void* const address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  if (address == MAP_FAILED) throw Unreadable("cannot map it: " + reason());
  base_ = static_cast<const std::byte*>(address);
}

ReadOnlyMapping::~ReadOnlyMapping() { ::munmap(const_cast<std::byte*>(base_), bytes_); }

SessionFile::SessionFile(const std::string& path)
    : file_(opened(path)),
      shape_(checked_shape(file_)),
      plan_(shape_),
      mapping_(file_.number(), plan_.memory) {
  expect_known_layout();
}

void SessionFile::expect_known_layout() const {
  const std::string whole = description();
  const std::string first_line = whole.substr(0, whole.find('\n'));
  if (described("rule").empty()) throw Unreadable("it holds no training: " + first_line);
  if (first_line == "one accumulator per variable")
    throw Unreadable("it is a training of VariableReplicas, which is not shown");
  const std::string made_by = described("build"), mine = lockstep::detail::build_text();
  const auto version = [](const std::string& build) { return build.substr(0, build.find(',')); };
  if (version(made_by) != version(mine))
    throw Unreadable("it was made by '" + version(made_by) + "', this is for '" + version(mine) + "'");
  const std::string state = std::to_string(sizeof(Control)) + " bytes";
  if (shape_.state != sizeof(Control) || !described("state").starts_with(state + ","))
    throw Unreadable("its state is not of " + state);
}

Control SessionFile::state() const {
  constexpr std::size_t head = offsetof(Control, round) + offsetof(Round, places);
  alignas(Control) std::array<std::byte, sizeof(Control)> raw;
  static_assert(head % sizeof(std::uint64_t) == 0 && sizeof(Place) % sizeof(std::uint64_t) == 0);
  Control control;
  const std::atomic<std::uint64_t>& commits = header().commits;
  for (int attempt = 0; attempt < k_attempts; ++attempt) {
    // A transition writes to the copy that is not valid; one more commit, and this one may be written to.
    const std::uint64_t before = commits.load(std::memory_order_acquire);
    const std::byte* const copy = mapping_.at(plan_.states + (before & 1) * plan_.stride);
    copy_words(copy, raw.data(), head);
    std::memcpy(static_cast<void*>(&control), raw.data(), head);
    const int places = std::clamp(control.round.total, 0, lockstep::k_max_replicas);
    const std::size_t bytes = static_cast<std::size_t>(places) * sizeof(Place);
    copy_words(copy + head, raw.data() + head, bytes);
    if (commits.load(std::memory_order_relaxed) == before) {
      std::memcpy(static_cast<void*>(control.round.places.data()), raw.data() + head, bytes);
      const std::string fault = state_fault(control, nullptr);
      if (!fault.empty()) throw Unreadable("its state is damaged: " + fault);
      return control;
    }
    std::this_thread::yield();
  }
  throw Unreadable("its state changes faster than it can be read");
}

bool SessionFile::is_removed() const { return status_of(file_).st_nlink == 0; }

std::string SessionFile::note() const {
  const std::size_t length = header().noted.load(std::memory_order_acquire);
  return {header().note.data(), std::min(length, header().note.size())};
}

std::string SessionFile::description() const {
  return {reinterpret_cast<const char*>(mapping_.at(plan_.description)),
          static_cast<std::size_t>(shape_.description)};
}

std::string SessionFile::described(const std::string& subject) const {
  std::istringstream lines(description());
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(subject + ": ")) return line.substr(subject.size() + 2);
  return {};
}

std::vector<pid_t> SessionFile::processes(int places) const {
  std::vector<pid_t> found(static_cast<std::size_t>(places), 0);
  for_each_holder(status_of(file_), [&](pid_t process, const fs::path& description) {
    std::ifstream lines(description);
    for (std::string line; std::getline(lines, line);)
      if (const int place = place_of_lock(line); place >= 0 && place < places)
        found[static_cast<std::size_t>(place)] = process;
  });
  return found;
}

int place_of_lock(const std::string& line) {
  // lock:	1: OFDLCK  ADVISORY  WRITE -1 00:1b:3982 1099511627779 1099511627779
  std::istringstream words(line);
  std::string title, number, kind, strength, access, owner, file;
  std::int64_t first = 0, last = 0;
  words >> title >> number >> kind >> strength >> access >> owner >> file >> first >> last;
  if (!words || title != "lock:" || kind != "OFDLCK" || access != "WRITE" || first != last) return -1;
  const std::int64_t place = first - SharedFile::k_first_lock - Segment::k_first_place;
  return place >= 0 && place < lockstep::k_max_replicas ? static_cast<int>(place) : -1;
}

}  // namespace top
