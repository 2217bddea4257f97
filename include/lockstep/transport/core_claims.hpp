// SPDX-License-Identifier: MIT
/// @file
/// Cores for threads that begin together. Some systems put each on the core of the thread that starts it,
/// where they take turns until the balance of load is looked at, tens of milliseconds later.
#pragma once

#include <lockstep/config.hpp>

#include <array>
#include <cstddef>
#include <mutex>

#if defined(__linux__)
#include <sched.h>
#endif

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

#if defined(__linux__)

/// Moves this thread to a core and lets it be moved on to any of `allowed`, its own mask.
inline void move_to_core(std::size_t core, const cpu_set_t& allowed) noexcept {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  if (::sched_setaffinity(0, sizeof only, &only) == 0) ::sched_setaffinity(0, sizeof allowed, &allowed);
}

#endif

/// Which cores the threads of one team have begun on. Where the system has put them is changed only if two
/// are on one core and another one has fewer, and nobody is bound to a core: the system may move them on.
class CoreClaims {
 public:
  static constexpr std::size_t k_cores = 1024;  // numbers that a `cpu_set_t` has

  /// Called by each thread of the team when it begins. Does nothing where cores cannot be told apart.
  void claim() noexcept {
#if defined(__linux__)
    cpu_set_t allowed;
    const int here = ::sched_getcpu();
    if (here < 0 || static_cast<std::size_t>(here) >= k_cores ||
        ::sched_getaffinity(0, sizeof allowed, &allowed) != 0)
      return;
    const std::size_t mine = claim(static_cast<std::size_t>(here),
                                   [&](std::size_t core) { return CPU_ISSET(core, &allowed) != 0; });
    if (mine != static_cast<std::size_t>(here)) move_to_core(mine, allowed);
#endif
  }

  /// Claims one of the allowed cores for a thread that runs on `here` and returns it: that one, or the next
  /// after it with the fewest claims if it has more.
  /// @param allowed called with numbers of cores below `k_cores`.
  template <class Allowed>
  std::size_t claim(std::size_t here, Allowed&& allowed) {
    const std::lock_guard lock(mutex_);
    std::size_t best = here;
    for (std::size_t ahead = 1; ahead < k_cores; ++ahead) {
      const std::size_t core = (here + ahead) % k_cores;
      if (claims_[core] < claims_[best] && allowed(core)) best = core;
    }
    ++claims_[best];
    return best;
  }

 private:
  std::mutex mutex_;
  std::array<int, k_cores> claims_{};  // by core
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
