// SPDX-License-Identifier: MIT
/// @file
/// The explorer must be able to fail: machines, replicas and engines with one broken transition each, and the
/// invariant that has to object.
#include "explorer/round_model.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

namespace {

using namespace lockstep;
using namespace lockstep::test;
using protocol::Phase;
using protocol::Round;
using protocol::Seat;
using protocol::Verdict;

/// Two replicas in lock-step.
constexpr Setting pair_of(Budget budget) { return {.n = 2, .r = 2, .budget = budget}; }
/// Two replicas, two contributions of each to an update.
constexpr Setting twice(Budget budget) { return {.n = 2, .r = 4, .init_tokens = 2, .budget = budget}; }
constexpr Setting poisoned(Setting setting) {
  setting.poisons = true;
  return setting;
}
constexpr Setting windowed(Setting setting) {
  setting.windows = true;
  return setting;
}
constexpr Setting with_snapshots(Setting setting) {
  setting.snapshots = true;
  return setting;
}
constexpr Setting under(Departure policy, Setting setting) {
  setting.departure = policy;
  return setting;
}

// ---- broken machines

protocol::Place& at(Round& r, int place) { return r.places[static_cast<std::size_t>(place)]; }
const protocol::Place& at(const Round& r, int place) { return r.places[static_cast<std::size_t>(place)]; }

struct CountsTwice {
  static constexpr auto fault = "a contribution counts twice";
  static constexpr auto violates = rule::counted_once;
  static constexpr Setting setting = pair_of({});
  static Verdict contribute(Round& r, int place, std::int8_t slot, bool poisons) {
    const Verdict verdict = r.contribute(place, slot, poisons);
    if (verdict == Verdict::accepted) ++r.count;
    return verdict;
  }
};
struct LosesContributionOfTheDead {
  static constexpr auto fault = "the contribution of a dead replica is lost";
  static constexpr auto violates = rule::averaged_once;
  static constexpr Setting setting = pair_of({.departures = 1});
  static void die(Round& r, int place) {
    r.die(place);
    at(r, place).published = protocol::k_unpublished;
  }
};
struct AveragesAgain {
  static constexpr auto fault = "a slot is averaged again in the next round";
  static constexpr auto violates = rule::averaged_once;
  static constexpr Setting setting = pair_of({});
  static void commit(Round& r, bool applied, bool skipped) {
    const std::int8_t published = r.places[0].published;
    r.commit(applied, skipped);
    r.places[0].published = published;
  }
};
struct PublishesBadGradient {
  static constexpr auto fault = "a gradient that is not finite is averaged";
  static constexpr auto violates = rule::averaged_once;
  static constexpr Setting setting = pair_of({.bad = 1});
  static Verdict contribute(Round& r, int place, std::int8_t slot, bool poisons) {
    const Verdict verdict = r.contribute(place, slot, poisons);
    if (verdict == Verdict::accepted && slot == protocol::k_unpublished) at(r, place).published = 0;
    return verdict;
  }
};
struct KeepsFirstSlot {
  static constexpr auto fault = "a second contribution is not published";
  static constexpr auto violates = rule::averaged_once;
  static constexpr Setting setting = twice({});
  static Verdict contribute(Round& r, int place, std::int8_t slot, bool poisons) {
    const std::int8_t first = at(r, place).published;
    const Verdict verdict = r.contribute(place, slot, poisons);
    if (first != protocol::k_unpublished) at(r, place).published = first;
    return verdict;
  }
};
struct ClosesEarly {
  static constexpr auto fault = "a round closes with R - 1";
  static constexpr auto violates = rule::closes_full;
  static constexpr Setting setting = pair_of({});
  static Verdict contribute(Round& r, int place, std::int8_t slot, bool poisons) {
    const Verdict verdict = r.contribute(place, slot, poisons);
    if (r.count + 1 == r.required) r.phase = Phase::closed;
    return verdict;
  }
};
struct ClosesLate {
  static constexpr auto fault = "a round waits for R + 1";
  static constexpr auto violates = rule::closes_full;
  static constexpr Setting setting = pair_of({});
  static Verdict contribute(Round& r, int place, std::int8_t slot, bool poisons) {
    const Verdict verdict = r.contribute(place, slot, poisons);
    if (r.count == r.required) r.phase = Phase::collecting;
    return verdict;
  }
};
struct AcceptsAfterClosing {
  static constexpr auto fault = "a contribution is accepted after the closing";
  static constexpr auto violates = rule::one_set;
  static constexpr Setting setting = {.n = 3, .r = 2};
  static Verdict contribute(Round& r, int place, std::int8_t slot, bool poisons) {
    const Phase before = r.phase;
    if (before == Phase::closed) r.phase = Phase::collecting;
    const Verdict verdict = r.contribute(place, slot, poisons);
    if (before == Phase::closed) r.phase = Phase::closed;
    return verdict;
  }
};
struct AcceptsStale {
  static constexpr auto fault = "a stale contribution is accepted";
  static constexpr auto violates = rule::fresh;
  static constexpr Setting setting = {.n = 3, .r = 2};
  static Verdict contribute(Round& r, int place, std::int8_t slot, bool poisons) {
    at(r, place).local_step = r.global_step;
    return r.contribute(place, slot, poisons);
  }
};
struct AcceptsOldGeneration {
  static constexpr auto fault = "a contribution from before a restore is accepted";
  static constexpr auto violates = rule::own_generation;
  static constexpr Setting setting = pair_of({.restores = 1});
  static Verdict contribute(Round& r, int place, std::int8_t slot, bool poisons) {
    at(r, place).local_generation = r.generation;
    return r.contribute(place, slot, poisons);
  }
};
struct RefusesLastPlace {
  static constexpr auto fault = "a good contribution is refused";
  static constexpr auto violates = rule::not_refused;
  static constexpr Setting setting = pair_of({});
  static Verdict contribute(Round& r, int place, std::int8_t slot, bool poisons) {
    return place + 1 == r.total ? Verdict::not_needed : r.contribute(place, slot, poisons);
  }
};
struct CallsStaleNotNeeded {
  static constexpr auto fault = "a stale contribution is called not needed";
  static constexpr auto violates = rule::statistics;
  static constexpr Setting setting = {.n = 3, .r = 2};
  static Verdict contribute(Round& r, int place, std::int8_t slot, bool poisons) {
    const Verdict verdict = r.contribute(place, slot, poisons);
    return verdict == Verdict::stale ? Verdict::not_needed : verdict;
  }
};
struct LabelsAhead {
  static constexpr auto fault = "a contribution is labelled with a step that is still to come";
  static constexpr auto violates = rule::labels;
  static constexpr Setting setting = pair_of({});
  static void label(Round& r, int place, std::int64_t step, std::int64_t of_generation) {
    r.label(place, step + 1, of_generation);
  }
};

struct EarlyToken {
  static constexpr auto fault = "a replica passes the barrier before the commit";
  static constexpr auto violates = rule::lock_step;
  static constexpr Setting setting = pair_of({});
  static bool has_quota(const Round& r, int) { return r.phase == Phase::collecting; }
};
struct FreeToken {
  static constexpr auto fault = "a token can be taken again";
  static constexpr auto violates = rule::tokens;
  static constexpr Setting setting = {.n = 2, .r = 2, .init_tokens = 1};
  static bool take_token(Round& r, int place) {
    const bool taken = r.take_token(place);
    if (taken) ++r.spare_tokens;
    return taken;
  }
};
struct KeepsTokenOfTheDead {
  static constexpr auto fault = "a token is lost with its holder";
  static constexpr auto violates = rule::tokens;
  static constexpr Setting setting = {.n = 2, .r = 2, .init_tokens = 1, .budget = {.departures = 1}};
  static void die(Round& r, int place) {
    at(r, place).tokens = 0;
    r.die(place);
  }
};
struct KeepsPermitsOfWhoLeft {
  static constexpr auto fault = "the permit of one who left is not passed on";
  static constexpr auto violates = rule::permits;
  static constexpr Setting setting = pair_of({.departures = 1});
  static void leave(Round& r, int place) { at(r, place).seat = Seat::left; }
};
struct RevivesPermits {
  static constexpr auto fault = "a replacement brings a permit that was passed on";
  static constexpr auto violates = rule::permits;
  static constexpr Setting setting = pair_of({.departures = 1, .rejoins = 1});
  static void join(Round& r, int place) {
    r.join(place);
    at(r, place).quota = std::max(at(r, place).quota, 1);
  }
};
struct JoinsWithoutPermits {
  static constexpr auto fault = "the only one who comes back has no permit";
  static constexpr auto violates = rule::permits;
  static constexpr Setting setting = pair_of({.departures = 2, .rejoins = 2});
  static void join(Round& r, int place) {
    at(r, place).seat = Seat::active;
    ++at(r, place).incarnation;
  }
};
struct FavoursFirst {
  static constexpr auto fault = "one place has to contribute more than another";
  static constexpr auto violates = rule::fair;
  static constexpr Setting setting = twice({});
  static void commit(Round& r, bool applied, bool skipped) {
    r.commit(applied, skipped);
    ++r.places[0].quota;
    --r.places[1].quota;
  }
};
struct CountsReplacementAgain {
  static constexpr auto fault = "a replacement contributes for its place again";
  static constexpr auto violates = rule::replacement;
  static constexpr Setting setting = pair_of({.departures = 1, .rejoins = 1});
  static void join(Round& r, int place) {
    r.join(place);
    at(r, place).served = 0;
  }
};

struct CommitsTwice {
  static constexpr auto fault = "a round is committed twice";
  static constexpr auto violates = rule::one_round;
  static constexpr Setting setting = pair_of({});
  static void commit(Round& r, bool applied, bool skipped) {
    r.commit(applied, skipped);
    r.commit(false, false);
  }
};
struct MovesTwoSteps {
  static constexpr auto fault = "an update counts as two steps";
  static constexpr auto violates = rule::one_step;
  static constexpr Setting setting = pair_of({});
  static void commit(Round& r, bool applied, bool skipped) {
    r.commit(applied, skipped);
    if (applied) ++r.global_step;
  }
};
struct SkippedRoundMoves {
  static constexpr auto fault = "a skipped round moves the step";
  static constexpr auto violates = rule::one_step;
  static constexpr Setting setting = poisoned(pair_of({.bad = 1}));
  static void commit(Round& r, bool applied, bool skipped) { r.commit(applied || skipped, skipped); }
};
struct OpenWindowMoves {
  static constexpr auto fault = "a round that adds to an open window moves the step";
  static constexpr auto violates = rule::one_step;
  static constexpr Setting setting = windowed(pair_of({}));
  static void commit(Round& r, bool applied, bool skipped) { r.commit(applied || !skipped, skipped); }
};
struct ForgetsSkipped {
  static constexpr auto fault = "skipped contributions are not counted";
  static constexpr auto violates = rule::statistics;
  static constexpr Setting setting = poisoned(pair_of({.bad = 1}));
  static void commit(Round& r, bool applied, bool) { r.commit(applied, false); }
};
struct IgnoresReaders {
  static constexpr auto fault = "an update starts under a reader";
  static constexpr auto violates = rule::still_for_readers;
  static constexpr Setting setting = pair_of({.holds = 1});
  static bool can_apply(const Round& r) { return r.phase == Phase::closed; }
};
struct KeepsHoldsOfTheDead {
  static constexpr auto fault = "the hold of a dead replica stays";
  static constexpr auto violates = rule::still_for_readers;
  static constexpr Setting setting = with_snapshots(pair_of({.departures = 1}));
  static void die(Round& r, int place) {
    at(r, place).holds = 0;
    r.die(place);
  }
};
struct NeverAppliesFewer {
  static constexpr auto fault = "a smaller round is closed and never applied";
  static constexpr auto violates = rule::can_go_on;
  static constexpr Setting setting = under(Departure::shrink, pair_of({.departures = 1}));
  static bool can_apply(const Round& r) { return r.can_apply() && r.count == r.required_setting; }
};
struct RestoreKeepsGeneration {
  static constexpr auto fault = "a restore starts no generation";
  static constexpr auto violates = rule::one_generation;
  static constexpr Setting setting = pair_of({.restores = 1});
  static void restore(Round& r, std::int64_t step) {
    r.restore(step);
    --r.generation;
  }
};
struct RestoreKeepsRound {
  static constexpr auto fault = "a restore does not end the open round";
  static constexpr auto violates = rule::one_round;
  static constexpr Setting setting = pair_of({.restores = 1});
  static void restore(Round& r, std::int64_t step) {
    r.restore(step);
    --r.id;
  }
};

struct WithdrawKeepsSequence {
  static constexpr auto fault = "a withdrawn contribution keeps its number";
  static constexpr auto violates = rule::sequence;
  static constexpr Setting setting = pair_of({.timeouts = 1});
  static bool withdraw(Round& r, int place) {
    const bool taken = r.withdraw(place);
    if (taken) ++at(r, place).sequence;
    return taken;
  }
};
struct WithdrawTakesAll {
  static constexpr auto fault = "a withdrawal takes an earlier contribution along";
  static constexpr auto violates = rule::counted_once;
  static constexpr Setting setting = twice({.timeouts = 1});
  static bool withdraw(Round& r, int place) {
    protocol::Place& p = at(r, place);
    if (r.phase != Phase::collecting || p.served == 0) return false;
    r.count -= p.served;
    p.sequence -= p.served;
    --p.counters.accepted;
    p.served = 0;
    p.published = protocol::k_unpublished;
    return true;
  }
};
struct WithdrawKeepsPoison {
  static constexpr auto fault = "a withdrawn contribution still poisons the round";
  static constexpr auto violates = rule::poison;
  static constexpr Setting setting = poisoned(pair_of({.timeouts = 1, .bad = 1}));
  static bool withdraw(Round& r, int place) {
    const std::int32_t poisoner = r.poisoned_by;
    const bool taken = r.withdraw(place);
    r.poisoned_by = poisoner;
    return taken;
  }
};
struct WithdrawsClosed {
  static constexpr auto fault = "a contribution is withdrawn after the closing";
  static constexpr auto violates = rule::one_set;
  static constexpr Setting setting = pair_of({.timeouts = 1});
  static bool withdraw(Round& r, int place) {
    if (r.phase == Phase::closed) r.phase = Phase::collecting;
    return r.withdraw(place);
  }
};

struct ForgetsWhoLeft {
  static constexpr auto fault = "one who has left still has the seat";
  static constexpr auto violates = rule::membership;
  static constexpr Setting setting = pair_of({.departures = 1});
  static void leave(Round& r, int place) {
    r.leave(place);
    at(r, place).seat = Seat::active;
  }
};
struct MissesOnlyThePresent {
  static constexpr auto fault = "one who has not joined is not missed";
  static constexpr auto violates = rule::missing;
  static constexpr Setting setting = pair_of({});
  static bool is_missing(const Round& r, int place) {
    return at(r, place).seat == Seat::active && r.is_missing(place);
  }
};
struct GoesOnAfterDeparture {
  static constexpr auto fault = "training goes on although a departure should end it";
  static constexpr auto violates = rule::ending;
  static constexpr Setting setting = under(Departure::fail, pair_of({.departures = 1}));
  static void leave(Round& r, int place) {
    r.leave(place);
    r.ending = protocol::Ending::none;
    r.culprit = -1;
  }
};

// ---- careless replicas and engines around the right machine

constexpr Setting careless(Habit habit, Setting setting) {
  setting.habit = habit;
  setting.plans_apart = true;
  return setting;
}

struct ForgetsMergedWeight {
  static constexpr auto fault = "a merged contribution loses a weight";
  static constexpr auto violates = rule::divisor;
  static constexpr Setting setting = careless(Habit::forgets_merged_weight, twice({}));
};
struct WritesFirstSlot {
  static constexpr auto fault = "a replica writes the slot that is published";
  static constexpr auto violates = rule::slots_apart;
  static constexpr Setting setting = careless(Habit::writes_first_slot, twice({.timeouts = 1}));
};
struct KeepsOldMerge {
  static constexpr auto fault = "what was merged for one round goes into the next";
  static constexpr auto violates = rule::averaged_once;
  static constexpr Setting setting =
      careless(Habit::keeps_old_merge, windowed({.n = 2, .r = 2, .init_tokens = 1}));
};
struct WaitsForCommit {
  static constexpr auto fault = "who is not needed does not see that the round wants it after all";
  static constexpr auto violates = rule::can_go_on;
  static constexpr Setting setting =
      careless(Habit::waits_for_commit, windowed({.n = 2, .r = 2, .init_tokens = 1}));
};
struct HoldsAtAnyTime {
  static constexpr auto fault = "an update starts although a reader came while it was planned";
  static constexpr auto violates = rule::still_for_readers;
  static constexpr Setting setting = careless(Habit::holds_at_any_time, pair_of({.holds = 1}));
};
struct ResetsAtAnyTime {
  static constexpr auto fault = "a new run gives up an update under way";
  static constexpr auto violates = rule::whole_update;
  static constexpr Setting setting =
      careless(Habit::resets_at_any_time, pair_of({.departures = 2, .resets = 1}));
};

/// The transitions of the right machine, but for those that the fault has.
template <class F>
constexpr Transitions transitions_of() {
  Transitions t;
  if constexpr (requires { &F::join; }) t.join = &F::join;
  if constexpr (requires { &F::leave; }) t.leave = &F::leave;
  if constexpr (requires { &F::die; }) t.die = &F::die;
  if constexpr (requires { &F::contribute; }) t.contribute = &F::contribute;
  if constexpr (requires { &F::withdraw; }) t.withdraw = &F::withdraw;
  if constexpr (requires { &F::has_quota; }) t.has_quota = &F::has_quota;
  if constexpr (requires { &F::take_token; }) t.take_token = &F::take_token;
  if constexpr (requires { &F::label; }) t.label = &F::label;
  if constexpr (requires { &F::can_apply; }) t.can_apply = &F::can_apply;
  if constexpr (requires { &F::commit; }) t.commit = &F::commit;
  if constexpr (requires { &F::restore; }) t.restore = &F::restore;
  if constexpr (requires { &F::is_missing; }) t.is_missing = &F::is_missing;
  return t;
}

using Faults = std::tuple<
    CountsTwice, LosesContributionOfTheDead, AveragesAgain, PublishesBadGradient, KeepsFirstSlot, ClosesEarly,
    ClosesLate, AcceptsAfterClosing, AcceptsStale, AcceptsOldGeneration, RefusesLastPlace,
    CallsStaleNotNeeded, LabelsAhead, EarlyToken, FreeToken, KeepsTokenOfTheDead, KeepsPermitsOfWhoLeft,
    RevivesPermits, JoinsWithoutPermits, FavoursFirst, CountsReplacementAgain, CommitsTwice, MovesTwoSteps,
    SkippedRoundMoves, OpenWindowMoves, ForgetsSkipped, IgnoresReaders, KeepsHoldsOfTheDead,
    NeverAppliesFewer, RestoreKeepsGeneration, RestoreKeepsRound, WithdrawKeepsSequence, WithdrawTakesAll,
    WithdrawKeepsPoison, WithdrawsClosed, ForgetsWhoLeft, MissesOnlyThePresent, GoesOnAfterDeparture,
    ForgetsMergedWeight, WritesFirstSlot, KeepsOldMerge, WaitsForCommit, HoldsAtAnyTime, ResetsAtAnyTime>;

template <class... F>
constexpr bool every_invariant_objects(std::tuple<F...>*) {
  constexpr std::array violated = {F::violates...};
  return std::all_of(rule::all.begin(), rule::all.end(), [&](std::string_view name) {
    return std::find(violated.begin(), violated.end(), name) != violated.end();
  });
}
static_assert(every_invariant_objects(static_cast<Faults*>(nullptr)));

}  // namespace

TEMPLATE_LIST_TEST_CASE("explorer: objects to a seeded fault", "[explorer][fault]", Faults) {
  const Exploration result = explore(RoundModel(TestType::setting, transitions_of<TestType>()),
                                     std::string("fault: ") + TestType::fault);
  INFO(TestType::fault << "\n" << result.report);
  CHECK(result.violated == TestType::violates);
}
