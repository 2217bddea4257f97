// SPDX-License-Identifier: MIT
/// @file
/// Every order of events around `protocol::Round`, for all sizes up to three replicas and four contributions.
#include "explorer/round_model.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <utility>

namespace {

using namespace lockstep;
using namespace lockstep::test;

constexpr std::array policies = {Departure::redistribute, Departure::shrink, Departure::wait, Departure::fail,
                                 Departure::stop};

std::string name_of(const Setting& s) {
  std::string text =
      "round N=" + std::to_string(s.n) + " R=" + std::to_string(s.r) + " " + to_string(s.departure);
  const auto add = [&text](int count, const char* what) {
    if (count > 0) text += ", " + std::to_string(count) + " " + what;
  };
  add(std::max(0, s.init_tokens - std::max(0, s.r - s.n)), "spare tokens");
  add(s.budget.departures, s.fails ? "departures or failures" : "departures");
  add(s.budget.rejoins, "replacements");
  add(s.budget.timeouts, "timeouts");
  add(s.budget.bad, s.poisons ? "poisons" : "not finite");
  add(s.budget.holds, "readers");
  add(s.budget.restores, "restores");
  add(s.budget.resets, "new runs");
  if (s.windows) text += ", windows";
  if (s.snapshots) text += ", snapshots";
  if (s.plans_apart) text += ", planned apart";
  return text;
}

void check(const Setting& setting) {
  const Exploration result = explore(RoundModel(setting), name_of(setting));
  INFO(name_of(setting) << "\n" << result.report);
  CHECK(result.violated.empty());
}

/// With as many initial tokens as lock-step needs, and with `spare` more.
Setting sized(int n, int r, int spare = 0) {
  return {.n = n, .r = r, .init_tokens = std::max(0, r - n) + spare};
}

template <class F>
void for_each_size(F&& f) {
  for (int n = 1; n <= 3; ++n)
    for (int r = 1; r <= 4; ++r) f(n, r);
}

}  // namespace

TEST_CASE("round: undisturbed runs keep every invariant", "[explorer][round]") {
  for_each_size([](int n, int r) {
    for (int spare = 0; spare <= 3; ++spare) {
      Setting setting = sized(n, r, spare);
      check(setting);
      setting.windows = setting.snapshots = setting.plans_apart = true;
      check(setting);
    }
  });
}

TEST_CASE("round: departures, failures and replacements keep every invariant", "[explorer][round]") {
  for_each_size([](int n, int r) {
    for (const Departure policy : policies) {
      const bool ends = policy == Departure::fail || policy == Departure::stop;
      for (int spare = 0; spare <= (n == 3 && ends ? 0 : 1); ++spare) {
        Setting setting = sized(n, r, spare);
        setting.departure = policy;
        setting.fails = true;
        setting.updates = n == 3 ? 2 : 3;
        setting.budget = {.departures = n == 3 ? 2 : 3, .rejoins = n == 3 || ends ? 1 : 2};
        check(setting);
      }
    }
  });
}

TEST_CASE("round: three updates of three replicas with a departure and a replacement keep every invariant",
          "[explorer][round]") {
  for (int r = 1; r <= 4; ++r)
    for (const Departure policy : policies) {
      Setting setting = sized(3, r);
      setting.departure = policy;
      setting.fails = true;
      setting.budget = {.departures = 1, .rejoins = 1, .restores = 1};
      check(setting);
    }
}

TEST_CASE("round: timeouts, withdrawals and gradients that are not finite keep every invariant",
          "[explorer][round]") {
  for_each_size([](int n, int r) {
    for (const bool poisons : {false, true}) {
      for (int spare = 0; spare <= 1; ++spare) {
        Setting setting = sized(n, r, spare);
        setting.poisons = poisons;
        setting.windows = true;
        setting.updates = n == 3 ? 2 : 3;
        setting.budget = {.timeouts = 2, .bad = n == 3 && r == 2 ? 1 : 2};
        check(setting);
      }
    }
  });
}

TEST_CASE("round: readers, restores and late starts keep every invariant", "[explorer][round]") {
  for_each_size([](int n, int r) {
    for (int spare = 0; spare <= 1; ++spare) {
      Setting setting = sized(n, r, spare);
      setting.snapshots = r < n || spare > 0;
      setting.plans_apart = true;
      setting.updates = n == 3 ? 2 : 3;
      setting.budget = {.holds = 1, .restores = n == 3 ? 1 : 2};
      check(setting);
    }
  });
}

TEST_CASE("round: new runs keep every invariant", "[explorer][round]") {
  for_each_size([](int n, int r) {
    for (const Departure policy : policies) {
      Setting setting = sized(n, r);
      setting.departure = policy;
      setting.updates = 2;
      setting.budget = {.departures = n, .rejoins = n == 3 ? 0 : 1, .resets = 1};
      check(setting);
    }
  });
}

TEST_CASE("round: everything at once keeps every invariant", "[explorer][round]") {
  for (const auto& [n, r] : {std::pair(1, 1), {2, 1}, {2, 2}, {2, 3}, {3, 2}, {3, 3}}) {
    for (const Departure policy : {Departure::redistribute, Departure::shrink, Departure::wait}) {
      Setting setting = sized(n, r, n == 2 ? 1 : 0);
      setting.departure = policy;
      setting.updates = 2;
      setting.poisons = setting.windows = setting.plans_apart = true;
      setting.snapshots = r < n || n == 2;
      const int readers = n < 3 && r < 3 ? 1 : 0;
      const int restores = policy == Departure::redistribute ? readers : 0;
      setting.budget = {
          .departures = 1, .rejoins = 1, .timeouts = 1, .bad = 1, .holds = readers, .restores = restores};
      check(setting);
    }
  }
}
