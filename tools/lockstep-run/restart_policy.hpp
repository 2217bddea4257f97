// SPDX-License-Identifier: MIT
/// @file
/// Which replicas are started again.
#pragma once

#include "ending.hpp"

namespace launcher {

/// A replica that died by a signal or with another status than 0 is started again, up to `limit` times. One
/// that could not be executed is not: it would fail again.
struct RestartPolicy {
  int limit = 0;  ///< restarts of each replica

  /// @param restarts how often this replica was restarted before
  bool restarts(const Ending& ending, int restarts) const {
    return !ending.is_success() && ending.kind != Ending::Kind::not_started && restarts < limit;
  }
};

}  // namespace launcher
