// SPDX-License-Identifier: MIT
#include "affinity.hpp"

#include <cerrno>
#include <cstddef>
#include <sched.h>
#include <system_error>

namespace launcher {
namespace {

/// A set of cores of any size: `cpu_set_t` ends at 1024.
using CoreSet = std::vector<cpu_set_t>;

std::size_t bytes(const CoreSet& set) { return set.size() * sizeof(cpu_set_t); }

}  // namespace

std::vector<int> allowed_cores() {
  CoreSet set(1);
  while (sched_getaffinity(0, bytes(set), set.data()) != 0) {
    if (errno != EINVAL || set.size() >= 1024)
      throw std::system_error(errno, std::generic_category(), "cannot read the affinity mask");
    set.resize(2 * set.size());  // the kernel's set is larger
  }
  std::vector<int> cores;
  for (std::size_t core = 0; core < 8 * bytes(set); ++core)
    if (CPU_ISSET_S(core, bytes(set), set.data())) cores.push_back(static_cast<int>(core));
  return cores;
}

bool pin_to_core(int core) {
  CoreSet set(static_cast<std::size_t>(core) / CPU_SETSIZE + 1);
  CPU_SET_S(static_cast<std::size_t>(core), bytes(set), set.data());
  return sched_setaffinity(0, bytes(set), set.data()) == 0;
}

}  // namespace launcher
