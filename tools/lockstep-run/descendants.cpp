// SPDX-License-Identifier: MIT
#include "descendants.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace launcher {
namespace {

/// From /proc/PID/stat, "PID (NAME) STATE PARENT ..."; the name may hold anything, so the last ')' counts.
std::optional<pid_t> parent_of(const std::filesystem::path& process) {
  std::ifstream file(process / "stat");
  std::string text;
  std::getline(file, text, '\0');  // the whole file: a name may hold newlines
  const std::size_t end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return {};  // it has ended meanwhile
  std::istringstream rest(text.substr(end_of_name + 1));
  char state = 0;
  pid_t parent = 0;
  rest >> state >> parent;
  return parent;
}

}  // namespace

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::set<pid_t> children() {
  std::set<pid_t> found;
  std::error_code error;  // without /proc there is nothing to see
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (std::all_of(name.begin(), name.end(), [](char c) { return '0' <= c && c <= '9'; }) &&
        parent_of(entry.path()) == getpid())
      found.insert(static_cast<pid_t>(std::stol(name)));
  }
  return found;
}

void kill_children(const std::set<pid_t>& spared) {
  std::set<pid_t> out_of_reach = spared;
  for (;;) {
    std::set<pid_t> left;
    const std::set<pid_t> all = children();
    std::set_difference(all.begin(), all.end(), out_of_reach.begin(), out_of_reach.end(),
                        std::inserter(left, left.end()));
    if (left.empty()) return;
    for (const pid_t child : left) {
      if (kill(child, SIGKILL) != 0) {
        out_of_reach.insert(child);  // it runs as another user
        continue;
      }
      while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }
}

}  // namespace launcher
