// SPDX-License-Identifier: MIT
/// @file
/// The file that the processes of a session map: who makes it, who may use it, who removes it.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/large_pages.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/robust_mutex.hpp>
#include <lockstep/transport/shared_file.hpp>
#include <lockstep/transport/wait.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

#if defined(__linux__)

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Sizes of the parts of a segment, in bytes.
struct SegmentShape {
  std::uint64_t state = 0;        ///< of one of the two copies
  std::uint64_t description = 0;  ///< of the text that all must agree on
  std::uint64_t memory = 0;
};

/// At the start of the file.
struct alignas(k_alignment) SegmentHeader {
  static constexpr std::array<char, 8> k_magic{'l', 'o', 'c', 'k', 's', 't', 'e', 'p'};
  static constexpr std::uint64_t k_format = 3;

  std::array<char, 8> magic;
  std::uint64_t format;
  std::uint64_t bytes;  ///< of the whole file
  SegmentShape shape;
  alignas(k_alignment) RobustMutex mutex;
  std::atomic<std::uint32_t> owners;                        ///< numbers for its owners, given out so far
  alignas(k_alignment) std::atomic<std::uint64_t> commits;  ///< the lowest bit selects the valid copy
  std::atomic<std::int64_t> holder;                         ///< process inside the mutex, for texts only
  alignas(k_alignment) std::atomic<std::uint32_t> noted;    ///< length of `note`
  std::array<char, 500> note;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

constexpr std::uint64_t rounded_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/// Where the parts lie. The memory starts on a page.
struct SegmentPlan {
  explicit SegmentPlan(const SegmentShape& shape)
      : description(sizeof(SegmentHeader)),
        states(description + rounded_up(shape.description, k_alignment)),
        stride(rounded_up(shape.state, k_alignment)),
        memory(rounded_up(states + 2 * stride, k_page)),
        bytes(memory + rounded_up(shape.memory, k_page)) {}
  std::uint64_t description, states, stride, memory, bytes;
};

/// What is wrong with the header of a file of `bytes` bytes; empty if it may be used. Nothing in it is
/// trusted.
inline std::string fault_of(const SegmentHeader& header, std::uint64_t bytes) {
  if (header.magic != SegmentHeader::k_magic) return "it is no segment of lockstep";
  if (header.format != SegmentHeader::k_format)
    return text("it has format ", header.format, ", this program knows format ", SegmentHeader::k_format);
  constexpr std::uint64_t limit = k_most_session_bytes;
  const SegmentShape& shape = header.shape;
  if (shape.state > limit || shape.description > limit || shape.memory > limit)
    return "its header is damaged: a part is larger than any memory";
  if (SegmentPlan(shape).bytes != header.bytes || header.bytes != bytes)
    return text("its header is damaged: parts of ", SegmentPlan(shape).bytes, " bytes, said to be ",
                header.bytes, ", in a file of ", bytes);
  return {};
}

/// An attached segment. Whoever comes first makes it, the last one out removes it; both under the *gate*, a
/// lock that a dead process does not keep. A file that nobody is attached to is a leftover and is replaced.
class Segment {
 public:
  /// Files of sessions are called this and the name of the session, which has its limit.
  static constexpr std::string_view k_prefix = "lockstep.";
  static constexpr std::size_t k_longest_name = 200;
  static std::string path_of(const std::string& directory, std::string_view name) {
    return text(directory, '/', k_prefix, name);
  }
  /// Of a session: not empty, no path, and the system sees all of it.
  static bool is_name(std::string_view name) {
    constexpr std::string_view never{"/\0", 2};
    return !name.empty() && name.find_first_of(never) == std::string_view::npos &&
           name.size() <= k_longest_name;
  }

  struct Where {
    std::string directory, name;
    std::chrono::milliseconds patience;
    std::string path() const { return path_of(directory, name); }
  };

  /// @param fill writes the description and the states of a new segment, `fill(*this)`.
  /// @throws SystemError with path and reason; TimeoutError if others do not let go of the gate.
  template <class Fill>
  Segment(const Where& where, const SegmentShape& shape, Fill&& fill) : path_(where.path()) {
    const Deadline deadline(where.patience);
    for (int sweeps = 0;; ++sweeps) {
      if (open_existing()) {
        fault_point("attach: opened");
        pass_gate(deadline);
        if (!is_still_there()) continue;
        if (file_.is_locked_elsewhere(k_attached)) {
          attach();
          return;
        }
        remove_leftover();
        continue;
      }
      if (sweeps == 0) remove_leftovers_of_others(where);
      if (!create(where)) continue;
      make(shape, fill, deadline);
      return;
    }
  }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  ~Segment() {
    if (!file_ || !base_) return;
    // Behind the gate nobody can come in between the look and the removal, and of two who leave at the same
    // time the second one sees that it is the last.
    bool is_behind_gate = false;
    for (int i = 0; i < 1000 && !is_behind_gate; ++i) {
      is_behind_gate = file_.try_lock(k_gate);
      if (!is_behind_gate) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    file_.unlock(k_attached);
    fault_point("leave: detached");
    if (!is_behind_gate) return;  // a leftover for the next one who starts
    if (!file_.is_locked_elsewhere(k_attached) && is_still_there()) ::unlink(path_.c_str());
  }

  const std::string& path() const { return path_; }
  const SharedFile& file() const { return file_; }
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }
  SegmentPlan plan() const { return SegmentPlan(header().shape); }
  std::string_view description() const {
    return {reinterpret_cast<const char*>(base_ + plan().description), header().shape.description};
  }
  std::byte* at(std::uint64_t offset) const { return base_ + offset; }

  /// False if the owner of the mutex is alive and does not let go.
  bool lock(std::chrono::milliseconds patience) const {
    return header().mutex.lock(owner_, patience, [this](std::uint32_t owner) {
      return file_.is_locked_elsewhere(k_first_owner + owner);
    });
  }
  void unlock() const noexcept { header().mutex.unlock(); }

  static constexpr std::int64_t k_gate = 0, k_attached = 1, k_visitor = 2, k_first_place = 3,
                                k_first_owner = 1 << 20;

 private:
  SystemError failed(const char* what, int error = errno) const {
    return SystemError(text(path_, ": cannot ", what, ": ", reason(error)));
  }

  bool open_existing() {
    file_ = SharedFile(path_, O_NOFOLLOW);
    if (file_) return true;
    if (errno != ENOENT) throw failed("open the segment");
    return false;
  }

  void pass_gate(const Deadline& deadline) {
    auto pause = std::chrono::microseconds(50);
    while (!file_.try_lock(k_gate)) {
      if (deadline.passed())
        throw TimeoutError(
            text(path_, ": another process has been creating or attaching the segment for ",
                 std::chrono::duration_cast<std::chrono::milliseconds>(deadline.timeout()).count(), " ms"),
            {});
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::microseconds(5000));
    }
  }

  /// The path still names the open file.
  static bool names(const std::string& path, const SharedFile& file) {
    struct stat open {
    }, named{};
    return ::fstat(file.number(), &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
           open.st_ino == named.st_ino && open.st_dev == named.st_dev;
  }
  bool is_still_there() const { return names(path_, file_); }

  /// The gate is held, somebody else is attached: the file is complete, or it is not ours.
  void attach() {
    struct stat status {};
    if (::fstat(file_.number(), &status) != 0) throw failed("ask for the size");
    const auto bytes = static_cast<std::uint64_t>(status.st_size);
    alignas(SegmentHeader) std::array<std::byte, sizeof(SegmentHeader)> raw{};
    if (bytes < raw.size() ||
        ::pread(file_.number(), raw.data(), raw.size(), 0) != static_cast<ssize_t>(raw.size()))
      throw SystemError(text(path_, ": cannot attach: it has ", bytes, " bytes, not even a header"));
    const auto& header = *reinterpret_cast<const SegmentHeader*>(raw.data());
    if (const std::string fault = fault_of(header, bytes); !fault.empty())
      throw SystemError(text(path_, ": cannot attach: ", fault));
    base_ = file_.map(bytes, path_);
    settle();
  }

  /// Nobody is attached, and nobody can come in while the gate is held.
  void remove_leftover() {
    std::array<char, 8> magic{};
    const auto read = ::pread(file_.number(), magic.data(), magic.size(), 0);
    const bool unfinished = read <= 0 || magic == std::array<char, 8>{};
    if (!unfinished && magic != SegmentHeader::k_magic)
      throw SystemError(text(path_, ": the file is no segment of lockstep; remove it or take another name"));
    if (::unlink(path_.c_str()) != 0 && errno != ENOENT) throw failed("remove what a dead run has left");
    fault_point("create: leftover removed");
  }

  /// Sessions whose processes were all killed leave their file: it is removed by the next one that starts.
  static void remove_leftovers_of_others(const Where& where) {
    DIR* const directory = ::opendir(where.directory.c_str());
    if (!directory) return;
    while (const dirent* entry = ::readdir(directory)) {
      if (!std::string_view(entry->d_name).starts_with(k_prefix)) continue;
      const std::string path = where.directory + '/' + entry->d_name;
      const SharedFile file(path, O_NOFOLLOW | O_NONBLOCK);
      struct stat status {};
      if (!file || ::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode) ||
          status.st_uid != ::geteuid())
        continue;
      std::array<char, 8> magic{};
      if (::pread(file.number(), magic.data(), magic.size(), 0) != static_cast<ssize_t>(magic.size()) ||
          magic != SegmentHeader::k_magic)
        continue;
      if (file.try_lock(k_gate) && !file.is_locked_elsewhere(k_attached) && names(path, file))
        ::unlink(path.c_str());
    }
    ::closedir(directory);
  }

  /// A new file with the gate already held, under the name of the session. False if somebody was faster.
  bool create(const Where& where) {
    file_ = SharedFile(where.directory, O_TMPFILE, 0600);
    if (!file_) throw failed("create a file in the directory");
    (void)file_.try_lock(k_gate);
    fault_point("create: gate held");
    // So that what is left of it can be known for what it is. Whoever is attached makes it complete, not
    // this.
    const auto& magic = SegmentHeader::k_magic;
    (void)!::pwrite(file_.number(), magic.data(), magic.size(), 0);
    const std::string self = "/proc/self/fd/" + std::to_string(file_.number());
    if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      if (errno == EEXIST) return false;
      throw failed("create the file");
    }
    fault_point("create: named");
    return true;
  }

  template <class Fill>
  void make(const SegmentShape& shape, Fill& fill, const Deadline& deadline) {
    const SegmentPlan plan(shape);
    reserve(plan.bytes, deadline);
    fault_point("create: reserved");
    base_ = file_.map(plan.bytes, path_);
    // Others wait at the gate meanwhile: half of the time is theirs.
    move_to_large_pages(base_, plan.bytes, deadline.end() - deadline.timeout() / 2);
    fault_point("create: mapped");
    SegmentHeader& mine = header();
    mine.format = SegmentHeader::k_format;
    mine.bytes = plan.bytes;
    mine.shape = shape;
    fault_point("create: half filled");
    fill(*this);
    fault_point("create: filled");
    mine.magic = SegmentHeader::k_magic;  // where there was no space for it before
    settle();
  }

  /// From here on the file is in use, whoever else comes or goes.
  void settle() {
    if (!file_.try_share(k_attached)) throw failed("lock the segment");
    take_number();
    fault_point("attach: settled");
    file_.unlock(k_gate);
  }

  /// A number for the mutex, and the lock on its byte that says that its owner is there. Numbers come again
  /// after a thousand millions, or if the header is damaged: those of the living are passed over.
  void take_number() {
    for (int i = 0; i < 1000; ++i) {
      owner_ = header().owners.fetch_add(1, std::memory_order_relaxed) % RobustMutex::k_most_owners + 1;
      if (file_.try_lock(k_first_owner + owner_)) return;
    }
    throw failed("lock a byte of the segment");
  }

  /// While it lives, no signal reaches this thread.
  class SignalsHeld {
   public:
    SignalsHeld() {
      sigset_t all;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    SignalsHeld(const SignalsHeld&) = delete;
    SignalsHeld& operator=(const SignalsHeld&) = delete;
    ~SignalsHeld() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

   private:
    sigset_t before_;
  };

  /// All pages now, so that no store fails later. A signal makes a file system in memory give back all that a
  /// call has reserved, so signals wait meanwhile, and a call is for a piece: what was reserved before stays.
  void reserve(std::uint64_t bytes, const Deadline& deadline) {
    constexpr std::uint64_t k_piece = 16 << 20;
    int error = 0;
    for (std::uint64_t reserved = 0; reserved < bytes && error == 0;) {
      const std::uint64_t piece = std::min(k_piece, bytes - reserved);
      {
        const SignalsHeld held;
        error = ::posix_fallocate(file_.number(), static_cast<off_t>(reserved), static_cast<off_t>(piece));
      }
      if (error == 0)
        reserved += piece;
      else if (error == EINTR && !deadline.passed())
        error = 0;
    }
    if (error == 0) return;
    ::unlink(path_.c_str());
    (void)!::ftruncate(file_.number(), 0);  // what was reserved before it failed is free again
    struct statvfs space {};
    const bool known = ::fstatvfs(file_.number(), &space) == 0;
    throw SystemError(text(
        path_, ": cannot reserve ", bytes, " bytes: ", reason(error),
        known ? "; free in its directory: " : "",
        known ? std::to_string(static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize) + " bytes" : ""));
  }

  std::string path_;
  SharedFile file_;
  std::byte* base_ = nullptr;
  std::uint32_t owner_ = 0;  // of the mutex, as it knows this process
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END

#endif  // Linux
