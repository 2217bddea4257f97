// SPDX-License-Identifier: MIT
/// @file
/// What the processes of one `VariableReplicas` trainer agree on.
#pragma once

#include <lockstep/checkpoint/snapshot.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/optimizers/updater.hpp>
#include <lockstep/per_variable/gradient.hpp>
#include <lockstep/per_variable/options.hpp>
#include <lockstep/protocol/intact.hpp>
#include <lockstep/protocol/round.hpp>
#include <lockstep/protocol/token_queue.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// An attached process, by the place of its lease.
inline constexpr std::int32_t k_no_process = -1;
/// The chief has died, and what it has asked for is not withdrawn yet.
inline constexpr std::int32_t k_dead_chief = -2;

/// One replica number of a trainer.
struct VariablePlace {
  protocol::Seat seat = protocol::Seat::vacant;
  std::int32_t owner = k_no_process;  ///< the process of an active one
  Index local_step = 0;
  std::int64_t sequence = 0;  ///< batches handed over
};

/// A trivially copyable value under the session's mutual exclusion. The records of the accumulators are not
/// in it: see `SharedSums`.
struct VariableControl {
  UpdaterState updater;
  UpdatePlan plan;               ///< of the open update
  std::uint64_t serial = 1;      ///< transitions so far that may write accumulators
  std::uint64_t first_unit = 0;  ///< of the open update
  std::int64_t served = 0;       ///< accumulators whose aggregate has been taken
  bool initialised = false;      ///< variables, slots and accumulators have their initial values
  bool has_steps = false;        ///< `init_chief` was called
  bool updating = false;         ///< an update is open: whoever comes next carries it to its end
  bool failed = false;
  std::int32_t culprit = protocol::k_nobody;  ///< replica because of which training has failed
  std::int32_t replicas = 1;
  Departure departure = Departure::wait;
  std::int32_t planner = k_no_process;  ///< process that computes what the next update needs
  std::int32_t chief = k_no_process;
  std::array<std::int32_t, k_max_replicas> holds{};  ///< by process: calls that keep the variables still
  std::array<VariablePlace, k_max_replicas> places{};
  protocol::TokenQueue<> tokens;

  VariableControl() = default;
  explicit VariableControl(const VariableOptions& options)
      : replicas(options.replicas()), departure(options.departure) {
    updater.window.global_step = options.global_step;
  }

  VariablePlace& at(int place) { return places[static_cast<std::size_t>(place)]; }
  const VariablePlace& at(int place) const { return places[static_cast<std::size_t>(place)]; }

  /// The lowest place that nobody sat at, else one that somebody has left; -1: there is none.
  int free_place() const {
    for (const auto seat : {protocol::Seat::vacant, protocol::Seat::left, protocol::Seat::dead})
      for (int place = 0; place < replicas; ++place)
        if (at(place).seat == seat) return place;
    return -1;
  }
  /// Some call keeps the variables still.
  bool is_held() const {
    return std::any_of(holds.begin(), holds.end(), [](std::int32_t calls) { return calls > 0; });
  }
  /// Calls `f(process)` for each one that has something here that its death would leave behind.
  template <class F>
  void for_each_process(F&& f) const {
    for (int place = 0; place < replicas; ++place)
      if (at(place).seat == protocol::Seat::active) f(at(place).owner);
    if (chief >= 0) f(chief);
    if (planner >= 0) f(planner);
    for (int process = 0; process < k_max_replicas; ++process)
      if (holds[static_cast<std::size_t>(process)] > 0) f(process);
  }
};
static_assert(std::is_trivially_copyable_v<VariableControl>);

/// What of a trainer all its processes must have in common, beside the model.
inline std::string describe_accumulators(const std::vector<GradientKind>& kinds,
                                         const VariableOptions& options) {
  std::string lines = "\ngradients:";
  for (const GradientKind kind : kinds) lines += text(' ', to_string(kind));
  return lines + text("\nreplicas_to_aggregate: ", options.replicas_to_aggregate,
                      "\ntotal_num_replicas: ", options.replicas(),
                      "\nreduction: ", static_cast<int>(options.reduction),
                      "\ndeparture: ", to_string(options.departure), "\ninit_tokens: ", options.init_tokens,
                      "\nglobal_step: ", options.global_step, "\ndriver: ", static_cast<int>(options.driver),
                      "\nmax_rows: ", options.max_rows);
}

/// For transports that find a state: what in it no trainer can have made; empty if nothing is.
/// @param initial of a trainer with the same options; null if they are not the same.
inline const char* state_fault(const VariableControl& found, const VariableControl* initial) {
  const auto are_in = [](std::int64_t least, std::int64_t most, auto... values) {
    return ((values >= least && values <= most) && ...);
  };
  const auto are_counts = [&](auto... values) { return are_in(0, std::int64_t{1} << 62, values...); };
  if (!are_in(1, k_max_replicas, found.replicas) || found.departure > Departure::stop ||
      (initial && (found.replicas != initial->replicas || found.departure != initial->departure)))
    return "it is for other replicas";
  const UpdatePlan& plan = found.plan;
  for (const bool* flag : {&found.initialised, &found.has_steps, &found.updating, &found.failed,
                           &plan.applies, &plan.with_window, &plan.divides_now, &plan.by_present})
    if (!protocol::is_bool(*flag)) return "a flag is damaged";
  if (found.updating && (!plan.applies || plan.with_window)) return "its update is damaged";
  if (!are_in(k_no_process, k_max_replicas - 1, found.planner) ||
      !are_in(k_dead_chief, k_max_replicas - 1, found.chief) ||
      !are_in(-1, found.replicas - 1, found.culprit))
    return "its tasks are damaged";
  const protocol::Window& window = found.updater.window;
  if (!are_counts(window.global_step, window.counter, window.pending, window.updates, found.served,
                  static_cast<std::int64_t>(found.serial >> 1)) ||
      !are_in(1, std::int64_t{1} << 62, plan.grad_steps))
    return "a counter is damaged";
  for (const VariablePlace& place : found.places)
    if (place.seat > protocol::Seat::dead || !are_in(k_no_process, k_max_replicas - 1, place.owner) ||
        (place.seat == protocol::Seat::active && place.owner < 0) || !are_counts(place.sequence))
      return "a place is damaged";
  if (!std::all_of(found.holds.begin(), found.holds.end(), are_counts)) return "a hold is damaged";
  return found.tokens.is_intact(k_max_replicas) ? "" : "its tokens are damaged";
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
