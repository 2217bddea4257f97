// SPDX-License-Identifier: MIT
/// @file
/// The round: which contributions make an update, who may go on, and what a departure changes. A pure state
/// machine.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/protocol/departure.hpp>
#include <lockstep/protocol/place.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

namespace protocol {

/// `closed`: enough contributions, nobody may add; `applying`: the update is being written.
enum class Phase : std::uint8_t { collecting, closed, applying };

/// Why no further round will be completed.
enum class Ending : std::uint8_t { none, failed, stopped };

/// A reader that sits at no place.
inline constexpr int k_nobody = -1;

/// State of one trainer's rounds. Transitions are total: a caller asks `can_…` or reads the verdict.
/// A value: copying it forks the future, which is how tests walk through every order of events.
struct Round {
  std::int32_t required_setting = 1;  ///< R
  std::int32_t total = 1;             ///< N
  /// What a departure changes.
  Departure departure = Departure::redistribute;

  std::int64_t id = 0;           ///< rounds closed so far, skipped ones included
  std::int64_t global_step = 0;  ///< updates applied so far
  std::int64_t generation = 0;   ///< restores so far
  /// Of the open round.
  Phase phase = Phase::collecting;
  /// Why no further round will be completed, if so.
  Ending ending = Ending::none;
  std::int32_t culprit = -1;      ///< who caused the ending
  std::int32_t required = 0;      ///< contributions that close the open round
  std::int32_t count = 0;         ///< contributions accepted into it
  std::int32_t spare_tokens = 0;  ///< permits to go on early, for anybody
  std::int32_t readers = 0;       ///< holds that keep an update from starting
  std::int32_t visitors = 0;      ///< of these, of readers that sit at no place
  std::int32_t poisoned_by = -1;  ///< whose contribution makes the open round change nothing
  /// By replica number; those from `total` on are not used.
  std::array<Place, k_max_replicas> places{};

  Round() = default;
  /// The first round, with all places vacant. @pre the arguments are those of a valid `SyncOptions`
  Round(int replicas_to_aggregate, int total_num_replicas, Departure policy, int init_tokens)
      : required_setting(replicas_to_aggregate), total(total_num_replicas), departure(policy) {
    // Places are given their extra contributions by quota, so only tokens beyond those are free for anybody.
    spare_tokens = std::max(0, init_tokens - std::max(0, replicas_to_aggregate - total_num_replicas));
    open();
  }

  // ---- membership

  /// Nobody sits there.
  bool can_join(int place) const { return places[at(place)].seat != Seat::active; }

  /// Somebody sits down. The place keeps what it has served of the open round. If its permits have gone to
  /// others, it waits for the next round, or gets those that nobody else can use.
  void join(int place) {
    Place& p = places[at(place)];
    const bool was_expected = is_expected(p);
    p.seat = Seat::active;
    ++p.incarnation;
    p.can_withdraw = false;
    if (!was_expected && is_collecting()) {
      if (departure == Departure::shrink) p.quota = std::max(p.served, fair_share(place));
      rebalance();
    }
    observe(place);
  }

  /// Its replica has left in the ordinary way; the others go on as the policy says.
  void leave(int place) { depart(place, Seat::left); }
  /// Its replica is dead; the others go on as the policy says.
  void die(int place) { depart(place, Seat::dead); }

  /// An exception left its loop: nobody can complete a round any more.
  void fail(int place) {
    end(Ending::failed, place);
    depart(place, Seat::dead);
  }
  /// No further round is completed. The first call counts.
  void end(Ending why, int place) {
    if (ending != Ending::none) return;
    ending = why;
    culprit = place;
  }
  /// A new run on the same variables: everybody is expected again, and the open round begins anew. Not while
  /// an update is written.
  void reset_membership() {
    for (int i = 0; i < total; ++i) places[at(i)].seat = Seat::vacant;
    ending = Ending::none;
    culprit = -1;
    phase = Phase::collecting;
    open();
  }

  // ---- contributions

  /// Offers a contribution that lies in `slot`, or that only takes part (`k_unpublished`). It counts only if
  /// the verdict is `accepted`. @param poisons the round must not change anything because of it.
  /// @param batches that it was computed from.
  Verdict contribute(int place, std::int8_t slot, bool poisons = false, std::int64_t batches = 1) {
    Place& p = places[at(place)];
    if (judge(p) != Verdict::accepted) return refuse(place);
    p.replaced = p.published;
    p.can_withdraw = true;
    p.last_poisons = poisons;
    if (slot != k_unpublished) p.published = slot;
    if (poisons) ++p.poisons;
    if (poisons && poisoned_by < 0) poisoned_by = place;
    ++p.served;
    p.last_batches = batches;
    p.sequence += batches;
    if (slot == k_unpublished && !poisons) {
      ++p.left_out;
      ++p.counters.skipped;
    } else {
      ++p.counters.accepted;
    }
    ++count;
    if (count >= required) {
      ++p.counters.last_arrivals;
      phase = Phase::closed;
    }
    return Verdict::accepted;
  }

  /// Does not take what `place` offers, and counts why: `not_needed` if nothing else is against it.
  Verdict refuse(int place) {
    Place& p = places[at(place)];
    const Verdict verdict = judge(p) == Verdict::accepted ? Verdict::not_needed : judge(p);
    ++(verdict == Verdict::not_needed ? p.counters.not_needed : p.counters.stale);
    return verdict;
  }

  /// Takes back the last contribution of `place`, while the round is still collecting; not an earlier one, of
  /// which its replica or a predecessor knows that it was accepted. The slot of the earlier one is published
  /// again.
  bool withdraw(int place) {
    Place& p = places[at(place)];
    if (phase != Phase::collecting || !p.can_withdraw) return false;
    p.can_withdraw = false;
    if (p.published == p.replaced && !p.last_poisons) {
      --p.left_out;
      --p.counters.skipped;
    } else {
      --p.counters.accepted;
    }
    p.published = p.replaced;
    if (p.last_poisons) --p.poisons;
    --p.served;
    p.sequence -= p.last_batches;
    --count;
    if (poisoned_by == place && p.poisons == 0) {
      poisoned_by = -1;
      for (int i = total - 1; i >= 0; --i)
        if (places[at(i)].poisons > 0) poisoned_by = i;
    }
    return true;
  }

  /// It may make another contribution to the open round.
  bool has_quota(int place) const {
    const Place& p = places[at(place)];
    return is_collecting() && p.served < p.quota;
  }

  /// Takes a spare token, if there is one: one more contribution to the open round.
  bool take_token(int place) {
    if (!is_collecting() || spare_tokens == 0) return false;
    --spare_tokens;
    ++places[at(place)].quota;
    ++places[at(place)].tokens;
    return true;
  }

  /// The replica has read the variables of this step and generation.
  void label(int place, std::int64_t step, std::int64_t of_generation) {
    Place& p = places[at(place)];
    p.local_step = step;
    p.local_generation = of_generation;
  }
  /// The replica reads the variables as they are now.
  void observe(int place) {
    Place& p = places[at(place)];
    p.local_step = global_step;
    p.local_generation = generation;
  }

  // ---- the update

  /// The round is closed, and nobody keeps the variables still.
  bool can_apply() const { return phase == Phase::closed && readers == 0; }
  /// The variables are written from now on.
  void start_update() { phase = Phase::applying; }

  /// Ends the round. @param applied whether the variables were updated; @param skipped whether it was thrown
  /// away.
  void commit(bool applied, bool skipped) {
    if (applied) ++global_step;
    if (skipped)
      for (int i = 0; i < total; ++i)
        places[at(i)].counters.skipped += places[at(i)].served - places[at(i)].left_out;
    ++id;
    phase = Phase::collecting;
    open();
  }

  /// A reader keeps the variables still; refused while they are being written. The holds of a replica end
  /// with it.
  bool hold(int place = k_nobody) {
    if (phase == Phase::applying) return false;
    ++readers;
    ++holds_of(place);
    return true;
  }
  /// Ends a hold.
  void release(int place = k_nobody) {
    --readers;
    --holds_of(place);
  }
  /// Nobody without a place is there any more: their holds end.
  void dismiss_visitors() { readers -= std::exchange(visitors, 0); }

  /// Variables were replaced by those of `step`: the open round is given up, and whatever was computed before
  /// is of an old generation.
  void restore(std::int64_t step) {
    global_step = step;
    ++generation;
    ++id;
    phase = Phase::collecting;
    open();
  }

  // ---- questions

  /// Contributions may still come: the round is open, and training has not ended.
  bool is_collecting() const { return phase == Phase::collecting && ending == Ending::none; }
  /// Still expected to contribute to the open round.
  bool is_missing(int place) const {
    const Place& p = places[at(place)];
    return phase == Phase::collecting && is_expected(p) && p.served < p.quota;
  }
  /// A place has been vacant since the beginning.
  bool is_anybody_expected() const {
    return std::any_of(places.begin(), places.begin() + total,
                       [](const Place& p) { return p.seat == Seat::vacant; });
  }
  /// The lowest number at which somebody sits or is expected to; -1 if there is none.
  int first_expected() const {
    for (int i = 0; i < total; ++i)
      if (const Seat seat = places[at(i)].seat; seat == Seat::vacant || seat == Seat::active) return i;
    return -1;
  }
  /// Places where somebody sits.
  int active() const {
    return static_cast<int>(std::count_if(places.begin(), places.begin() + total,
                                          [](const Place& p) { return p.seat == Seat::active; }));
  }

 private:
  static std::size_t at(int place) { return static_cast<std::size_t>(place); }
  std::int32_t& holds_of(int place) { return place == k_nobody ? visitors : places[at(place)].holds; }

  bool is_expected(const Place& p) const {
    return p.seat == Seat::vacant || p.seat == Seat::active || departure == Departure::wait;
  }

  Verdict judge(const Place& p) const {
    if (p.local_generation != generation) return Verdict::old_generation;
    if (p.local_step < global_step) return Verdict::stale;
    if (!is_collecting() || p.served >= p.quota) return Verdict::not_needed;
    return Verdict::accepted;
  }

  /// R contributions over N places: the same number each, the first R mod N one more; one each if R < N.
  int fair_share(int place) const {
    if (required_setting < total) return 1;
    return required_setting / total + (place < required_setting % total ? 1 : 0);
  }

  void open() {
    count = 0;
    poisoned_by = -1;
    required = required_setting;
    for (int i = 0; i < total; ++i) {
      Place& p = places[at(i)];
      p.served = p.tokens = p.poisons = p.left_out = 0;
      p.published = k_unpublished;
      p.can_withdraw = false;
      p.quota = is_expected(p) ? fair_share(i) : 0;
    }
    rebalance();
  }

  /// Its holds end. Unless the place is kept for a replacement, so do its open permits; unused tokens go
  /// back.
  void vacate(int place, Seat how) {
    Place& p = places[at(place)];
    p.seat = how;
    readers -= std::exchange(p.holds, 0);
    if (is_expected(p)) return;
    spare_tokens += std::min(std::exchange(p.tokens, 0), p.quota - p.served);
    p.quota = p.served;
  }

  void depart(int place, Seat how) {
    vacate(place, how);
    if (departure == Departure::fail) end(Ending::failed, place);
    if (departure == Departure::stop) end(Ending::stopped, place);
    if (phase == Phase::collecting) rebalance();
  }

  /// Contributions that the open round can still reach.
  int reachable(bool with_tokens) const {
    int sum = 0;
    for (int i = 0; i < total; ++i) {
      const Place& p = places[at(i)];
      sum += !is_expected(p) ? p.served : with_tokens ? p.quota : p.quota - p.tokens;
    }
    return sum;
  }

  /// Makes the round completable by those who are expected, as the departure policy says, and closes it if it
  /// is full. Once training has ended, a round that is still open stays so.
  void rebalance() {
    if (ending != Ending::none) return;
    if (departure == Departure::redistribute) {
      for (int reach = reachable(true); reach < required; ++reach) {
        Place* least = nullptr;  // the lowest number among those with the smallest quota
        for (int i = 0; i < total; ++i) {
          Place& p = places[at(i)];
          if (is_expected(p) && (!least || p.quota < least->quota)) least = &p;
        }
        if (!least) break;
        ++least->quota;
      }
    } else if (departure == Departure::shrink) {
      // Tokens let somebody go on early; they do not make the update larger.
      required = std::min(required_setting, reachable(false));
    }
    if (phase == Phase::collecting && count > 0 && count >= required) phase = Phase::closed;
  }
};

}  // namespace protocol

LOCKSTEP_NAMESPACE_END
