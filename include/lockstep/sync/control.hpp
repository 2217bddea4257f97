// SPDX-License-Identifier: MIT
/// @file
/// What the replicas of a trainer agree on, what they read without agreeing, and what each needs of its own.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/fixed_list.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/runs.hpp>
#include <lockstep/optimizers/updater.hpp>
#include <lockstep/protocol/intact.hpp>
#include <lockstep/protocol/round.hpp>
#include <lockstep/sync/options.hpp>
#include <lockstep/sync/tiles.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/transport.hpp>
#include <lockstep/transport/wait.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <type_traits>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Most contributions that a round which wants `required` may have, with those that spare tokens allow.
constexpr std::int64_t most_served(int required) { return 2 * std::int64_t{required} + k_max_replicas; }

/// What became of one round. Packed into a word: the low half of its round, 4 bits of flags, 8 of the
/// culprit, 20 of the count.
struct Outcome {
  int contributions = 0;
  int culprit = -1;
  bool applied = true;
  bool skipped = false;
  bool restored = false;  ///< given up because of a restore

  std::uint64_t packed(std::int64_t round) const {
    const auto flags = static_cast<std::uint64_t>(applied) | static_cast<std::uint64_t>(skipped) << 1 |
                       static_cast<std::uint64_t>(restored) << 2;
    return static_cast<std::uint64_t>(round + 1) << 32 | flags << 28 |
           static_cast<std::uint64_t>(culprit + 1) << 20 | static_cast<std::uint64_t>(contributions);
  }
  /// Unknown outcomes, of rounds too long ago, read as applied with no count.
  static Outcome unpacked(std::uint64_t word, std::int64_t round) {
    if (word >> 32 != static_cast<std::uint32_t>(round + 1)) return {};
    return {.contributions = static_cast<int>(word & 0xFFFFF),
            .culprit = static_cast<int>(word >> 20 & 0xFF) - 1,
            .applied = (word >> 28 & 1) != 0,
            .skipped = (word >> 29 & 1) != 0,
            .restored = (word >> 30 & 1) != 0};
  }
};
static_assert(most_served(k_max_contributions) <= 0xFFFFF && k_max_replicas <= 0xFF);

/// A task of the round that nobody has taken.
inline constexpr int k_unclaimed = -2;

static_assert(protocol::k_nobody == k_visitor);

/// What became of the last rounds, by round modulo their number; a word carries the low half of its round, so
/// an old one is known.
inline constexpr std::size_t k_outcomes = 16;
constexpr std::size_t outcome_at(std::int64_t round) { return static_cast<std::size_t>(round) % k_outcomes; }

/// Everything that replicas agree on: a trivially copyable value under the transport's mutual exclusion.
struct Control {
  UpdaterState updater;
  UpdatePlan plan;
  double clip_factor = 1;
  std::uint64_t stage = 0;   ///< one number per pass over the items, never reused
  bool measures = false;     ///< the open stage sums squares; otherwise it writes the update
  bool flush = false;        ///< a contribution asks to close the window
  bool unplannable = false;  ///< the plan of the closed round has failed: it will not be carried out
  bool initialised = false;  ///< variables and slots have their initial values
  bool restoring = false;    ///< variables and slots are being replaced; only a restore ends that
  std::int32_t initialiser = k_unclaimed;  ///< who writes the initial values
  std::int32_t planner = k_unclaimed;      ///< who makes the plan of the closed round
  std::int32_t committer = k_unclaimed;    ///< who ends the update
  std::int32_t averaged = 0;               ///< gradients in the update that the committer ends
  std::array<std::uint64_t, k_outcomes> outcomes{};
  protocol::Round round;  // the last one: its places that are not in use need not be copied

  Control() = default;
  explicit Control(const SyncOptions& options)
      : round(options.replicas_to_aggregate, options.replicas(), options.departure,
              std::max(0, options.init_tokens)) {
    round.global_step = updater.window.global_step = options.global_step;
  }

  /// The closed round waits for somebody to plan it. Those who cooperate carry it out even if training has
  /// ended since: all that it wants is in.
  bool wants_plan(Driver driver) const {
    return round.phase == protocol::Phase::closed && !unplannable && planner == k_unclaimed &&
           (driver == Driver::cooperative || round.ending == protocol::Ending::none);
  }
  /// An update is under way or will come without another contribution.
  bool is_busy(Driver driver) const { return !is_quiet() || wants_plan(driver); }
  /// Nobody writes variables, nor may start to without asking again.
  bool is_quiet() const {
    const bool half_restored = restoring && committer == k_unclaimed;
    return planner == k_unclaimed && (round.phase != protocol::Phase::applying || half_restored);
  }
  /// The tasks of the round that has ended are no more.
  void clear_tasks() {
    planner = committer = k_unclaimed;
    flush = unplannable = false;
  }

  /// Of a round that has ended.
  /// Packed.
  std::uint64_t outcome(std::int64_t of_round) const { return outcomes[outcome_at(of_round)]; }
  /// Ends the open round.
  void end_round(const Outcome& outcome) {
    outcomes[outcome_at(round.id)] = outcome.packed(round.id);
    if (outcome.restored)
      round.restore(updater.window.global_step);
    else
      round.commit(outcome.applied, outcome.skipped);
    clear_tasks();
  }
};

/// For transports that copy the state: only places that exist. The rest has a fixed length, which needs no
/// call.
inline void copy_state(Control& to, const Control& from) {
  static_assert(std::is_standard_layout_v<Control>);
  constexpr std::size_t head = offsetof(Control, round) + offsetof(protocol::Round, places);
  std::memcpy(static_cast<void*>(&to), &from, head);
  for (std::size_t i = 0; i < static_cast<std::size_t>(from.round.total); ++i)
    to.round.places[i] = from.round.places[i];
}

/// For transports that find a state: what in it no trainer can have made; empty if nothing is. What passes
/// leads to no memory that is not the trainer's, and to no number that is none.
/// @param initial of a trainer with the same options; null if they are not the same.
inline const char* state_fault(const Control& found, const Control* initial) {
  const protocol::Round& round = found.round;
  if (round.total < 1 || round.total > k_max_replicas || round.required_setting < 1 ||
      round.required_setting > k_max_contributions || round.departure > Departure::stop)
    return "its rounds have no settings";
  if (initial && (round.total != initial->round.total || round.departure != initial->round.departure ||
                  round.required_setting != initial->round.required_setting))
    return "its rounds have other settings";
  using protocol::is_bool;
  const auto are_in = [](std::int64_t least, std::int64_t most, auto... values) {
    return ((values >= least && values <= most) && ...);
  };
  const auto are_counts = [&](auto... values) { return are_in(0, std::int64_t{1} << 62, values...); };
  const UpdatePlan& plan = found.plan;
  for (const bool* flag :
       {&found.measures, &found.flush, &found.unplannable, &found.initialised, &found.restoring,
        &plan.applies, &plan.with_window, &plan.divides_now, &plan.by_present})
    if (!is_bool(*flag)) return "a flag is damaged";
  const std::int64_t last = round.total - 1;
  if (!are_in(k_unclaimed, last, found.initialiser, found.planner, found.committer) ||
      !are_in(k_visitor, last, round.culprit, round.poisoned_by) || round.phase > protocol::Phase::applying ||
      round.ending > protocol::Ending::stopped)
    return "its tasks are damaged";
  const protocol::Window& window = found.updater.window;
  if (!are_counts(window.global_step, window.counter, window.pending, window.updates, round.id,
                  round.global_step, round.generation, found.averaged, round.spare_tokens, round.visitors) ||
      !are_in(1, std::int64_t{1} << 62, plan.grad_steps))
    return "a counter is damaged";
  const std::int64_t most = most_served(round.required_setting);
  std::int64_t served = 0, readers = round.visitors;
  for (int i = 0; i < round.total; ++i) {
    const protocol::Place& p = round.places[static_cast<std::size_t>(i)];
    const protocol::Counters& c = p.counters;
    if (p.seat > protocol::Seat::dead || !are_in(protocol::k_unpublished, 1, p.published, p.replaced) ||
        !is_bool(p.can_withdraw) || !is_bool(p.last_poisons) || !are_in(0, most, p.quota) ||
        !are_in(0, p.quota, p.served, p.tokens) || !are_in(0, p.served, p.poisons, p.left_out) ||
        !are_counts(p.holds, p.last_batches, p.local_step, p.local_generation, p.sequence, c.accepted,
                    c.stale, c.not_needed, c.skipped, c.last_arrivals))
      return "a place is damaged";
    served += p.served;
    readers += p.holds;
  }
  if (served != round.count || readers != round.readers || !are_in(0, most, round.required))
    return "its places do not fit its round";
  return "";
}

/// What those who wait for a commit read without exclusion: never ahead of the state. Written inside the
/// exclusion once the state has changed, before the progress word is bumped; who dies in between leaves it
/// behind, and then it is behind until the next commit.
struct alignas(k_alignment) Board {
  std::array<std::atomic<std::uint64_t>, k_outcomes> outcomes{};
  std::atomic<std::int64_t> round{0};       ///< id of the open round
  std::atomic<std::int64_t> round_step{0};  ///< updates applied, as rounds label gradients
  std::atomic<std::int64_t> step{0};        ///< global step, as the optimizer counts it
  std::atomic<std::int64_t> updates{0};     ///< since the variables had their initial values
  std::atomic<std::int64_t> generation{0};

  /// Packed.
  std::uint64_t outcome(std::int64_t of_round) const {
    return outcomes[outcome_at(of_round)].load(std::memory_order_relaxed);
  }
  /// The last store pairs with the acquire of who waits for the round.
  void publish(const Control& control) {
    const std::int64_t id = control.round.id, last = std::int64_t{k_outcomes};
    for (std::int64_t i = std::max(round.load(std::memory_order_relaxed), id - last); i < id; ++i)
      outcomes[outcome_at(i)].store(control.outcome(i), std::memory_order_relaxed);
    round_step.store(control.round.global_step, std::memory_order_relaxed);
    step.store(control.updater.window.global_step, std::memory_order_relaxed);
    updates.store(control.updater.window.updates, std::memory_order_relaxed);
    generation.store(control.round.generation, std::memory_order_relaxed);
    round.store(control.round.id, std::memory_order_release);
  }
};

/// What one participant alone does for the round.
enum class Task : std::uint8_t {
  none,
  plan,   ///< it is the planner, and the update is not open yet
  commit  ///< it is the committer, and the hook has been called
};

/// What one participant needs of its own to take part in updates; kept so that no step allocates.
template <class T, class G>
struct Worker {
  /// @param number of its replica, or `protocol::k_nobody`.
  explicit Worker(int number) : place(number) {}
  /// Whether a task is its own, as `owner` in the control says as well. One that it could not end because
  /// somebody had stopped inside the session stays so: nobody else may take it while this one lives.
  bool has(Task which, std::int32_t owner) const { return task == which && owner == place; }

  int place;
  Task task = Task::none;
  std::exception_ptr failure;  // of the hook that was called last, until it is thrown
  FixedList<const Contribution<G>*, k_max_replicas> contributions;
  Contributors<T, G> sources;
  // The round or stage it is at, as read inside the exclusion.
  UpdaterState state;
  UpdatePlan plan;
  std::uint64_t stage = 0;
  double factor = 1;
  bool measures = false, flush = false, skips = false;
};

/// What replicas share beside the control, in one memory.
template <class G>
struct SharedArrays {
  SharedArrays(Carver& carver, const Layout& layout, const RowLayout& rows, Index items, int replicas)
      : progress(carver.array<WaitWord>(1)),
        board(carver.array<Board>(1)),
        tiles(carver.array<Tiles::Word>(static_cast<std::size_t>(items)), items),
        partial(carver.array<double>(static_cast<std::size_t>(items))),
        waiting(carver.array<std::atomic<std::int64_t>>(static_cast<std::size_t>(replicas))),
        last_look(carver.array<std::atomic<std::int64_t>>(1)),
        contributions(2 * static_cast<std::size_t>(replicas)) {
    for (Contribution<G>& slot : contributions) slot = Contribution<G>(carver, layout, rows, true);
  }
  WaitWord* progress;
  Board* board;
  Tiles tiles;
  double* partial;                             // per item: sum of squares of the mean
  std::atomic<std::int64_t>* waiting;          // per place: nanoseconds
  std::atomic<std::int64_t>* last_look;        // when somebody last looked for the dead
  std::vector<Contribution<G>> contributions;  // two slots per place
};

static_assert(std::is_trivially_copyable_v<Control>);

}  // namespace detail

LOCKSTEP_NAMESPACE_END
