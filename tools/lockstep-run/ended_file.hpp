// SPDX-License-Identifier: MIT
/// @file
/// Tells the replicas which of them do not come any more.
#pragma once

#include "ending.hpp"
#include "file_descriptor.hpp"

#include <cstddef>
#include <string>

namespace launcher {

/// A file in memory that programs may open under `path()`, as long as lockstep-run lives. What is in it is
/// said where it is read, at lockstep::detail::ended_file_title().
class EndedFile {
 public:
  /// @throws std::system_error
  EndedFile(const std::string& session, std::size_t replicas);

  /// Under which name other processes may read it.
  std::string path() const;

  /// This replica has ended for good.
  void note(std::size_t replica, const Ending& ending) const;

 private:
  FileDescriptor file_;
  std::size_t title_size_;
};

}  // namespace launcher
