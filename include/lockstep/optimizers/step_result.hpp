// SPDX-License-Identifier: MIT
/// @file
/// What a step asks for and what it tells.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/transport/wait.hpp>

#include <cmath>
#include <cstdint>

LOCKSTEP_NAMESPACE_BEGIN

/// What became of a gradient.
enum class Status : std::uint8_t {
  accepted,        ///< it is part of an update, or of a round that is still open
  accumulated,     ///< it joined a window; no update yet
  stale,           ///< computed with older variables than the round's; not used
  not_needed,      ///< the round had enough without it; not used
  old_generation,  ///< computed before a restore; not used
  skipped,         ///< not finite, or the whole round was; nothing changed because of it
  stopped,         ///< training has ended for all replicas; not used
};

/// "accepted", "not needed" and so on.
constexpr const char* to_string(Status status) {
  switch (status) {
    case Status::accepted:
      return "accepted";
    case Status::accumulated:
      return "accumulated";
    case Status::stale:
      return "stale";
    case Status::not_needed:
      return "not needed";
    case Status::old_generation:
      return "old generation";
    case Status::skipped:
      return "skipped";
    case Status::stopped:
      return "stopped";
  }
  return "?";
}

/// What a call of `apply_gradients` tells.
struct StepResult {
  Status status = Status::accepted;  ///< what became of the gradient
  std::int64_t global_step = 0;      ///< updates applied so far
  int contributions = 0;             ///< gradients in the update or window; 0 if this one was not used
  bool round_open = false;       ///< the round waits for more: contribute again, the variables are unchanged
  std::int64_t computed_at = 0;  ///< step whose variables this gradient was computed with
  int culprit = -1;              ///< replica whose gradient was not finite, if the round was skipped
};

/// Options of one call of `apply_gradients`.
struct ApplyOptions {
  double weight = 1;   ///< of this gradient in the mean: samples, tokens; finite and positive
  bool flush = false;  ///< closes the window of a gradient aggregation with this gradient
  std::chrono::milliseconds timeout{0};  ///< longest wait of this call; 0: the trainer's deadline
};

namespace detail {

/// @throws InvalidArgument unless the weight is finite and positive.
inline void expect_weight(double weight) {
  if (!(std::isfinite(weight) && weight > 0))
    throw_error<InvalidArgument>("apply_gradients: weight must be finite and positive, got ", weight);
}

/// @throws InvalidArgument for an option without meaning, with its value; also where nothing makes use of it.
inline void expect_timeout(const char* call, std::chrono::milliseconds timeout) {
  if (timeout.count() < 0)
    throw_error<InvalidArgument>(call, ": timeout must not be negative, got ", timeout.count(), " ms");
}
inline void expect_options(const ApplyOptions& options, const char* call = "apply_gradients") {
  expect_weight(options.weight);
  expect_timeout(call, options.timeout);
}

/// The timeout of a call, or `otherwise` if it has none. @throws InvalidArgument if it is negative.
inline std::chrono::milliseconds timeout_or(const char* call, std::chrono::milliseconds timeout,
                                            std::chrono::milliseconds otherwise) {
  expect_timeout(call, timeout);
  return timeout.count() > 0 ? timeout : otherwise;
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
