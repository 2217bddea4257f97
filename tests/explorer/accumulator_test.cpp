// SPDX-License-Identifier: MIT
/// @file
/// `protocol::Accumulator` through every order of gradients, takers, cancellations and new steps.
#include "explorer/explore.hpp"
#include "support/catch.hpp"
#include <lockstep/protocol/accumulator.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace {

using namespace lockstep;
using namespace lockstep::test;
using protocol::Admission;
using protocol::Push;
using protocol::Ticket;

constexpr std::size_t k_line = 2;  // room in the line
constexpr int k_takes = 4;         // takers of one run
constexpr int k_gradients = 5;     // accepted in one run
constexpr Index k_last_step = 5;

constexpr std::string_view staleness =
    "a gradient is dropped if and only if its local step is below the step";
constexpr std::string_view conservation =
    "every accepted gradient is in the sum or was in one that was served";
constexpr std::string_view order = "takers are served in order, each when it has enough";
constexpr std::string_view admission = "a taker is admitted if it asks for something and there is room";
constexpr std::string_view cancelling = "a taker can be cancelled if and only if it stands in line";
constexpr std::string_view stepping = "the step moves by one with each sum, or where it is set";

struct Taker {
  std::int8_t ticket = 0;
  std::int8_t required = 0;
};

/// @tparam Machine  `protocol::Accumulator<k_line>`, or one derived from it with a broken transition.
template <class Machine>
class AccumulatorModel {
 public:
  struct State {
    Machine machine;
    std::vector<Taker> line;
    std::int8_t accepted = 0, served = 0, takes = 0, sets = 0;
    std::int8_t step = 0;
  };
  struct Event {
    enum class Kind : std::uint8_t { apply, take, cancel, set_step } kind = Kind::apply;
    std::int8_t arg = 0;
  };
  using Kind = typename Event::Kind;
  using Key = Bits<2>;
  static constexpr std::string_view k_can_go_on = order;

  State initial() const { return {}; }
  Key key(const State& s) const {
    Key bits;
    for (const int n : {s.accepted, s.served, s.takes, s.sets, s.step}) bits.put(n, 4);
    bits.put(static_cast<std::int64_t>(s.line.size()), 3);
    for (const Taker& taker : s.line) {
      bits.put(taker.ticket, 4);
      bits.put(taker.required, 3);
    }
    for (const Index n : {s.machine.count(), s.machine.step(), static_cast<Index>(s.machine.waiting())})
      bits.put(n, 4);
    return bits;
  }
  bool is_bound(const State&) const { return false; }
  void events(const State& s, std::vector<Event>& list) const {
    const auto add = [&list](Kind kind, int arg) { list.push_back({kind, static_cast<std::int8_t>(arg)}); };
    if (s.accepted < k_gradients)
      for (int local = std::max(0, s.step - 1); local <= s.step + 1; ++local) add(Kind::apply, local);
    if (s.takes < k_takes)
      for (int required = -1; required <= 3; ++required) add(Kind::take, required);
    for (int ticket = 0; ticket <= s.takes + 1; ++ticket) add(Kind::cancel, ticket);
    if (s.sets < 2 && s.step < k_last_step)
      for (const int step : {std::max(0, s.step - 1), s.step + 1}) add(Kind::set_step, step);
  }

  State after(const State& before, const Event& event) const {
    State s = before;
    switch (event.kind) {
      case Kind::apply:
        apply(s, event.arg);
        break;
      case Kind::take:
        take(s, event.arg);
        break;
      case Kind::cancel:
        cancel(s, event.arg);
        break;
      case Kind::set_step:
        expect(s.machine.set_global_step(event.arg) == (event.arg < s.step), stepping,
               "going back is not told");
        s.step = event.arg;
        ++s.sets;
        break;
    }
    expect(s.machine.count() == s.accepted - s.served, conservation, "one is lost or counted again");
    expect(s.machine.step() == s.step, stepping, "it is another");
    expect(s.machine.waiting() == s.line.size(), order, "the line has another length");
    Machine copy = s.machine;
    expect(!copy.serve(), order, "the head is due and not served");
    return s;
  }
  Role role(const State&, const Event&, const State&) const { return Role::goal; }
  void check_stuck(const State&) const {}
  std::string text(const Event& event) const {
    static constexpr std::array names = {"apply ", "take ", "cancel ", "set step "};
    return names[static_cast<std::size_t>(event.kind)] + std::to_string(event.arg);
  }

 private:
  static void apply(State& s, int local) {
    const bool is_accepted = s.machine.on_apply(local) == Push::accepted;
    expect(is_accepted == (local >= s.step), staleness, "it is not so");
    if (is_accepted) ++s.accepted;
    serve(s);
  }
  static void take(State& s, int required) {
    const auto begun = s.machine.begin_take(required);
    const Admission expected = required < 1              ? Admission::bad_request
                               : s.line.size() == k_line ? Admission::full
                                                         : Admission::admitted;
    expect(begun.admission == expected, admission, "it is not");
    if (expected != Admission::admitted)
      return expect(begun.ticket == 0, admission, "a refused one has a ticket");
    ++s.takes;
    expect(begun.ticket == static_cast<Ticket>(s.takes), admission, "a ticket is given again or left out");
    s.line.push_back({s.takes, static_cast<std::int8_t>(required)});
    serve(s);
  }
  static void cancel(State& s, int ticket) {
    const auto found =
        std::find_if(s.line.begin(), s.line.end(), [ticket](const Taker& t) { return t.ticket == ticket; });
    expect(s.machine.cancel(static_cast<Ticket>(ticket)) == (found != s.line.end()), cancelling,
           "it is not so");
    if (found != s.line.end()) s.line.erase(found);
    serve(s);
  }
  static void serve(State& s) {
    while (const auto served = s.machine.serve()) {
      expect(!s.line.empty() && served->ticket == static_cast<Ticket>(s.line.front().ticket), order,
             "another one is served");
      expect(served->count >= s.line.front().required, order, "it has not enough");
      expect(served->count == s.accepted - s.served, conservation, "the divisor is another");
      s.line.erase(s.line.begin());
      s.served = s.accepted;
      ++s.step;
    }
  }
};

// ---- broken accumulators

using Right = protocol::Accumulator<k_line>;

struct AcceptsStale : Right {
  static constexpr auto violates = staleness;
  Push on_apply(Index local_step) { return Right::on_apply(std::max(local_step, step())); }
};
struct DropsTheFuture : Right {
  static constexpr auto violates = staleness;
  Push on_apply(Index local_step) {
    return local_step > step() ? Push::dropped : Right::on_apply(local_step);
  }
};
struct DividesByRequired : Right {
  static constexpr auto violates = conservation;
  std::optional<Served> serve() {
    auto served = Right::serve();
    if (served) served->count = std::min<Index>(served->count, 1);
    return served;
  }
};
struct StaysAtStep : Right {
  static constexpr auto violates = stepping;
  std::optional<Served> serve() {
    const Index before = step();
    const auto served = Right::serve();
    if (served) set_global_step(before);
    return served;
  }
};
struct ServesLast : Right {
  static constexpr auto violates = order;
  std::optional<Served> serve() {
    auto served = Right::serve();
    if (served && waiting() > 0) ++served->ticket;
    return served;
  }
};
struct KeepsCancelled : Right {
  static constexpr auto violates = order;
  bool cancel(Ticket ticket) {
    Right probe = *this;
    return probe.cancel(ticket);
  }
};
struct AdmitsNothing : Right {
  static constexpr auto violates = admission;
  Begun begin_take(Index num_required) { return Right::begin_take(std::max<Index>(num_required, 1)); }
};
struct CancelsAnything : Right {
  static constexpr auto violates = cancelling;
  bool cancel(Ticket ticket) { return Right::cancel(ticket) || ticket == 0; }
};
using Faults = std::tuple<AcceptsStale, DropsTheFuture, DividesByRequired, StaysAtStep, ServesLast,
                          KeepsCancelled, AdmitsNothing, CancelsAnything>;

}  // namespace

TEST_CASE("accumulator: every order of events keeps every invariant", "[explorer][accumulator]") {
  const Exploration result = explore(AccumulatorModel<Right>(), "accumulator");
  INFO(result.report);
  CHECK(result.violated.empty());
}

TEMPLATE_LIST_TEST_CASE("accumulator: a seeded fault is objected to", "[explorer][accumulator][fault]",
                        Faults) {
  const Exploration result = explore(AccumulatorModel<TestType>(), "accumulator fault");
  INFO(result.report);
  CHECK(result.violated == TestType::violates);
}
