// SPDX-License-Identifier: MIT
/// @file
/// Which replicas are started again, and when.
#pragma once

#include "ending.hpp"

#include <cerrno>
#include <chrono>
#include <optional>

namespace launcher {

/// A replica that died by a signal or with another status than 0 is started again, up to `limit` times. One
/// that could not be executed is not: it would fail again. But if the system had no room for it at a restart,
/// the start is tried again for some time.
struct RestartPolicy {
  static constexpr int k_retries = 7;                             ///< of one restart, in 12.7 s
  static constexpr std::chrono::milliseconds k_first_delay{100};  ///< doubled each time

  int limit = 0;  ///< restarts of each replica

  /// @param restarts how often this replica was restarted before
  bool restarts(const Ending& ending, int restarts) const {
    return !ending.is_success() && ending.kind != Ending::Kind::not_started && restarts < limit;
  }

  /// When a start that has failed is tried again; nothing if it is not.
  /// @param restart which restart it is; 0: the first start. @param retries how often it was tried again
  /// before
  static std::optional<std::chrono::milliseconds> retry_after(const Ending& ending, int restart,
                                                              int retries) {
    // Too many processes, or no memory: others may end.
    const bool is_passing =
        ending.kind == Ending::Kind::not_started && (ending.code == EAGAIN || ending.code == ENOMEM);
    if (!is_passing || restart < 1 || retries >= k_retries) return {};
    return k_first_delay * (1 << retries);
  }
};

}  // namespace launcher
