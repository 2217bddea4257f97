// SPDX-License-Identifier: MIT
/// @file
/// What `lockstep-run` tells the replicas that it has started.
#pragma once

#include <lockstep/config.hpp>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

#if defined(__linux__)

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// The value of an environment variable; empty if there is none.
inline std::string from_environment(const char* variable) {
  const char* const value = std::getenv(variable);
  return value ? value : "";
}

/// How the file begins that `LOCKSTEP_ENDED` names. Behind it is one character for each replica: '+' if its
/// program has ended with 0, '-' if it has ended otherwise and is not started again, else '.'.
inline std::string ended_file_title(std::string_view session) {
  return std::string("lockstep-run ").append(session).append("\n");
}

/// Why this replica does not come any more, as `lockstep-run` knows it now; empty if it may come.
inline std::string why_gone(int replica) {
  const std::string path = from_environment("LOCKSTEP_ENDED");
  if (path.empty()) return {};
  // It lies in /proc, where a container may have something else under this name.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return {};
  const std::string title = ended_file_title(from_environment("LOCKSTEP_SESSION"));
  std::array<char, 512> bytes;
  struct stat status {};
  const ssize_t size = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode)
                           ? ::pread(file, bytes.data(), bytes.size(), 0)
                           : 0;
  ::close(file);
  const std::string_view found(bytes.data(), static_cast<std::size_t>(size > 0 ? size : 0));
  const std::size_t at = title.size() + static_cast<std::size_t>(replica);
  if (!found.starts_with(title) || at >= found.size()) return {};
  if (found[at] == '+') return "its program has ended with status 0: the training is over";
  if (found[at] == '-') return "its program has ended and is not started again";
  return {};
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END

#endif  // Linux
