// SPDX-License-Identifier: MIT
/// @file
/// The world around a `protocol::Round`, small enough to be explored: replicas that act as `SyncReplica`
/// does, an engine that carries out updates, readers, restores; and beside the machine a ledger of every
/// contribution.
#pragma once

#include "explorer/explore.hpp"
#include <lockstep/protocol/round.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::test {

/// Names of the invariants, each checked after every transition.
namespace rule {
inline constexpr std::string_view counted_once =
    "an accepted contribution counts once, until it is withdrawn or discarded";
inline constexpr std::string_view averaged_once =
    "the slots of a round hold each of its contributions once, and nothing else";
inline constexpr std::string_view divisor =
    "the divisor is the sum of the weights of the contributions that are in";
inline constexpr std::string_view closes_full =
    "a round closes with R contributions, or with what the policy says";
inline constexpr std::string_view one_set = "the contributor set is frozen from the closing to the commit";
inline constexpr std::string_view lock_step = "nobody passes the barrier before the commit without a permit";
inline constexpr std::string_view fresh = "a contribution of older variables is never in";
inline constexpr std::string_view own_generation = "a contribution of an older generation is never in";
inline constexpr std::string_view not_refused =
    "a contribution with a permit and current variables is accepted";
inline constexpr std::string_view permits =
    "permits of a round: as many as contributions are wanted, more only by spare tokens";
inline constexpr std::string_view fair =
    "permits are spread evenly; if R is a multiple of N, each place has R / N";
inline constexpr std::string_view tokens = "spare tokens are neither made nor lost";
inline constexpr std::string_view replacement = "a replacement is not counted again";
inline constexpr std::string_view sequence =
    "a sequence number belongs to one contribution; only an unseen one is given back";
inline constexpr std::string_view one_round = "a round ends once, by a commit or a restore";
inline constexpr std::string_view one_step = "the global step moves by one, with an applied update";
inline constexpr std::string_view one_generation = "the generation moves by one, with a restore";
inline constexpr std::string_view labels = "no local step is ahead of the global step";
inline constexpr std::string_view poison =
    "a round changes nothing if and only if a contribution poisons it or none counts";
inline constexpr std::string_view still_for_readers = "variables are not written while a reader holds them";
inline constexpr std::string_view whole_update = "an update that has begun is completed";
inline constexpr std::string_view slots_apart = "a replica never writes the slot that it has published";
inline constexpr std::string_view ending =
    "training ends for the reason and the replica that the policy names";
inline constexpr std::string_view missing = "the missing are exactly those with an open permit";
inline constexpr std::string_view statistics =
    "the counters of a place tell what became of its contributions";
inline constexpr std::string_view membership = "a seat tells who sits there";
inline constexpr std::string_view can_go_on =
    "while a live replica can act, something happens, or somebody else is missing";

inline constexpr std::array all = {
    counted_once,   averaged_once, divisor,        closes_full, one_set,    lock_step,         fresh,
    own_generation, not_refused,   permits,        fair,        tokens,     replacement,       sequence,
    one_round,      one_step,      one_generation, labels,      poison,     still_for_readers, whole_update,
    slots_apart,    ending,        missing,        statistics,  membership, can_go_on};
}  // namespace rule

inline constexpr int k_places = 3;

/// How often each disturbance may happen in one run.
struct Budget {
  int departures = 0;  ///< leave, die, and fail if `fails`
  int rejoins = 0;
  int timeouts =
      0;  ///< or cancellations of a wait, which are the same; resume and withdraw may follow at any time
  int bad = 0;    ///< contributions that are not finite
  int holds = 0;  ///< by readers that are no replicas
  int restores = 0;
  int resets = 0;
};

/// Faults of the replica and the engine rather than of the machine.
enum class Habit : std::uint8_t {
  good,
  keeps_old_merge,        ///< what was merged for a round that has ended goes into the next one
  forgets_merged_weight,  ///< the second contribution's weight replaces the first one's
  holds_at_any_time,      ///< a reader may come while an update is planned
  resets_at_any_time,     ///< a new run does not wait for the update under way
  waits_for_commit,       ///< whoever is not needed does not look whether it is needed after all
  writes_first_slot,      ///< after a withdrawal it writes slot 0, whatever is published
};

/// What is explored: the sizes, the policy and what may go wrong.
struct Setting {
  int n = 1;
  int r = 1;
  Departure departure = Departure::redistribute;
  int init_tokens = -1;  ///< -1: as many as lock-step needs
  int updates = 3;       ///< rounds that are committed before the run ends
  Budget budget = {};
  bool fails = false;
  bool poisons = false;      ///< a bad contribution makes the round change nothing
  bool windows = false;      ///< a round may add to a window without applying it
  bool snapshots = false;    ///< replicas copy the variables under a hold
  bool plans_apart = false;  ///< other events come between the planning and the start of an update
  Habit habit = Habit::good;
};

/// One transition. `arg`: kind of contribution, restored step, or whether the commit applies.
struct Event {
  enum class Kind : std::uint8_t {
    // progress of readers and of the update
    release,
    outside_release,
    start,
    begin,
    commit,
    skip,
    // progress of replicas
    admit,
    attempt,
    wake,
    see_ending,
    resume,
    contribute,
    join,
    // disturbances
    rejoin,
    time_out,
    withdraw,
    leave,
    die,
    fail,
    hold,
    plan,
    restore,
    reset
  };
  Kind kind = Kind::join;
  std::int8_t who = -1;
  std::int8_t arg = 0;
};

/// Where a replica is in its loop; see `SyncReplica`.
enum class At : std::uint8_t {
  away,
  admission,    ///< waits until the round has room for it
  computing,    ///< free to contribute, leave, fail
  merging,      ///< has merged its published contribution into the staged one, outside the mutual exclusion
  outcome,      ///< waits for the outcome of its contribution
  timed_out,    ///< that wait has timed out
  surplus,      ///< not needed: waits for the next round
  catching_up,  ///< stale: waits until it may observe
  copying,      ///< holds the variables for its snapshot
  ended,        ///< has been told that training has ended
};

/// What a slot holds, as far as the open round is concerned.
struct Slot {
  std::uint8_t in = 0;     ///< contributions of its place to the open round, one bit each, in their order
  std::uint8_t total = 0;  ///< sum of their weights
  bool fresh = false;      ///< a gradient that has not been accepted yet
  bool junk = false;       ///< anything else
};

struct Replica {
  At at = At::away;
  bool holds = false;
  std::int8_t staged = 0;
  std::int8_t round = 0;      ///< of its contribution
  std::int8_t merged_in = 0;  ///< round for which it has merged
  std::int64_t sequence = 0;
};

/// What should be true of a place, kept beside the machine.
struct Entry {
  std::array<Slot, 2> slots{};
  std::uint8_t finite = 0, poison = 0;  // one bit per contribution to the open round
  std::int8_t served = 0;               // contributions to the open round
  std::int8_t permits = 0;              // that it may make to it
  std::int8_t tokens = 0;               // of these, by spare tokens
  std::int8_t label = 0, generation = 0;
  std::int64_t sequence = 0;
};

/// Distinct within a round for each place, so that a lost or doubled contribution shows in the sum.
constexpr int weight_of(int place, int ordinal) { return 1 + place + 3 * ordinal; }

struct Ledger {
  std::array<Replica, k_places> replicas{};
  std::array<Entry, k_places> entries{};
  protocol::Phase phase = protocol::Phase::collecting;
  protocol::Ending ending = protocol::Ending::none;
  std::int8_t culprit = -1;
  std::int8_t id = 0, step = 0, generation = 0, commits = 0;
  std::int8_t spare = 0;  // tokens that nobody has taken
  std::int8_t taken = 0;  // tokens taken for the open round
  std::int8_t outside_readers = 0;
  std::int8_t planner = -1;                    // `k_places`: somebody who is no replica
  std::array<std::int8_t, k_places> frozen{};  // published slots when the round closed
  Budget left;
};

// The bindings name every field, so that a new one stops the build here: decide then whether it belongs to
// the key.
inline auto header_of(protocol::Round& r) {
  auto& [setting, total, departure, id, step, generation, phase, ending, culprit, required, count, spare,
         readers, visitors, poisoned, places] = r;
  static_cast<void>(places);
  return std::tie(setting, total, departure, id, step, generation, phase, ending, culprit, required, count,
                  spare, readers, visitors, poisoned);
}
template <std::size_t Words>
void put_place(Bits<Words>& bits, const protocol::Place& p) {
  const auto& [seat, published, replaced, can_withdraw, last_poisons, last_batches, incarnation, quota,
               tokens, served, poisons, left_out, holds, local_step, local_generation, sequence, counters] =
      p;
  bits.put(static_cast<int>(seat), 2);
  bits.put(published + 1, 2);
  bits.put(can_withdraw ? replaced + 1 : 0, 2);
  bits.put(can_withdraw, 1);
  bits.put(can_withdraw && last_poisons, 1);
  bits.put(quota, 4);
  bits.put(tokens, 2);
  bits.put(served, 3);
  bits.put(poisons, 3);
  bits.put(left_out, 3);
  bits.put(holds, 1);
  // The label is written before each use. The rest is statistics: it only grows, and the ledger checks it.
  static_cast<void>(std::tie(last_batches, incarnation, local_step, local_generation, sequence, counters));
}

/// A `Round` without the places that nobody uses: what is kept per state.
class RoundImage {
 public:
  explicit RoundImage(protocol::Round& round) : header_(header_of(round)) {
    std::copy_n(round.places.begin(), k_places, places_.begin());
  }
  void load(protocol::Round& into) const {
    header_of(into) = header_;
    std::copy_n(places_.begin(), k_places, into.places.begin());
  }
  protocol::Ending ending() const { return std::get<7>(header_); }
  template <std::size_t Words>
  void put(Bits<Words>& bits) const {
    const auto& [setting, total, departure, id, step, generation, phase, ending, culprit, required, count,
                 spare, readers, visitors, poisoned] = header_;
    bits.put(id, 3);
    bits.put(step, 3);
    bits.put(generation, 2);
    bits.put(static_cast<int>(phase), 2);
    bits.put(static_cast<int>(ending), 2);
    bits.put(culprit + 1, 3);
    bits.put(required, 4);
    bits.put(count, 4);
    bits.put(spare, 4);
    bits.put(readers, 3);  // visitors are what the holds of places leave of them
    static_cast<void>(visitors);
    bits.put(poisoned + 1, 3);
    for (int i = 0; i < total; ++i) put_place(bits, places_[static_cast<std::size_t>(i)]);
  }

 private:
  template <class... T>
  static std::tuple<T...> values(std::tuple<T&...>);
  decltype(values(header_of(std::declval<protocol::Round&>()))) header_;
  std::array<protocol::Place, k_places> places_{};
};

/// The transitions and questions of a `Round`, so that a test can replace one by a broken one.
struct Transitions {
  using Round = protocol::Round;
  void (*join)(Round&, int) = [](Round& r, int i) { r.join(i); };
  void (*leave)(Round&, int) = [](Round& r, int i) { r.leave(i); };
  void (*die)(Round&, int) = [](Round& r, int i) { r.die(i); };
  protocol::Verdict (*contribute)(Round&, int, std::int8_t, bool) =
      [](Round& r, int i, std::int8_t slot, bool poisons) { return r.contribute(i, slot, poisons); };
  bool (*withdraw)(Round&, int) = [](Round& r, int i) { return r.withdraw(i); };
  bool (*has_quota)(const Round&, int) = [](const Round& r, int i) { return r.has_quota(i); };
  bool (*take_token)(Round&, int) = [](Round& r, int i) { return r.take_token(i); };
  void (*label)(Round&, int, std::int64_t, std::int64_t) =
      [](Round& r, int i, std::int64_t step, std::int64_t generation) { r.label(i, step, generation); };
  bool (*can_apply)(const Round&) = [](const Round& r) { return r.can_apply(); };
  void (*commit)(Round&, bool, bool) = [](Round& r, bool applied, bool skipped) {
    r.commit(applied, skipped);
  };
  void (*restore)(Round&, std::int64_t) = [](Round& r, std::int64_t step) { r.restore(step); };
  bool (*is_missing)(const Round&, int) = [](const Round& r, int i) { return r.is_missing(i); };
};

class RoundModel {
 public:
  using Event = test::Event;
  using Kind = Event::Kind;
  using Key = Bits<7>;
  static constexpr std::string_view k_can_go_on = rule::can_go_on;

  struct State {
    RoundImage round;
    Ledger ledger;
  };

  explicit RoundModel(const Setting& setting, const Transitions& transitions = {})
      : set_(setting),
        do_(transitions),
        machine_(setting.r, setting.n, setting.departure, std::max(0, setting.init_tokens)) {}

  State initial() {
    ledger_ = {};
    ledger_.left = set_.budget;
    ledger_.spare = static_cast<std::int8_t>(std::max(0, set_.init_tokens - std::max(0, set_.r - set_.n)));
    note_permits();
    check_permits(true);
    check();
    return {RoundImage(machine_), ledger_};
  }

  Key key(const State& state) const {
    Key bits;
    state.round.put(bits);
    const Ledger& l = state.ledger;
    for (int i = 0; i < set_.n; ++i) {
      const Replica& replica = l.replicas[at(i)];
      bits.put(static_cast<int>(replica.at), 4);
      bits.put(replica.holds, 1);
      bits.put(replica.staged, 1);
      const bool waits =
          replica.at == At::outcome || replica.at == At::timed_out || replica.at == At::surplus;
      bits.put(waits ? l.id - replica.round : 0, 3);
      bits.put(replica.at == At::merging ? l.id - replica.merged_in : 0, 3);
      const Entry& entry = l.entries[at(i)];
      for (const Slot& slot : entry.slots) {
        bits.put(slot.in, 5);
        bits.put(slot.total, 6);
        bits.put(slot.fresh, 1);
        bits.put(slot.junk, 1);
      }
      bits.put(entry.finite, 5);
      bits.put(entry.poison, 5);
      bits.put(entry.tokens, 2);
      bits.put(replica.at == At::away ? 0 : entry.label, 3);
      bits.put(replica.at == At::away ? 0 : entry.generation, 2);
    }
    bits.put(l.commits, 2);
    bits.put(l.taken, 3);
    bits.put(l.outside_readers, 2);
    bits.put(l.planner + 1, 3);
    const Budget& b = l.left;
    for (const int left : {b.departures, b.rejoins, b.timeouts, b.bad, b.holds, b.restores, b.resets})
      bits.put(left, 2);
    return bits;
  }

  bool is_bound(const State& state) const { return state.ledger.commits == set_.updates; }

  // ---- what can happen

  void events(const State& state, std::vector<Event>& list) {
    load(state);
    const auto add = [&list](Kind kind, int who = -1, int arg = 0) {
      list.push_back({kind, static_cast<std::int8_t>(who), static_cast<std::int8_t>(arg)});
    };
    for (int i = 0; i < set_.n; ++i)
      if (replica(i).at == At::copying) add(Kind::release, i);
    if (ledger_.outside_readers > 0) add(Kind::outside_release);
    update_events(add);
    for (int i = 0; i < set_.n; ++i) replica_events(add, i);
    if (ledger_.left.holds > 0 && may_hold()) add(Kind::hold);
    if (ledger_.left.restores > 0 && is_quiet() && readers() == 0)
      for (int step = 0; step <= ledger_.step; ++step) add(Kind::restore, -1, step);
    // A round that has closed is carried out first.
    const bool may_reset =
        machine_.phase == protocol::Phase::collecting || set_.habit == Habit::resets_at_any_time;
    if (ledger_.left.resets > 0 && active() == 0 && may_reset) add(Kind::reset);
  }

  State after(const State& state, const Event& event) {
    load(state);
    apply(event);
    check();
    return {RoundImage(machine_), ledger_};
  }

  Role role(const State& state, const Event& event, const State& after) const {
    if (after.ledger.commits != state.ledger.commits) return Role::goal;
    if (event.kind >= Kind::rejoin) return Role::disturbance;
    return after.round.ending() != protocol::Ending::none ? Role::goal : Role::progress;
  }

  /// A state in which nothing goes on by itself: fine without anybody active, after an ending, or if the
  /// round waits for places where nobody sits.
  void check_stuck(const State& state) {
    load(state);
    if (active() == 0 || machine_.ending != protocol::Ending::none) return;
    bool waits_for_absent = false;
    for (int i = 0; i < set_.n; ++i) {
      if (!do_.is_missing(machine_, i)) continue;
      expect(replica(i).at == At::away, rule::can_go_on, "an active replica is missing and cannot act");
      waits_for_absent = true;
    }
    expect(waits_for_absent, rule::can_go_on, "nothing can happen and nobody is missing");
  }

  std::string text(const Event& event) const {
    static constexpr std::array names = {
        "release", "outside release", "start",    "begin",      "commit",          "skip",
        "admit",   "attempt",         "wake",     "see ending", "resume",          "contribute",
        "join",    "rejoin",          "time out", "withdraw",   "leave",           "die",
        "fail",    "outside hold",    "plan",     "restore",    "reset membership"};
    std::string line = names[static_cast<std::size_t>(event.kind)];
    if (event.who >= 0)
      line += " " + (event.who == k_places ? std::string("by nobody") : std::to_string(event.who));
    if (event.kind == Kind::contribute && event.arg != 0)
      line += set_.poisons ? " (poison)" : " (not finite)";
    if (event.kind == Kind::commit && event.arg == 0) line += " (window stays open)";
    if (event.kind == Kind::restore) line += " to step " + std::to_string(event.arg);
    return line;
  }

 private:
  static constexpr const char* k_no_permit = "a replica goes on in an open round without a permit";

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  Replica& replica(int i) { return ledger_.replicas[at(i)]; }
  Entry& entry(int i) { return ledger_.entries[at(i)]; }
  protocol::Place& place(int i) { return machine_.places[at(i)]; }
  Slot& staged(int i) { return entry(i).slots[at(replica(i).staged)]; }

  void load(const State& state) {
    state.round.load(machine_);
    ledger_ = state.ledger;
  }

  // ---- the ledger's own view

  int active() const {
    return static_cast<int>(std::count_if(ledger_.replicas.begin(), ledger_.replicas.end(),
                                          [](const Replica& r) { return r.at != At::away; }));
  }
  int readers() const {
    int sum = ledger_.outside_readers;
    for (const Replica& r : ledger_.replicas) sum += r.holds;
    return sum;
  }
  int count() const {
    int sum = 0;
    for (const Entry& e : ledger_.entries) sum += e.served;
    return sum;
  }
  /// Nobody has left it for good: its permits stand.
  bool is_expected(int i) const {
    const protocol::Seat seat = machine_.places[at(i)].seat;
    return seat == protocol::Seat::vacant || seat == protocol::Seat::active ||
           set_.departure == Departure::wait;
  }
  /// Permits of the open round that have not been used.
  int open_permits() const {
    int sum = 0;
    for (int i = 0; i < set_.n; ++i)
      if (is_expected(i)) sum += ledger_.entries[at(i)].permits - ledger_.entries[at(i)].served;
    return sum;
  }
  /// What closes the round: R, or with `shrink` what is in of those who are gone and the own permits of the
  /// others.
  int required() const {
    if (set_.departure != Departure::shrink) return set_.r;
    int sum = 0;
    for (int i = 0; i < set_.n; ++i) {
      const Entry& e = ledger_.entries[at(i)];
      sum += is_expected(i) ? e.permits - e.tokens : e.served;
    }
    return std::min(set_.r, sum);
  }
  int fair_share(int i) const {
    return set_.r < set_.n ? 1 : set_.r / set_.n + (i < set_.r % set_.n ? 1 : 0);
  }

  // ---- what can happen, in detail

  bool is_open() const {
    return machine_.phase == protocol::Phase::collecting && machine_.ending == protocol::Ending::none;
  }
  /// Nobody writes variables, nor may start to without asking again.
  bool is_quiet() const { return machine_.phase != protocol::Phase::applying && ledger_.planner < 0; }
  bool may_hold() const {
    return is_quiet() ||
           (machine_.phase != protocol::Phase::applying && set_.habit == Habit::holds_at_any_time);
  }
  bool may_read() const { return !set_.snapshots || may_hold(); }
  /// Something happens to the round without another contribution, even if training has ended.
  bool is_busy() const { return machine_.phase != protocol::Phase::collecting; }
  /// Its wait is over.
  bool is_done(int i) {
    switch (replica(i).at) {
      case At::admission:
        return (do_.has_quota(machine_, i) || machine_.ending != protocol::Ending::none) && may_read();
      case At::outcome:
        return (machine_.id != replica(i).round ||
                (is_open() && (do_.has_quota(machine_, i) || machine_.spare_tokens > 0))) &&
               may_read();
      case At::surplus:
        return (machine_.id != replica(i).round ||
                (is_open() && do_.has_quota(machine_, i) && set_.habit != Habit::waits_for_commit)) &&
               may_read();
      case At::catching_up:
        return machine_.phase != protocol::Phase::applying && may_read();
      default:
        return false;
    }
  }

  template <class Add>
  void update_events(Add& add) {
    if (machine_.phase == protocol::Phase::applying) {
      add(Kind::commit, -1, 1);
      if (set_.windows) add(Kind::commit, -1, 0);
      return;
    }
    if (ledger_.planner >= 0) {
      add(Kind::begin, ledger_.planner);
      return;
    }
    if (!do_.can_apply(machine_)) return;
    add(skips() ? Kind::skip : Kind::start);
    if (!set_.plans_apart) return;
    // Any waiting replica may plan, and one that has just left.
    for (int i = 0; i < set_.n; ++i)
      if (is_waiting(i)) add(Kind::plan, i);
    add(Kind::plan, k_places);
  }
  bool is_waiting(int i) {
    const At where = replica(i).at;
    return where == At::admission || where == At::outcome || where == At::surplus || where == At::catching_up;
  }
  bool skips() const {
    return machine_.poisoned_by >= 0 ||
           std::all_of(machine_.places.begin(), machine_.places.begin() + set_.n,
                       [](const protocol::Place& p) { return p.published == protocol::k_unpublished; });
  }

  template <class Add>
  void replica_events(Add& add, int i) {
    const bool can_end = machine_.ending != protocol::Ending::none && !is_busy();
    const bool may_depart = ledger_.left.departures > 0;
    const At where = replica(i).at;
    switch (where) {
      case At::away:
        if (!machine_.can_join(i)) break;
        if (place(i).seat == protocol::Seat::vacant)
          add(Kind::join, i);
        else if (ledger_.left.rejoins > 0)
          add(Kind::rejoin, i);
        break;
      case At::admission:
        if (is_done(i)) add(Kind::admit, i);
        break;
      case At::computing:
        add(Kind::contribute, i, 0);
        if (ledger_.left.bad > 0) add(Kind::contribute, i, 1);
        break;
      case At::merging:
        add(Kind::attempt, i);
        break;
      case At::outcome:
      case At::surplus:
      case At::catching_up:
        if (is_done(i)) {
          add(Kind::wake, i);
        } else {
          if (can_end) add(Kind::see_ending, i);
          if (ledger_.left.timeouts > 0) add(Kind::time_out, i);
        }
        break;
      case At::timed_out:
        add(Kind::resume, i);
        add(Kind::withdraw, i);
        break;
      case At::copying:
      case At::ended:
        break;
    }
    // In a call it can only die, except that the waits of joining may throw.
    const bool can_act =
        where == At::computing || where == At::timed_out || where == At::ended || where == At::admission;
    if (can_act && (may_depart || where == At::ended)) add(Kind::leave, i);
    if (may_depart && where != At::away) add(Kind::die, i);
    if (may_depart && set_.fails && can_act) add(Kind::fail, i);
  }

  // ---- transitions

  void apply(const Event& event) {
    const int i = event.who;
    switch (event.kind) {
      case Kind::release:
        end_copy(i);
        break;
      case Kind::outside_release:
        machine_.release();
        --ledger_.outside_readers;
        break;
      case Kind::plan:
        ledger_.planner = event.who;
        break;
      case Kind::begin:
        begin();
        break;
      case Kind::start:
        start();
        break;
      case Kind::commit:
        commit(event.arg != 0, false);
        break;
      case Kind::skip:
        start();
        commit(false, true);
        break;
      case Kind::join:
      case Kind::rejoin:
        join(i, event.kind == Kind::rejoin);
        break;
      case Kind::admit:
        pass(i, machine_.ending != protocol::Ending::none || entry(i).served < entry(i).permits);
        break;
      case Kind::contribute:
        staged(i) = {.fresh = true};
        if (event.arg != 0) --ledger_.left.bad;
        attempt(i, event.arg == 0);
        break;
      case Kind::attempt:
        attempt(i, true);
        break;
      case Kind::wake:
        wake(i);
        break;
      case Kind::see_ending:
        staged(i) = {};
        replica(i).at = At::ended;
        break;
      case Kind::time_out:
        --ledger_.left.timeouts;
        replica(i).at = replica(i).at == At::outcome ? At::timed_out : At::computing;
        break;
      case Kind::resume:
        replica(i).at = At::outcome;
        break;
      case Kind::withdraw:
        withdraw(i, true);
        break;
      case Kind::leave:
      case Kind::die:
      case Kind::fail:
        depart(i, event.kind);
        break;
      case Kind::hold:
        expect(machine_.hold(), rule::still_for_readers,
               "a hold is refused although nothing is being written");
        ++ledger_.outside_readers;
        --ledger_.left.holds;
        break;
      case Kind::restore:
        restore(event.arg);
        break;
      case Kind::reset:
        reset();
        break;
    }
  }

  void join(int i, bool again) {
    if (again) --ledger_.left.rejoins;
    do_.join(machine_, i);
    expect(place(i).served == entry(i).served, rule::replacement,
           "joining changes what the place has contributed");
    replica(i) = {.at = At::admission, .staged = static_cast<std::int8_t>(place(i).published == 0 ? 1 : 0)};
    staged(i) = {};
    observe(i);
    note_permits();
    check_permits(false);
  }

  void observe(int i) {
    entry(i).label = ledger_.step;
    entry(i).generation = ledger_.generation;
  }

  /// Takes the variables as they are: the way back into the loop.
  void pass(int i, bool has_reason) {
    expect(has_reason, rule::lock_step, k_no_permit);
    if (set_.snapshots) {
      expect(machine_.hold(i), rule::still_for_readers,
             "a hold is refused although nothing is being written");
      replica(i).holds = true;
    }
    observe(i);
    replica(i).at = set_.snapshots ? At::copying : At::computing;
    replica(i).sequence = place(i).sequence;
  }
  void end_copy(int i) {
    machine_.release(i);
    replica(i).holds = false;
    replica(i).at = At::computing;
  }

  void attempt(int i, bool finite) {
    Replica& me = replica(i);
    const bool has_merged = me.at == At::merging;
    const bool must_merge = finite && place(i).published != protocol::k_unpublished &&
                            place(i).published != me.staged && !(has_merged && me.merged_in == ledger_.id) &&
                            do_.has_quota(machine_, i);
    if (must_merge) {
      const Slot& earlier = entry(i).slots[at(1 - me.staged)];
      staged(i).in |= earlier.in;
      if (set_.habit != Habit::forgets_merged_weight)
        staged(i).total = static_cast<std::uint8_t>(staged(i).total + earlier.total);
      staged(i).junk |= earlier.junk;
      me.at = At::merging;
      me.merged_in = ledger_.id;
      return;
    }
    // What was merged for a round that has ended is in that round already, and cannot be taken apart.
    const bool is_in = has_merged && me.merged_in != ledger_.id && set_.habit != Habit::keeps_old_merge;
    contribute(i, finite, is_in);
  }

  /// @param is_in a part of it has been counted, so that it cannot be taken.
  void contribute(int i, bool finite, bool is_in) {
    using protocol::Verdict;
    Replica& me = replica(i);
    Entry& mine = entry(i);
    const protocol::Counters before = place(i).counters;
    const bool is_old = mine.generation != ledger_.generation,
               is_stale = !is_old && mine.label < ledger_.step;
    const bool has_permit = ledger_.phase == protocol::Phase::collecting &&
                            ledger_.ending == protocol::Ending::none && mine.served < mine.permits;
    do_.label(machine_, i, mine.label, mine.generation);
    const Verdict verdict = is_in ? machine_.refuse(i)
                                  : do_.contribute(machine_, i, finite ? me.staged : protocol::k_unpublished,
                                                   !finite && set_.poisons);
    me.round = ledger_.id;
    if (verdict != Verdict::accepted) {
      expect(is_old || is_stale || is_in || !has_permit, rule::not_refused, "it is refused");
      const Verdict reason = is_old     ? Verdict::old_generation
                             : is_stale ? Verdict::stale
                                        : Verdict::not_needed;
      expect(verdict == reason, rule::statistics, "the verdict names another reason");
      const int stale = verdict == Verdict::not_needed ? 0 : 1;
      expect(place(i).counters.stale == before.stale + stale &&
                 place(i).counters.not_needed == before.not_needed + 1 - stale &&
                 place(i).counters.accepted == before.accepted,
             rule::statistics, "a refusal is counted as something else");
      staged(i) = {};
      me.at = verdict == Verdict::not_needed ? At::surplus : At::catching_up;
      return;
    }
    expect(!is_old, rule::own_generation, "it is accepted");
    expect(!is_stale, rule::fresh, "it is accepted");
    expect(ledger_.phase == protocol::Phase::collecting, rule::one_set, "it is accepted after the closing");
    expect(has_permit, rule::permits, "more is accepted of a place than it has permits");
    expect(me.sequence == mine.sequence, rule::sequence, "its number is not the next one of the place");
    const int left_out = !finite && !set_.poisons ? 1 : 0;
    expect(place(i).counters.accepted == before.accepted + 1 - left_out &&
               place(i).counters.skipped == before.skipped + left_out &&
               place(i).counters.stale == before.stale && place(i).counters.not_needed == before.not_needed,
           rule::statistics, "an acceptance is counted as something else");
    const int ordinal = mine.served++;
    const auto bit = static_cast<std::uint8_t>(1 << ordinal);
    Slot& slot = staged(i);
    slot.fresh = false;
    if (finite) {
      mine.finite |= bit;
      slot.in |= bit;
      slot.total = static_cast<std::uint8_t>(slot.total + weight_of(i, ordinal));
      me.staged = static_cast<std::int8_t>(1 - me.staged);
    } else {
      if (set_.poisons) mine.poison |= bit;
      slot = {.junk = true};
    }
    ++mine.sequence;
    me.sequence = place(i).sequence;
    close_if_full();
    me.at = At::outcome;
    if (is_open() && wants_more(i)) go_on_in_open_round(i);
  }

  /// By a permit of its own or by a spare token.
  bool wants_more(int i) {
    if (do_.has_quota(machine_, i)) return true;
    if (!do_.take_token(machine_, i)) return false;
    if (entry(i).served == entry(i).permits && ledger_.spare > 0) {
      --ledger_.spare;
      ++ledger_.taken;
      ++entry(i).tokens;
      ++entry(i).permits;
    }
    return true;
  }
  /// The variables are as they were.
  void go_on_in_open_round(int i) {
    expect(entry(i).served < entry(i).permits, rule::lock_step, k_no_permit);
    staged(i) = {};
    replica(i).at = At::computing;
  }

  void wake(int i) {
    Replica& me = replica(i);
    if (me.at == At::catching_up) return pass(i, true);
    if (me.at == At::surplus) return pass(i, ledger_.id != me.round || entry(i).served < entry(i).permits);
    if (machine_.id != me.round) {
      entry(i).slots = {};
      me.staged = 0;
      return pass(i, ledger_.id != me.round);
    }
    wants_more(i);
    staged(i) = {};
    pass(i, entry(i).served < entry(i).permits);
  }

  /// @param by_user otherwise as a part of leaving.
  void withdraw(int i, bool by_user) {
    Replica& me = replica(i);
    Entry& mine = entry(i);
    if (machine_.id != me.round) return;
    const bool is_open = ledger_.id == me.round && ledger_.phase == protocol::Phase::collecting;
    const protocol::Counters before = place(i).counters;
    const int left_out_before = left_out(i);
    const bool taken = do_.withdraw(machine_, i);
    expect(taken == is_open, rule::one_set,
           "a contribution can be withdrawn if and only if its round is collecting");
    if (!taken) return;
    const auto bit = static_cast<std::uint8_t>(1 << --mine.served);
    for (Slot& slot : mine.slots)
      if ((slot.in & bit) != 0) slot = {.junk = true};
    mine.finite = static_cast<std::uint8_t>(mine.finite & ~bit);
    mine.poison = static_cast<std::uint8_t>(mine.poison & ~bit);
    const int was_left_out = left_out_before - left_out(i);
    expect(place(i).counters.skipped == before.skipped - was_left_out &&
               place(i).counters.accepted == before.accepted - 1 + was_left_out,
           rule::statistics, "a withdrawn contribution is still counted");
    --mine.sequence;
    --me.sequence;
    if (!by_user) return;
    me.staged = place(i).published == 0 && set_.habit != Habit::writes_first_slot ? 1 : 0;
    staged(i) = {};
    me.at = At::computing;
  }

  void depart(int i, Kind how) {
    Replica& me = replica(i);
    if (me.at != At::ended) --ledger_.left.departures;
    if (how == Kind::leave && me.at == At::timed_out) withdraw(i, false);
    if (ledger_.planner == i) ledger_.planner = -1;  // the engine finds it dead
    switch (how) {
      case Kind::leave:
        do_.leave(machine_, i);
        break;
      case Kind::die:
        do_.die(machine_, i);
        break;
      default:
        machine_.fail(i);
        break;
    }
    me = {};
    Entry& e = entry(i);
    if (!is_expected(i)) {  // unused tokens go back, and the permits are no longer its own
      const int unused = std::min<int>(e.tokens, e.permits - e.served);
      ledger_.spare = static_cast<std::int8_t>(ledger_.spare + unused);
      ledger_.taken = static_cast<std::int8_t>(ledger_.taken - unused);
      e.tokens = 0;
    }
    if (how == Kind::fail || set_.departure == Departure::fail) end(protocol::Ending::failed, i);
    if (how != Kind::fail && set_.departure == Departure::stop) end(protocol::Ending::stopped, i);
    note_permits();
    check_permits(false);
    close_if_full();
  }
  void end(protocol::Ending why, int culprit) {
    if (ledger_.ending != protocol::Ending::none) return;
    ledger_.ending = why;
    ledger_.culprit = static_cast<std::int8_t>(culprit);
  }

  void close_if_full() {
    if (ledger_.phase != protocol::Phase::collecting || ledger_.ending != protocol::Ending::none) return;
    if (count() == 0 || count() < required()) return;
    ledger_.phase = protocol::Phase::closed;
    for (int i = 0; i < set_.n; ++i) ledger_.frozen[at(i)] = place(i).published;
  }

  /// Starts what has been planned: meanwhile nobody could come who minds.
  void begin() {
    ledger_.planner = -1;
    const bool skipped = skips();
    start();
    if (skipped) commit(false, true);
  }
  void start() {
    expect(readers() == 0, rule::still_for_readers, "an update starts");
    bool is_even = set_.r % set_.n == 0;
    for (int i = 0; i < set_.n; ++i) is_even &= entry(i).permits == set_.r / set_.n && is_expected(i);
    for (int i = 0; i < set_.n && is_even; ++i)
      expect(entry(i).served == entry(i).permits, rule::fair, "a place has contributed another number");
    ledger_.phase = protocol::Phase::applying;
    machine_.start_update();
  }

  /// Contributions to the open round that are not finite and do no harm: counted as skipped when they come.
  int left_out(int i) {
    const Entry& e = entry(i);
    int sum = 0;
    for (int k = 0; k < e.served; ++k) sum += ((e.finite | e.poison) >> k & 1) == 0;
    return sum;
  }
  void commit(bool applied, bool skipped) {
    bool poisoned = false;
    for (int i = 0; i < set_.n; ++i) poisoned |= entry(i).poison != 0;
    bool counts = false;
    for (int i = 0; i < set_.n; ++i) counts |= entry(i).finite != 0;
    expect(skipped == (poisoned || !counts), rule::poison, "it is not so");
    std::array<std::int64_t, k_places> before{};
    for (int i = 0; i < set_.n; ++i) before[at(i)] = place(i).counters.skipped;
    do_.commit(machine_, applied, skipped);
    for (int i = 0; i < set_.n; ++i)
      expect(place(i).counters.skipped == before[at(i)] + (skipped ? entry(i).served - left_out(i) : 0),
             rule::statistics, "a skipped contribution is not counted once");
    if (applied) ++ledger_.step;
    ++ledger_.commits;
    open_next();
  }

  void restore(int step) {
    --ledger_.left.restores;
    do_.restore(machine_, step);
    ledger_.step = static_cast<std::int8_t>(step);
    ++ledger_.generation;
    open_next();
  }

  void reset() {
    --ledger_.left.resets;
    machine_.reset_membership();
    ledger_.ending = protocol::Ending::none;
    ledger_.culprit = -1;
    expect(ledger_.phase != protocol::Phase::applying && ledger_.planner < 0, rule::whole_update,
           "a new run forgets it");
    --ledger_.id;
    open_next();
  }

  void open_next() {
    ++ledger_.id;
    ledger_.phase = protocol::Phase::collecting;
    ledger_.taken = 0;
    for (int i = 0; i < set_.n; ++i) {
      Entry& e = entry(i);
      e.served = e.tokens = 0;
      e.finite = e.poison = 0;
      for (Slot& slot : e.slots)
        if (slot.in != 0 || slot.junk) slot = {.total = 0, .fresh = slot.fresh, .junk = true};
    }
    note_permits();
    check_permits(true);
  }

  // ---- invariants

  /// Permits change only where the machine may spread them: at the opening of a round, a departure, a join.
  void note_permits() {
    for (int i = 0; i < set_.n; ++i) entry(i).permits = static_cast<std::int8_t>(place(i).quota);
  }

  void check_permits(bool opening) {
    if (ledger_.phase != protocol::Phase::collecting || ledger_.ending != protocol::Ending::none) return;
    int most = 0, least = 1 << 20;
    bool somebody = false, everybody = true;
    for (int i = 0; i < set_.n; ++i) {
      if (!is_expected(i)) {
        everybody = false;
        continue;
      }
      somebody = true;
      most = std::max<int>(most, entry(i).permits);
      least = std::min<int>(least, entry(i).permits);
    }
    const int sum = count() + open_permits();
    const bool keeps_size = set_.departure == Departure::redistribute || set_.departure == Departure::wait;
    if (keeps_size && somebody) expect(sum >= set_.r, rule::permits, "the round cannot be completed");
    expect(sum <= std::max(set_.r, set_.n) + ledger_.taken, rule::permits, "there are more than wanted");
    if (!opening || !somebody) return;
    expect(most - least <= 1, rule::fair, "some place has two more than another");
    for (int i = 0; i < set_.n; ++i)
      if (everybody) expect(entry(i).permits == fair_share(i), rule::fair, "a place has not its share");
  }

  void check() {
    using protocol::Phase;
    const Ledger& l = ledger_;
    const protocol::Round& m = machine_;
    expect(m.id == l.id, rule::one_round, "the number of the round is another");
    expect(m.global_step == l.step, rule::one_step, "the global step is another");
    expect(m.generation == l.generation, rule::one_generation, "the generation is another");
    expect(m.ending == l.ending && m.culprit == l.culprit, rule::ending, "it is another");
    expect(m.count == count(), rule::counted_once, "the count is another");
    expect(m.spare_tokens == l.spare, rule::tokens, "their number is another");
    expect(m.readers == readers(), rule::still_for_readers, "the number of readers is another");
    if (l.phase == Phase::collecting) {
      expect(m.phase == Phase::collecting, rule::closes_full, "it closes early");
      if (l.ending == protocol::Ending::none)
        expect(m.required == required(), rule::closes_full, "it is to close with another number");
    } else {
      expect(m.phase == l.phase, rule::closes_full, "it stays open");
    }
    int total = 0, divisor = 0, poisoners = 0;
    for (int i = 0; i < set_.n; ++i) {
      check_place(i);
      const Entry& e = entry(i);
      const std::int8_t published = place(i).published;
      if (published != protocol::k_unpublished) divisor += e.slots[at(published)].total;
      for (int k = 0; k < e.served; ++k)
        if ((e.finite >> k & 1) != 0) total += weight_of(i, k);
      poisoners += e.poison != 0;
      if (l.phase != Phase::collecting)
        expect(published == l.frozen[at(i)], rule::one_set, "a published slot changes");
    }
    expect(divisor == total, rule::divisor, "it is another");
    expect((m.poisoned_by >= 0) == (poisoners > 0) && (m.poisoned_by < 0 || entry(m.poisoned_by).poison != 0),
           rule::poison, "the one who is named is another");
  }

  void check_place(int i) {
    const protocol::Place& p = place(i);
    const Replica& r = replica(i);
    const Entry& e = entry(i);
    expect((p.seat == protocol::Seat::active) == (r.at != At::away), rule::membership, "it does not");
    expect(p.served == e.served, rule::counted_once, "a place has another number of contributions");
    expect(p.quota == e.permits, rule::permits, "a place's number changes by itself");
    expect(p.sequence == e.sequence, rule::sequence, "a place's number is another");
    if (r.at != At::away && r.at != At::admission)
      expect(r.sequence == p.sequence, rule::sequence, "a replica works on another number");
    expect(p.local_generation < machine_.generation || p.local_step <= machine_.global_step, rule::labels,
           "it is ahead");
    const bool is_missing =
        machine_.phase == protocol::Phase::collecting && is_expected(i) && e.served < e.permits;
    expect(do_.is_missing(machine_, i) == is_missing, rule::missing, "a place is listed or left out");
    if (r.at == At::computing || r.at == At::merging)
      expect(p.published != r.staged, rule::slots_apart, "it is about to");
    const Slot slot = p.published == protocol::k_unpublished ? Slot{} : e.slots[at(p.published)];
    expect(slot.in == e.finite && !slot.fresh && !slot.junk, rule::averaged_once, "they do not");
    // Between transitions nobody writes variables that are held, because updates start by a transition.
    if (machine_.phase == protocol::Phase::applying)
      expect(readers() == 0, rule::still_for_readers, "an update is under way");
  }

  Setting set_;
  Transitions do_;
  protocol::Round machine_;
  Ledger ledger_;
};

}  // namespace lockstep::test
