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

struct Broken : Round {
  using Round::Round;

 protected:
  protocol::Place& at(int place) { return places[static_cast<std::size_t>(place)]; }
  const protocol::Place& at(int place) const { return places[static_cast<std::size_t>(place)]; }
};

struct CountsTwice : Broken {
  static constexpr auto fault = "a contribution counts twice";
  static constexpr auto violates = rule::counted_once;
  static constexpr Setting setting = pair_of({});
  using Broken::Broken;
  Verdict contribute(int place, std::int8_t slot, bool poisons) {
    const Verdict verdict = Round::contribute(place, slot, poisons);
    if (verdict == Verdict::accepted) ++count;
    return verdict;
  }
};
struct LosesContributionOfTheDead : Broken {
  static constexpr auto fault = "the contribution of a dead replica is lost";
  static constexpr auto violates = rule::averaged_once;
  static constexpr Setting setting = pair_of({.departures = 1});
  using Broken::Broken;
  void die(int place) {
    Round::die(place);
    at(place).published = protocol::k_unpublished;
  }
};
struct AveragesAgain : Broken {
  static constexpr auto fault = "a slot is averaged again in the next round";
  static constexpr auto violates = rule::averaged_once;
  static constexpr Setting setting = pair_of({});
  using Broken::Broken;
  void commit(bool applied, bool skipped) {
    const std::int8_t published = places[0].published;
    Round::commit(applied, skipped);
    places[0].published = published;
  }
};
struct PublishesBadGradient : Broken {
  static constexpr auto fault = "a gradient that is not finite is averaged";
  static constexpr auto violates = rule::averaged_once;
  static constexpr Setting setting = pair_of({.bad = 1});
  using Broken::Broken;
  Verdict contribute(int place, std::int8_t slot, bool poisons) {
    const Verdict verdict = Round::contribute(place, slot, poisons);
    if (verdict == Verdict::accepted && slot == protocol::k_unpublished) at(place).published = 0;
    return verdict;
  }
};
struct KeepsFirstSlot : Broken {
  static constexpr auto fault = "a second contribution is not published";
  static constexpr auto violates = rule::averaged_once;
  static constexpr Setting setting = twice({});
  using Broken::Broken;
  Verdict contribute(int place, std::int8_t slot, bool poisons) {
    const std::int8_t first = at(place).published;
    const Verdict verdict = Round::contribute(place, slot, poisons);
    if (first != protocol::k_unpublished) at(place).published = first;
    return verdict;
  }
};
struct ClosesEarly : Broken {
  static constexpr auto fault = "a round closes with R - 1";
  static constexpr auto violates = rule::closes_full;
  static constexpr Setting setting = pair_of({});
  using Broken::Broken;
  Verdict contribute(int place, std::int8_t slot, bool poisons) {
    const Verdict verdict = Round::contribute(place, slot, poisons);
    if (count + 1 == required) phase = Phase::closed;
    return verdict;
  }
};
struct ClosesLate : Broken {
  static constexpr auto fault = "a round waits for R + 1";
  static constexpr auto violates = rule::closes_full;
  static constexpr Setting setting = pair_of({});
  using Broken::Broken;
  Verdict contribute(int place, std::int8_t slot, bool poisons) {
    const Verdict verdict = Round::contribute(place, slot, poisons);
    if (count == required) phase = Phase::collecting;
    return verdict;
  }
};
struct AcceptsAfterClosing : Broken {
  static constexpr auto fault = "a contribution is accepted after the closing";
  static constexpr auto violates = rule::one_set;
  static constexpr Setting setting = {.n = 3, .r = 2};
  using Broken::Broken;
  Verdict contribute(int place, std::int8_t slot, bool poisons) {
    const Phase before = phase;
    if (before == Phase::closed) phase = Phase::collecting;
    const Verdict verdict = Round::contribute(place, slot, poisons);
    if (before == Phase::closed) phase = Phase::closed;
    return verdict;
  }
};
struct AcceptsStale : Broken {
  static constexpr auto fault = "a stale contribution is accepted";
  static constexpr auto violates = rule::fresh;
  static constexpr Setting setting = {.n = 3, .r = 2};
  using Broken::Broken;
  Verdict contribute(int place, std::int8_t slot, bool poisons) {
    at(place).local_step = global_step;
    return Round::contribute(place, slot, poisons);
  }
};
struct AcceptsOldGeneration : Broken {
  static constexpr auto fault = "a contribution from before a restore is accepted";
  static constexpr auto violates = rule::own_generation;
  static constexpr Setting setting = pair_of({.restores = 1});
  using Broken::Broken;
  Verdict contribute(int place, std::int8_t slot, bool poisons) {
    at(place).local_generation = generation;
    return Round::contribute(place, slot, poisons);
  }
};
struct RefusesLastPlace : Broken {
  static constexpr auto fault = "a good contribution is refused";
  static constexpr auto violates = rule::not_refused;
  static constexpr Setting setting = pair_of({});
  using Broken::Broken;
  Verdict contribute(int place, std::int8_t slot, bool poisons) {
    return place + 1 == total ? Verdict::not_needed : Round::contribute(place, slot, poisons);
  }
};
struct CallsStaleNotNeeded : Broken {
  static constexpr auto fault = "a stale contribution is called not needed";
  static constexpr auto violates = rule::statistics;
  static constexpr Setting setting = {.n = 3, .r = 2};
  using Broken::Broken;
  Verdict contribute(int place, std::int8_t slot, bool poisons) {
    const Verdict verdict = Round::contribute(place, slot, poisons);
    return verdict == Verdict::stale ? Verdict::not_needed : verdict;
  }
};
struct LabelsAhead : Broken {
  static constexpr auto fault = "a contribution is labelled with a step that is still to come";
  static constexpr auto violates = rule::labels;
  static constexpr Setting setting = pair_of({});
  using Broken::Broken;
  void label(int place, std::int64_t step, std::int64_t of_generation) {
    Round::label(place, step + 1, of_generation);
  }
};

struct EarlyToken : Broken {
  static constexpr auto fault = "a replica passes the barrier before the commit";
  static constexpr auto violates = rule::lock_step;
  static constexpr Setting setting = pair_of({});
  using Broken::Broken;
  bool has_quota(int) const { return phase == Phase::collecting; }
};
struct FreeToken : Broken {
  static constexpr auto fault = "a token can be taken again";
  static constexpr auto violates = rule::tokens;
  static constexpr Setting setting = {.n = 2, .r = 2, .init_tokens = 1};
  using Broken::Broken;
  bool take_token(int place) {
    const bool taken = Round::take_token(place);
    if (taken) ++spare_tokens;
    return taken;
  }
};
struct KeepsTokenOfTheDead : Broken {
  static constexpr auto fault = "a token is lost with its holder";
  static constexpr auto violates = rule::tokens;
  static constexpr Setting setting = {.n = 2, .r = 2, .init_tokens = 1, .budget = {.departures = 1}};
  using Broken::Broken;
  void die(int place) {
    at(place).tokens = 0;
    Round::die(place);
  }
};
struct KeepsPermitsOfWhoLeft : Broken {
  static constexpr auto fault = "the permit of one who left is not passed on";
  static constexpr auto violates = rule::permits;
  static constexpr Setting setting = pair_of({.departures = 1});
  using Broken::Broken;
  void leave(int place) { at(place).seat = Seat::left; }
};
struct RevivesPermits : Broken {
  static constexpr auto fault = "a replacement brings a permit that was passed on";
  static constexpr auto violates = rule::permits;
  static constexpr Setting setting = pair_of({.departures = 1, .rejoins = 1});
  using Broken::Broken;
  void join(int place) {
    Round::join(place);
    at(place).quota = std::max(at(place).quota, 1);
  }
};
struct JoinsWithoutPermits : Broken {
  static constexpr auto fault = "the only one who comes back has no permit";
  static constexpr auto violates = rule::permits;
  static constexpr Setting setting = pair_of({.departures = 2, .rejoins = 2});
  using Broken::Broken;
  void join(int place) {
    at(place).seat = Seat::active;
    ++at(place).incarnation;
  }
};
struct FavoursFirst : Broken {
  static constexpr auto fault = "one place has to contribute more than another";
  static constexpr auto violates = rule::fair;
  static constexpr Setting setting = twice({});
  using Broken::Broken;
  void commit(bool applied, bool skipped) {
    Round::commit(applied, skipped);
    ++places[0].quota;
    --places[1].quota;
  }
};
struct CountsReplacementAgain : Broken {
  static constexpr auto fault = "a replacement contributes for its place again";
  static constexpr auto violates = rule::replacement;
  static constexpr Setting setting = pair_of({.departures = 1, .rejoins = 1});
  using Broken::Broken;
  void join(int place) {
    Round::join(place);
    at(place).served = 0;
  }
};

struct CommitsTwice : Broken {
  static constexpr auto fault = "a round is committed twice";
  static constexpr auto violates = rule::one_round;
  static constexpr Setting setting = pair_of({});
  using Broken::Broken;
  void commit(bool applied, bool skipped) {
    Round::commit(applied, skipped);
    Round::commit(false, false);
  }
};
struct MovesTwoSteps : Broken {
  static constexpr auto fault = "an update counts as two steps";
  static constexpr auto violates = rule::one_step;
  static constexpr Setting setting = pair_of({});
  using Broken::Broken;
  void commit(bool applied, bool skipped) {
    Round::commit(applied, skipped);
    if (applied) ++global_step;
  }
};
struct SkippedRoundMoves : Broken {
  static constexpr auto fault = "a skipped round moves the step";
  static constexpr auto violates = rule::one_step;
  static constexpr Setting setting = poisoned(pair_of({.bad = 1}));
  using Broken::Broken;
  void commit(bool applied, bool skipped) { Round::commit(applied || skipped, skipped); }
};
struct OpenWindowMoves : Broken {
  static constexpr auto fault = "a round that adds to an open window moves the step";
  static constexpr auto violates = rule::one_step;
  static constexpr Setting setting = windowed(pair_of({}));
  using Broken::Broken;
  void commit(bool applied, bool skipped) { Round::commit(applied || !skipped, skipped); }
};
struct ForgetsSkipped : Broken {
  static constexpr auto fault = "skipped contributions are not counted";
  static constexpr auto violates = rule::statistics;
  static constexpr Setting setting = poisoned(pair_of({.bad = 1}));
  using Broken::Broken;
  void commit(bool applied, bool) { Round::commit(applied, false); }
};
struct IgnoresReaders : Broken {
  static constexpr auto fault = "an update starts under a reader";
  static constexpr auto violates = rule::still_for_readers;
  static constexpr Setting setting = pair_of({.holds = 1});
  using Broken::Broken;
  bool can_apply() const { return phase == Phase::closed; }
};
struct KeepsHoldsOfTheDead : Broken {
  static constexpr auto fault = "the hold of a dead replica stays";
  static constexpr auto violates = rule::still_for_readers;
  static constexpr Setting setting = with_snapshots(pair_of({.departures = 1}));
  using Broken::Broken;
  void die(int place) {
    at(place).holds = 0;
    Round::die(place);
  }
};
struct NeverAppliesFewer : Broken {
  static constexpr auto fault = "a smaller round is closed and never applied";
  static constexpr auto violates = rule::can_go_on;
  static constexpr Setting setting = under(Departure::shrink, pair_of({.departures = 1}));
  using Broken::Broken;
  bool can_apply() const { return Round::can_apply() && count == required_setting; }
};
struct RestoreKeepsGeneration : Broken {
  static constexpr auto fault = "a restore starts no generation";
  static constexpr auto violates = rule::one_generation;
  static constexpr Setting setting = pair_of({.restores = 1});
  using Broken::Broken;
  void restore(std::int64_t step) {
    Round::restore(step);
    --generation;
  }
};
struct RestoreKeepsRound : Broken {
  static constexpr auto fault = "a restore does not end the open round";
  static constexpr auto violates = rule::one_round;
  static constexpr Setting setting = pair_of({.restores = 1});
  using Broken::Broken;
  void restore(std::int64_t step) {
    Round::restore(step);
    --id;
  }
};

struct WithdrawKeepsSequence : Broken {
  static constexpr auto fault = "a withdrawn contribution keeps its number";
  static constexpr auto violates = rule::sequence;
  static constexpr Setting setting = pair_of({.timeouts = 1});
  using Broken::Broken;
  bool withdraw(int place) {
    const bool taken = Round::withdraw(place);
    if (taken) ++at(place).sequence;
    return taken;
  }
};
struct WithdrawTakesAll : Broken {
  static constexpr auto fault = "a withdrawal takes an earlier contribution along";
  static constexpr auto violates = rule::counted_once;
  static constexpr Setting setting = twice({.timeouts = 1});
  using Broken::Broken;
  bool withdraw(int place) {
    protocol::Place& p = at(place);
    if (phase != Phase::collecting || p.served == 0) return false;
    count -= p.served;
    p.sequence -= p.served;
    --p.counters.accepted;
    p.served = 0;
    p.published = protocol::k_unpublished;
    return true;
  }
};
struct WithdrawKeepsPoison : Broken {
  static constexpr auto fault = "a withdrawn contribution still poisons the round";
  static constexpr auto violates = rule::poison;
  static constexpr Setting setting = poisoned(pair_of({.timeouts = 1, .bad = 1}));
  using Broken::Broken;
  bool withdraw(int place) {
    const std::int32_t poisoner = poisoned_by;
    const bool taken = Round::withdraw(place);
    poisoned_by = poisoner;
    return taken;
  }
};
struct WithdrawsClosed : Broken {
  static constexpr auto fault = "a contribution is withdrawn after the closing";
  static constexpr auto violates = rule::one_set;
  static constexpr Setting setting = pair_of({.timeouts = 1});
  using Broken::Broken;
  bool withdraw(int place) {
    if (phase == Phase::closed) phase = Phase::collecting;
    return Round::withdraw(place);
  }
};

struct ForgetsWhoLeft : Broken {
  static constexpr auto fault = "one who has left still has the seat";
  static constexpr auto violates = rule::membership;
  static constexpr Setting setting = pair_of({.departures = 1});
  using Broken::Broken;
  void leave(int place) {
    Round::leave(place);
    at(place).seat = Seat::active;
  }
};
struct MissesOnlyThePresent : Broken {
  static constexpr auto fault = "one who has not joined is not missed";
  static constexpr auto violates = rule::missing;
  static constexpr Setting setting = pair_of({});
  using Broken::Broken;
  bool is_missing(int place) const { return at(place).seat == Seat::active && Round::is_missing(place); }
};
struct GoesOnAfterDeparture : Broken {
  static constexpr auto fault = "training goes on although a departure should end it";
  static constexpr auto violates = rule::ending;
  static constexpr Setting setting = under(Departure::fail, pair_of({.departures = 1}));
  using Broken::Broken;
  void leave(int place) {
    Round::leave(place);
    ending = protocol::Ending::none;
    culprit = -1;
  }
};
struct NewRunForgetsUpdate : Broken {
  static constexpr auto fault = "a new run gives up an update under way";
  static constexpr auto violates = rule::whole_update;
  static constexpr Setting setting = pair_of({.departures = 2, .resets = 1});
  using Broken::Broken;
  void reset_membership() {
    phase = Phase::collecting;
    Round::reset_membership();
  }
};

// ---- careless replicas and engines around the right machine

constexpr Setting careless(Habit habit, Setting setting) {
  setting.habit = habit;
  setting.plans_apart = true;
  return setting;
}

struct ForgetsMergedWeight : Round {
  static constexpr auto fault = "a merged contribution loses a weight";
  static constexpr auto violates = rule::divisor;
  static constexpr Setting setting = careless(Habit::forgets_merged_weight, twice({}));
  using Round::Round;
};
struct WritesFirstSlot : Round {
  static constexpr auto fault = "a replica writes the slot that is published";
  static constexpr auto violates = rule::slots_apart;
  static constexpr Setting setting = careless(Habit::writes_first_slot, twice({.timeouts = 1}));
  using Round::Round;
};
struct KeepsOldMerge : Round {
  static constexpr auto fault = "what was merged for one round goes into the next";
  static constexpr auto violates = rule::averaged_once;
  static constexpr Setting setting =
      careless(Habit::keeps_old_merge, windowed({.n = 2, .r = 2, .init_tokens = 1}));
  using Round::Round;
};
struct WaitsForCommit : Round {
  static constexpr auto fault = "who is not needed does not see that the round wants it after all";
  static constexpr auto violates = rule::can_go_on;
  static constexpr Setting setting =
      careless(Habit::waits_for_commit, pair_of({.departures = 1, .timeouts = 1}));
  using Round::Round;
};
struct StartsUnchecked : Round {
  static constexpr auto fault = "an update starts although a reader came while it was planned";
  static constexpr auto violates = rule::still_for_readers;
  static constexpr Setting setting = careless(Habit::starts_unchecked, pair_of({.holds = 1}));
  using Round::Round;
};

using Faults =
    std::tuple<CountsTwice, LosesContributionOfTheDead, AveragesAgain, PublishesBadGradient, KeepsFirstSlot,
               ClosesEarly, ClosesLate, AcceptsAfterClosing, AcceptsStale, AcceptsOldGeneration,
               RefusesLastPlace, CallsStaleNotNeeded, LabelsAhead, EarlyToken, FreeToken, KeepsTokenOfTheDead,
               KeepsPermitsOfWhoLeft, RevivesPermits, JoinsWithoutPermits, FavoursFirst,
               CountsReplacementAgain, CommitsTwice, MovesTwoSteps, SkippedRoundMoves, OpenWindowMoves,
               ForgetsSkipped, IgnoresReaders, KeepsHoldsOfTheDead, NeverAppliesFewer, RestoreKeepsGeneration,
               RestoreKeepsRound, WithdrawKeepsSequence, WithdrawTakesAll, WithdrawKeepsPoison,
               WithdrawsClosed, ForgetsWhoLeft, MissesOnlyThePresent, GoesOnAfterDeparture,
               NewRunForgetsUpdate, ForgetsMergedWeight, WritesFirstSlot, KeepsOldMerge, WaitsForCommit,
               StartsUnchecked>;

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
  const Exploration result =
      explore(RoundModel<TestType>(TestType::setting), std::string("fault: ") + TestType::fault);
  INFO(TestType::fault << "\n" << result.report);
  CHECK(result.violated == TestType::violates);
}
