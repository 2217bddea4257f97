// SPDX-License-Identifier: MIT
/// @file
/// Options of synchronous replicas that aggregate each variable on its own.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/enumerator.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/layout.hpp>
#include <lockstep/per_variable/gradient.hpp>
#include <lockstep/protocol/round.hpp>
#include <lockstep/reduction.hpp>
#include <lockstep/sync/options.hpp>
#include <lockstep/transport/wait.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Options of `VariableReplicas`. Names and defaults are those of `SyncOptions` where the meaning is the
/// same.
struct VariableOptions {
  int replicas_to_aggregate = 1;                   ///< R: gradients that each variable needs for an update
  int total_num_replicas = 0;                      ///< N: replicas that take part; 0 means as many as R
  Reduction reduction = Reduction::mean;           ///< over the gradients of a variable
  std::vector<std::string> sparse = {};            ///< names of variables that get row-sparse gradients
  std::vector<std::string> without_gradient = {};  ///< names of variables that never get a gradient
  std::function<GradientKind(const VariableInfo&)> kind =
      nullptr;  ///< decides for all variables, instead of lists
  /// `wait`: the others go on as long as enough of them are left, as in TensorFlow. `stop`: they may use up
  /// the tokens that are there, then get `Status::stopped`. `fail`: they get `PeerFailed`.
  Departure departure = Departure::wait;
  int init_tokens = -1;          ///< permits at the start; -1: as many as lock-step needs, max(0, R - N)
  std::int64_t global_step = 0;  ///< where counting starts
  std::chrono::milliseconds deadline = k_default_deadline;  ///< longest wait of one call
  Driver driver = Driver::cooperative;                      ///< who writes an update
  /// Between processes: most rows that the sum of one variable may have, since its memory is taken at the
  /// start. 0: as many as the variable has, so that only gradients with repeated rows can need more.
  Index max_rows = 0;

  /// N.
  int replicas() const { return total_num_replicas == 0 ? replicas_to_aggregate : total_num_replicas; }
  /// The fewest tokens at the start that let R gradients come together without waste.
  int lockstep_tokens() const { return std::max(0, replicas_to_aggregate - replicas()); }

  /// Tokens that the trainer adds by itself.
  int start_tokens() const { return init_tokens < 0 ? lockstep_tokens() : init_tokens; }

  /// The kind of a variable: by `kind`, or by the lists; dense if it is in none.
  /// @throws InvalidArgument if `kind` gives none.
  GradientKind kind_of(const VariableInfo& info) const {
    const auto lists = [&](const std::vector<std::string>& names) {
      return std::find(names.begin(), names.end(), info.name) != names.end();
    };
    if (kind) {
      const GradientKind chosen = kind(info);
      detail::expect_enumerator("kind", chosen, GradientKind::none);
      return chosen;
    }
    if (lists(sparse)) return GradientKind::sparse;
    return lists(without_gradient) ? GradientKind::none : GradientKind::dense;
  }

  /// @throws InvalidArgument for a value without meaning, with the value; UnknownVariable for a name in a
  /// list.
  void validate(const Layout& layout) const {
    const auto expect = [](bool holds, auto&&... parts) {
      if (!holds) detail::throw_error<InvalidArgument>(parts...);
    };
    detail::expect_replicas(replicas_to_aggregate, total_num_replicas, init_tokens, "gradients");
    expect(deadline.count() > 0, "deadline: must be positive, got ", deadline.count(), " ms");
    expect(max_rows >= 0, "max_rows: must not be negative, got ", max_rows);
    detail::expect_step("global_step", global_step);
    detail::expect_enumerator("reduction", reduction, Reduction::sum);
    detail::expect_enumerator("departure", departure, Departure::stop);
    detail::expect_enumerator("driver", driver, Driver::chief);
    expect(departure != Departure::redistribute && departure != Departure::shrink,
           "departure: accumulators do not know who contributes, so only wait, stop and fail are possible");
    expect(!kind || (sparse.empty() && without_gradient.empty()),
           "kind: give either a function or lists of names");
    for (const auto* names : {&sparse, &without_gradient})
      for (const std::string& name : *names) (void)layout.find(name);
  }
};

LOCKSTEP_NAMESPACE_END
