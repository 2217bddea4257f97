// SPDX-License-Identifier: MIT
/// @file
/// `protocol::Window` against a direct statement of each variant's rule, for every history of micro-batches
/// and flushes.
#include "explorer/explore.hpp"
#include "support/catch.hpp"
#include <lockstep/protocol/window.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace {

using namespace lockstep;
using namespace lockstep::test;
using protocol::Window;
using Variant = AggregationVariant;

constexpr std::array variants = {Variant::own_counter, Variant::gpu,   Variant::tpu,
                                 Variant::mlperf_v1,   Variant::early, Variant::lingvo};

constexpr std::string_view closes_rule = "a window closes where the rule of its variant says";
constexpr std::string_view step_rule = "the global step counts what its variant says";
constexpr std::string_view counter_rule = "the own counter counts what its variant says";
constexpr std::string_view conservation = "every micro-batch is in one window";
constexpr std::string_view size_rule = "a window of the default has k micro-batches unless it is flushed";

/// What has happened, from which each rule can be stated without counters.
struct History {
  int micro_batches = 0;
  int updates = 0;
  int pending = 0;    // since the last update
  int in_closed = 0;  // sum over the closed windows
};

/// @tparam Machine  `Window`, or one derived from it with a broken transition.
template <class Machine>
class WindowModel {
 public:
  struct State {
    Machine window;
    History history;
    int k;
  };
  /// A micro-batch, flushed or not; `k` is the length of the next window if this one closes.
  struct Event {
    bool flush = false;
    std::int8_t k = 0;
  };
  using Key = Bits<1>;
  static constexpr std::string_view k_can_go_on = closes_rule;

  /// @param changes whether the length may change after each update.
  WindowModel(Variant variant, int k, bool changes) : variant_(variant), k_(k), changes_(changes) {}

  State initial() const { return {Machine{}, {}, k_}; }
  Key key(const State& s) const {
    Key bits;
    for (const int n :
         {s.history.micro_batches, s.history.updates, s.history.pending, s.history.in_closed, s.k})
      bits.put(n, 5);
    for (const std::int64_t n : {s.window.global_step, s.window.counter, s.window.pending, s.window.updates})
      bits.put(n, 6);
    return bits;
  }
  bool is_bound(const State& s) const { return s.history.micro_batches == 12; }
  void events(const State& s, std::vector<Event>& list) const {
    for (const bool flush : {false, true}) {
      list.push_back({flush, static_cast<std::int8_t>(s.k)});
      for (int k = 1; k <= 4 && changes_; ++k)
        if (k != s.k) list.push_back({flush, static_cast<std::int8_t>(k)});
    }
  }

  State after(const State& before, const Event& event) const {
    State s = before;
    History& h = s.history;
    const bool closes = s.window.closes(variant_, s.k);
    expect(closes == should_close(h, s.k), closes_rule, "it does not");
    const bool applied = closes || event.flush;
    s.window.advance(variant_, s.k, applied);
    ++h.micro_batches;
    ++h.pending;
    if (applied) {
      if (variant_ == Variant::own_counter)
        expect(event.flush ? h.pending <= before.k : h.pending == before.k, size_rule,
               "it has another number");
      ++h.updates;
      h.in_closed += h.pending;
      h.pending = 0;
      s.k = event.k;
    }
    const Window& w = s.window;
    const bool counts_micro_batches =
        variant_ == Variant::gpu || variant_ == Variant::tpu || variant_ == Variant::early;
    expect(w.updates == h.updates && w.pending == h.pending && w.pending + h.in_closed == h.micro_batches,
           conservation, "one is lost or counted again");
    expect(w.global_step == (counts_micro_batches ? h.micro_batches : h.updates), step_rule, "it does not");
    if (!changes_) expect(w.counter == should_count(h), counter_rule, "it does not");
    return s;
  }
  Role role(const State&, const Event&, const State& after) const {
    return after.history.pending == 0 ? Role::goal : Role::progress;
  }
  void check_stuck(const State&) const {}
  std::string text(const Event& event) const {
    return std::string(event.flush ? "flushed" : "micro-batch") + ", k=" + std::to_string(event.k);
  }

 private:
  /// Whether the next micro-batch, number `micro_batches` counted from 0, closes a window.
  bool should_close(const History& h, int k) const {
    if (variant_ == Variant::own_counter) return h.pending + 1 == k;
    // All historical variants close at fixed places of the sequence of micro-batches, whatever has been
    // flushed.
    return (h.micro_batches + 1) % k == 0;
  }
  int should_count(const History& h) const {
    switch (variant_) {
      case Variant::gpu:
        return 0;
      case Variant::early:
        return h.updates;
      case Variant::lingvo:
        return k_ == 1 ? 0 : h.micro_batches;
      case Variant::own_counter:
      case Variant::tpu:
      case Variant::mlperf_v1:
        break;
    }
    return h.micro_batches;
  }

  Variant variant_;
  int k_;
  bool changes_;
};

void check(Variant variant, int k, bool changes) {
  const std::string name = "window variant=" + std::to_string(static_cast<int>(variant)) +
                           " k=" + std::to_string(k) + (changes ? ", changing" : "");
  const Exploration result = explore(WindowModel<Window>(variant, k, changes), name);
  INFO(name << "\n" << result.report);
  CHECK(result.violated.empty());
}

// ---- broken windows

struct ClosesLate : Window {
  static constexpr auto violates = closes_rule;
  bool closes(Variant, std::int64_t k) const { return pending >= k; }
};
struct ForgetsFlush : Window {
  static constexpr auto violates = conservation;
  void advance(Variant variant, std::int64_t k, bool applied) {
    Window::advance(variant, k, applied && Window::closes(variant, k));
  }
};
struct KeepsPending : Window {
  static constexpr auto violates = conservation;
  void advance(Variant variant, std::int64_t k, bool applied) {
    Window::advance(variant, k, applied);
    if (applied) pending = 1;
  }
};
struct CountsMicroBatches : Window {
  static constexpr auto violates = step_rule;
  void advance(Variant variant, std::int64_t k, bool applied) {
    Window::advance(variant, k, applied);
    global_step = counter;
  }
};
struct CountsUpdates : Window {
  static constexpr auto violates = counter_rule;
  void advance(Variant variant, std::int64_t k, bool applied) {
    Window::advance(variant, k, applied);
    counter = updates;
  }
};
using Faults = std::tuple<ClosesLate, ForgetsFlush, KeepsPending, CountsMicroBatches, CountsUpdates>;

}  // namespace

TEST_CASE("window: every variant keeps its rule for every history", "[explorer][window]") {
  for (const Variant variant : variants)
    for (int k = 1; k <= 4; ++k) check(variant, k, false);
}

TEST_CASE("window: the length may change after each update", "[explorer][window]") {
  for (int k = 1; k <= 4; ++k) check(Variant::own_counter, k, true);
}

TEMPLATE_LIST_TEST_CASE("window: a seeded fault is objected to", "[explorer][window][fault]", Faults) {
  const Exploration result = explore(WindowModel<TestType>(Variant::own_counter, 3, false), "window fault");
  INFO(result.report);
  CHECK(result.violated == TestType::violates);
}
