// SPDX-License-Identifier: MIT
/// @file
/// A folder in memory with pages of 2 MiB, for this process and its children alone.
#pragma once

#include <array>
#include <cstdio>
#include <sched.h>
#include <stdlib.h>
#include <string>
#include <sys/mount.h>
#include <unistd.h>

namespace lockstep::bench {

/// A tmpfs with large pages in a mount namespace of its own, so that nothing of the system changes. Must be
/// made before there are threads and children.
class LargePageFolder {
 public:
  LargePageFolder() {
    std::array<char, 32> path{"/tmp/lockstep-pages-XXXXXX"};
    if (!mkdtemp(path.data())) return;
    path_ = path.data();
    is_mounted_ = unshare(CLONE_NEWNS) == 0 &&
                  mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                  mount("tmpfs", path_.c_str(), "tmpfs", 0, "huge=within_size,size=75%") == 0;
    if (!is_mounted_) std::perror("a folder with large pages (needs root)");
  }
  LargePageFolder(const LargePageFolder&) = delete;
  LargePageFolder& operator=(const LargePageFolder&) = delete;
  ~LargePageFolder() {
    if (is_mounted_) umount2(path_.c_str(), MNT_DETACH);
    if (!path_.empty()) rmdir(path_.c_str());
  }

  /// Empty if the system permits no such folder.
  std::string path() const { return is_mounted_ ? path_ : ""; }

 private:
  std::string path_;
  bool is_mounted_ = false;
};

}  // namespace lockstep::bench
