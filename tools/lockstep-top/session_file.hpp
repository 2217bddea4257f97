// SPDX-License-Identifier: MIT
/// @file
/// The file of a session, as somebody reads it who takes no part.
#pragma once

#include <lockstep/sync/control.hpp>
#include <lockstep/transport/segment.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <sys/types.h>
#include <vector>

namespace top {

/// The file cannot be read as a session; the text says why, without the path.
struct Unreadable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Bytes of a file that this process cannot write to.
class ReadOnlyMapping {
 public:
  /// @throws Unreadable
  ReadOnlyMapping(int file, std::size_t bytes);
  ReadOnlyMapping(const ReadOnlyMapping&) = delete;
  ReadOnlyMapping& operator=(const ReadOnlyMapping&) = delete;
  ~ReadOnlyMapping();
  const std::byte* at(std::uint64_t offset) const { return base_ + offset; }

 private:
  const std::byte* base_ = nullptr;
  std::size_t bytes_;
};

/// Reads without a lock: no process of the session can tell that it is looked at.
class SessionFile {
 public:
  /// @throws Unreadable unless it is a complete session of a trainer, of this version of lockstep.
  explicit SessionFile(const std::string& path);

  /// The state at one moment. Places beyond those in use are not read.
  /// @throws Unreadable if no moment can be caught, or if it is damaged.
  lockstep::detail::Control state() const;
  /// Why training has failed, if that was left.
  std::string note() const;
  /// The rest of the line `subject: ...` of what the processes agree on; empty if there is none.
  std::string described(const std::string& subject) const;

  /// A process takes part.
  bool is_in_use() const { return file_.is_locked_elsewhere(lockstep::detail::Segment::k_attached); }
  /// A process is coming or leaving.
  bool is_at_gate() const { return file_.is_locked_elsewhere(lockstep::detail::Segment::k_gate); }
  /// The file has no name any more: the last process has left.
  bool is_removed() const;
  /// A living replica sits at the place.
  bool is_held(int place) const {
    return file_.is_locked_elsewhere(lockstep::detail::Segment::k_first_place + place);
  }
  /// Process of the replica at each of the first `places` places, by the locks that the system shows; 0 where
  /// that is not known.
  std::vector<pid_t> processes(int places) const;

 private:
  const lockstep::detail::SegmentHeader& header() const {
    return *reinterpret_cast<const lockstep::detail::SegmentHeader*>(mapping_.at(0));
  }
  std::string description() const;
  /// @throws Unreadable
  void expect_known_layout() const;

  lockstep::detail::SharedFile file_;
  lockstep::detail::SegmentShape shape_;  // as it was checked; the header may be damaged later
  lockstep::detail::SegmentPlan plan_;
  ReadOnlyMapping mapping_;  // of what comes before the memory
};

/// The place whose lock a line of `/proc/PID/fdinfo/FD` shows; -1 if it shows no such lock.
int place_of_lock(const std::string& line);

}  // namespace top
