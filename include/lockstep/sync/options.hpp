// SPDX-License-Identifier: MIT
/// @file
/// Options of synchronous replicas, and what can be read about each of them.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/enumerator.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/runs.hpp>
#include <lockstep/optimizers/aggregation.hpp>
#include <lockstep/protocol/round.hpp>
#include <lockstep/reduction.hpp>
#include <lockstep/transport/wait.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// @throws InvalidArgument for a step that no count of updates can have, or from which one cannot go on.
inline void expect_step(const char* subject, std::int64_t step) {
  if (step < 0) throw_error<InvalidArgument>(subject, ": must not be negative, got ", step);
  if (step > std::int64_t{1} << 61) throw_error<InvalidArgument>(subject, ": at most 2^61, got ", step);
}

/// @param required R. @param total N, or 0 for R. @param gradients what R counts, in the plural.
/// @throws InvalidArgument unless R of them can come together.
inline void expect_replicas(int required, int total, int init_tokens, const char* gradients) {
  const auto expect = [](bool holds, auto&&... parts) {
    if (!holds) throw_error<InvalidArgument>(parts...);
  };
  expect(required >= 1, "replicas_to_aggregate: must be at least 1, got ", required);
  expect(total >= 0, "total_num_replicas: must be at least 1, or 0 for R, got ", total);
  const int replicas = total == 0 ? required : total;
  expect(replicas <= k_max_replicas, "total_num_replicas: at most ", k_max_replicas, ", got ", replicas);
  const int least = std::max(0, required - replicas);
  expect(init_tokens == -1 || init_tokens >= least, "init_tokens: ", required, ' ', gradients, " of ",
         replicas, " replicas need at least ", least, ", got ", init_tokens);
}

}  // namespace detail

/// Who writes the update once enough contributions are there.
enum class Driver : std::uint8_t {
  cooperative,  ///< the replicas that wait for it
  chief,        ///< a thread of the program that calls `chief_step()`
};

/// What `value()` of a replica shows.
enum class Reading : std::uint8_t {
  automatic,  ///< in place where nobody can be outside a wait during an update (R >= N, no spare tokens),
              ///< else a snapshot
  in_place,  ///< the shared variables; with backup replicas a late one may see an update half written (and is
             ///< stale then)
  snapshot,  ///< a private copy, taken when the replica may go on
};

/// A committed update, as hooks see it. The variables are still until the hook returns.
struct UpdateInfo {
  std::int64_t global_step;  ///< after the update
  int contributions;         ///< gradients in it
};

/// Calls into the program. An exception from a hook ends its replica, and with it the others.
struct Hooks {
  std::function<void(int replica)> begin = {};  ///< on the replica's thread, when it has joined
  std::function<void(const UpdateInfo&)> after_update =
      {};                                     ///< once per update, by the replica that completes it
  std::function<void(int replica)> end = {};  ///< on the replica's thread, when its loop has ended
};

/// Options of `SyncReplicas`. Defaults are the safe choice: lock-step, mean, no gradient thrown away.
struct SyncOptions {
  std::string name = {};          ///< of the trainer, in error texts, where there are several
  int replicas_to_aggregate = 1;  ///< R: contributions in one update, at most 500,000
  int total_num_replicas = 0;     ///< N: replicas that take part; 0 means as many as R
  /// Over the contributions of an update.
  Reduction reduction = Reduction::mean;
  Departure departure = Departure::redistribute;  ///< when a replica leaves or dies
  Absent absent = Absent::zero;  ///< the mean of a variable or row that only some replicas have
  /// For a gradient with NaN or infinity.
  NonFinite non_finite = NonFinite::propagate;
  double clip_norm = 0;               ///< limit of the norm of the aggregated gradient; 0: none
  double clip_contribution_norm = 0;  ///< limit of the norm of each contribution; 0: none
  int init_tokens = -1;               ///< permits at the start; -1: as many as lock-step needs, max(0, R - N)
  std::int64_t global_step = 0;       ///< where counting starts
  std::chrono::milliseconds deadline = k_default_deadline;  ///< longest wait of one call
  /// Who writes an update.
  Driver driver = Driver::cooperative;
  /// What `value()` of a replica shows.
  Reading reading = Reading::automatic;
  /// Calls into the program.
  Hooks hooks = {};

  /// N.
  int replicas() const { return total_num_replicas == 0 ? replicas_to_aggregate : total_num_replicas; }

  /// @throws InvalidArgument for a value without meaning, with the value.
  void validate() const {
    const auto expect = [](bool holds, auto&&... parts) {
      if (!holds) detail::throw_error<InvalidArgument>(parts...);
    };
    expect(replicas_to_aggregate <= k_max_contributions, "replicas_to_aggregate: at most ",
           k_max_contributions, ", got ", replicas_to_aggregate);
    detail::expect_replicas(replicas_to_aggregate, total_num_replicas, init_tokens, "contributions");
    expect(clip_norm >= 0, "clip_norm: must not be negative, got ", clip_norm);
    expect(clip_contribution_norm >= 0, "clip_contribution_norm: must not be negative, got ",
           clip_contribution_norm);
    expect(deadline.count() > 0, "deadline: must be positive, got ", deadline.count(), " ms");
    detail::expect_step("global_step", global_step);
    detail::expect_enumerator("reduction", reduction, Reduction::sum);
    detail::expect_enumerator("departure", departure, Departure::stop);
    detail::expect_enumerator("absent", absent, Absent::excluded);
    detail::expect_enumerator("non_finite", non_finite, NonFinite::skip_update);
    detail::expect_enumerator("driver", driver, Driver::chief);
    detail::expect_enumerator("reading", reading, Reading::snapshot);
  }
};

/// Counters of one replica number, over all who sat there.
struct ReplicaStats {
  std::int64_t accepted = 0, stale = 0, not_needed = 0, skipped = 0;
  std::int64_t last_arrivals = 0;       ///< rounds that it was the last to complete
  std::chrono::nanoseconds waiting{0};  ///< time in waits
  std::uint32_t incarnation = 0;        ///< how many have joined at this number
  std::int64_t local_step = 0;          ///< step of the variables it computes with
};

LOCKSTEP_NAMESPACE_END
