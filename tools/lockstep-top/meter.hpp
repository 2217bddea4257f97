// SPDX-License-Identifier: MIT
/// @file
/// What happens between two looks at a session.
#pragma once

#include "look.hpp"

#include <cstdint>
#include <vector>

namespace top {

/// What happened in an interval.
struct Rates {
  struct OfReplica {
    double waiting = 0;  ///< share of the samples in which it waited for others, 0 to 1
    double last = 0;     ///< share of the rounds that it was the last to complete, 0 to 1
  };
  double updates_per_second = 0;
  std::int64_t rounds = 0;          ///< that have ended
  std::vector<OfReplica> replicas;  ///< by place
  int slowest = -1;                 ///< the one that the others wait for most; -1: nobody stands out
};

/// Counts over an interval that starts with a look and ends with another.
class Meter {
 public:
  explicit Meter(Look first);
  /// A moment between them.
  void sample(const lockstep::protocol::Round& round);
  Rates rates(const Look& last) const;

 private:
  int slowest(const Look& last, const Rates& rates) const;

  Look first_;
  std::int64_t samples_ = 0;
  std::vector<std::int64_t> waiting_;  // samples, by place
};

}  // namespace top
