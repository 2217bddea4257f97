// SPDX-License-Identifier: MIT
/// @file
/// `protocol::TokenQueue` through every order of tokens, requests, cancellations, polls, deaths and closing.
#include "explorer/explore.hpp"
#include "support/catch.hpp"
#include <lockstep/protocol/token_queue.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace {

using namespace lockstep;
using namespace lockstep::test;
using protocol::Admission;
using protocol::Dequeued;
using protocol::Enqueued;
using protocol::Ticket;
using Outcome = Dequeued::Outcome;

constexpr std::size_t k_runs = 2;      // runs of equal tokens that find room
constexpr std::size_t k_requests = 3;  // requests that find room
constexpr int k_all_tokens = 5;        // of one run
constexpr int k_all_requests = 5;      // of one run

constexpr std::string_view conservation = "tokens are neither made nor lost";
constexpr std::string_view first_in = "tokens leave in the order in which they came, to requests in theirs";
constexpr std::string_view all_or_none = "tokens are refused together, if the queue is closed or has no room";
constexpr std::string_view admission = "a request is refused if and only if there is no room";
constexpr std::string_view cancelling = "a request can be cancelled if and only if it waits";
constexpr std::string_view closing = "a closed queue gives out what it has and then nothing";
constexpr std::string_view nobody_waits = "nobody waits while there is a token";

struct Request {
  std::int8_t ticket = 0;
  Outcome outcome = Outcome::pending;
  std::int8_t value = 0;
};

/// @tparam Machine  `protocol::TokenQueue<k_runs, k_requests>`, or one derived from it with a broken
/// transition.
template <class Machine>
class TokenQueueModel {
 public:
  struct State {
    Machine machine;
    std::vector<std::int8_t> tokens;  // in the queue
    std::vector<Request> requests;    // waiting or not collected
    std::int8_t made = 0, asked = 0, cancels = 0, deaths = 0;
    bool closed = false;
  };
  struct Event {
    enum class Kind : std::uint8_t {
      enqueue_many,
      enqueue_pair,
      request,
      cancel,
      poll,
      forget,
      close
    } kind = Kind::close;
    std::int8_t a = 0, b = 0;
  };
  using Kind = typename Event::Kind;
  using Key = Bits<2>;
  static constexpr std::string_view k_can_go_on = nobody_waits;

  State initial() const { return {}; }
  Key key(const State& s) const {
    Key bits;
    bits.put(static_cast<std::int64_t>(s.tokens.size()), 3);
    for (const int token : s.tokens) bits.put(token, 2);
    bits.put(static_cast<std::int64_t>(s.requests.size()), 3);
    for (const Request& r : s.requests) {
      bits.put(r.ticket, 3);
      bits.put(static_cast<int>(r.outcome), 2);
      bits.put(r.value, 2);
    }
    for (const int n : {s.made, s.asked, s.cancels}) bits.put(n, 3);
    bits.put(s.deaths, 1);
    bits.put(s.closed, 1);
    bits.put(s.machine.size(), 3);
    bits.put(static_cast<std::int64_t>(s.machine.waiting()), 3);
    return bits;
  }
  bool is_bound(const State&) const { return false; }
  void events(const State& s, std::vector<Event>& list) const {
    const auto add = [&list](Kind kind, int a = 0, int b = 0) {
      list.push_back({kind, static_cast<std::int8_t>(a), static_cast<std::int8_t>(b)});
    };
    for (int value = 1; value <= 2; ++value)
      for (int n = 0; n <= 2 && s.made + n <= k_all_tokens; ++n) add(Kind::enqueue_many, value, n);
    if (s.made + 2 <= k_all_tokens)
      for (const auto& [a, b] : {std::pair(1, 2), {2, 1}, {3, 3}}) add(Kind::enqueue_pair, a, b);
    if (s.asked < k_all_requests) add(Kind::request);
    for (int ticket = 0; ticket <= s.asked + 1; ++ticket) {
      if (s.cancels < 2) add(Kind::cancel, ticket);
      add(Kind::poll, ticket);
    }
    for (int owner = 0; owner < 2; ++owner)
      if (s.deaths == 0) add(Kind::forget, owner);
    add(Kind::close);
  }

  State after(const State& before, const Event& event) const {
    State s = before;
    switch (event.kind) {
      case Kind::enqueue_many:
        accept(s, s.machine.enqueue_many(event.a, event.b),
               std::vector<std::int8_t>(static_cast<std::size_t>(event.b), event.a));
        break;
      case Kind::enqueue_pair: {
        const std::array<Index, 2> values = {event.a, event.b};
        accept(s, s.machine.enqueue(values), {event.a, event.b});
        break;
      }
      case Kind::request:
        request(s);
        break;
      case Kind::cancel:
        cancel(s, event.a);
        break;
      case Kind::poll:
        poll(s, event.a);
        break;
      case Kind::forget:
        forget(s, event.a);
        break;
      case Kind::close:
        close(s);
        break;
    }
    const auto waiting = std::count_if(s.requests.begin(), s.requests.end(), is_pending);
    expect(s.machine.size() == static_cast<Index>(s.tokens.size()), conservation,
           "the queue has another number");
    expect(s.machine.waiting() == static_cast<std::size_t>(waiting), nobody_waits, "another number waits");
    expect(waiting == 0 || s.machine.size() == 0, nobody_waits, "somebody does");
    expect(s.machine.is_closed() == s.closed, closing, "it is not told");
    drain(s);
    return s;
  }
  Role role(const State&, const Event&, const State&) const { return Role::goal; }
  void check_stuck(const State&) const {}
  std::string text(const Event& event) const {
    static constexpr std::array names = {"enqueue many ", "enqueue ", "request ", "cancel ",
                                         "poll ",         "forget ",  "close "};
    return names[static_cast<std::size_t>(event.kind)] + std::to_string(event.a) + " " +
           std::to_string(event.b);
  }

 private:
  static constexpr int owner_of(int ticket) { return ticket % 2; }
  static bool is_pending(const Request& r) { return r.outcome == Outcome::pending; }
  static auto find(State& s, int ticket) {
    return std::find_if(s.requests.begin(), s.requests.end(),
                        [ticket](const Request& r) { return r.ticket == ticket; });
  }

  static void accept(State& s, Enqueued told, const std::vector<std::int8_t>& values) {
    State with = s;
    for (const std::int8_t value : values) {
      const auto first = std::find_if(with.requests.begin(), with.requests.end(), is_pending);
      if (first == with.requests.end()) {
        with.tokens.push_back(value);
      } else {
        first->outcome = Outcome::token;
        first->value = value;
      }
    }
    std::size_t runs = with.tokens.empty() ? 0 : 1;
    for (std::size_t i = 1; i < with.tokens.size(); ++i) runs += with.tokens[i] != with.tokens[i - 1];
    const Enqueued expected = values.empty()  ? Enqueued::accepted
                              : s.closed      ? Enqueued::closed
                              : runs > k_runs ? Enqueued::full
                                              : Enqueued::accepted;
    expect(told == expected, all_or_none, "they are not");
    if (expected != Enqueued::accepted) return;
    s.tokens = with.tokens;
    s.requests = with.requests;
    s.made = static_cast<std::int8_t>(s.made + static_cast<int>(values.size()));
  }
  static void request(State& s) {
    const auto begun = s.machine.begin_dequeue(owner_of(s.asked + 1));
    const bool has_room = s.requests.size() < k_requests;
    expect((begun.admission == Admission::admitted) == has_room, admission, "it is not so");
    if (!has_room) return;
    ++s.asked;
    expect(begun.ticket == static_cast<Ticket>(s.asked), admission, "a ticket is given again or left out");
    Request r{.ticket = s.asked};
    if (!s.tokens.empty()) {
      r.outcome = Outcome::token;
      r.value = s.tokens.front();
      s.tokens.erase(s.tokens.begin());
    } else if (s.closed) {
      r.outcome = Outcome::out_of_range;
    }
    s.requests.push_back(r);
  }
  static void cancel(State& s, int ticket) {
    const auto found = find(s, ticket);
    const bool waits = found != s.requests.end() && is_pending(*found);
    expect(s.machine.cancel(static_cast<Ticket>(ticket)) == waits, cancelling, "it is not so");
    if (!waits) return;
    s.requests.erase(found);
    ++s.cancels;
  }
  static void poll(State& s, int ticket) {
    const Dequeued told = s.machine.poll(static_cast<Ticket>(ticket));
    const auto found = find(s, ticket);
    if (found == s.requests.end())
      return expect(told == Dequeued{}, first_in, "an unknown request gets something");
    expect(told == Dequeued{found->outcome, found->value},
           found->outcome == Outcome::out_of_range ? closing : first_in, "a request gets something else");
    if (!is_pending(*found)) s.requests.erase(found);
  }
  static void forget(State& s, int owner) {
    s.machine.forget_if([owner](int one) { return one == owner; });
    std::erase_if(s.requests, [owner](const Request& r) { return owner_of(r.ticket) == owner; });
    ++s.deaths;
  }
  static void close(State& s) {
    expect(s.machine.close() == !s.closed, closing, "closing again is not told");
    s.closed = true;
    for (Request& r : s.requests)
      if (is_pending(r)) r.outcome = Outcome::out_of_range;
  }
  /// What is in the queue can be had, in order.
  static void drain(const State& s) {
    Machine copy = s.machine;
    for (const Request& r : s.requests)
      if (!is_pending(r)) static_cast<void>(copy.poll(static_cast<Ticket>(r.ticket)));
    for (const std::int8_t token : s.tokens) {
      const auto begun = copy.begin_dequeue(0);
      expect(copy.poll(begun.ticket) == Dequeued{Outcome::token, token}, first_in, "another token is next");
    }
  }
};

// ---- broken queues

using Right = protocol::TokenQueue<k_runs, k_requests>;

struct LosesOne : Right {
  static constexpr auto violates = conservation;
  Enqueued enqueue_many(Index value, Index n) { return Right::enqueue_many(value, std::min<Index>(n, 1)); }
};
struct TurnsRound : Right {
  static constexpr auto violates = first_in;
  Enqueued enqueue(std::span<const Index> values) {
    const std::array<Index, 2> turned = {values[1], values[0]};
    return Right::enqueue(turned);
  }
};
struct GivesHalf : Right {
  static constexpr auto violates = all_or_none;
  Enqueued enqueue(std::span<const Index> values) {
    const Enqueued told = Right::enqueue(values);
    return told == Enqueued::full ? Right::enqueue(values.first(1)) : told;
  }
};
struct CancelsServed : Right {
  static constexpr auto violates = cancelling;
  bool cancel(Ticket ticket) {
    return Right::cancel(ticket) || Right::poll(ticket).outcome == Outcome::token;
  }
};
struct LosesTokensAtClose : Right {
  static constexpr auto violates = conservation;
  bool close() {
    if (is_closed()) return false;
    *this = LosesTokensAtClose{};
    return Right::close();
  }
};
struct OpensAgain : Right {
  static constexpr auto violates = closing;
  bool close() {
    Right::close();
    return true;
  }
};
struct TokenForCancelled : Right {
  static constexpr auto violates = nobody_waits;
  bool cancel(Ticket ticket) {
    Right copy = *this;
    return copy.cancel(ticket);
  }
};
struct RefusesSecond : Right {
  static constexpr auto violates = admission;
  Begun begin_dequeue(int owner) {
    return waiting() > 0 ? Begun{Admission::full, 0} : Right::begin_dequeue(owner);
  }
};
struct RemembersServed : Right {
  static constexpr auto violates = first_in;
  template <class IsGone>
  void forget_if(IsGone&& is_gone) {
    for (Ticket ticket = 1; ticket <= k_all_requests; ++ticket)
      if (is_gone(static_cast<int>(ticket % 2))) cancel(ticket);
  }
};
using Faults = std::tuple<LosesOne, TurnsRound, GivesHalf, CancelsServed, LosesTokensAtClose, OpensAgain,
                          TokenForCancelled, RefusesSecond, RemembersServed>;

}  // namespace

TEST_CASE("token_queue: every order of events keeps every invariant", "[explorer][token_queue]") {
  const Exploration result = explore(TokenQueueModel<Right>(), "token queue");
  INFO(result.report);
  CHECK(result.violated.empty());
}

TEMPLATE_LIST_TEST_CASE("token_queue: a seeded fault is objected to", "[explorer][token_queue][fault]",
                        Faults) {
  const Exploration result = explore(TokenQueueModel<TestType>(), "token queue fault");
  INFO(result.report);
  CHECK(result.violated == TestType::violates);
}
