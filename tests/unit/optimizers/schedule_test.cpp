// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include <lockstep/optimizers/schedule.hpp>

#include <limits>

using namespace lockstep;

TEST_CASE("Schedule: a constant is the same at every step", "[optimizers]") {
  const Schedule schedule = 0.25;
  CHECK(schedule(0) == 0.25);
  CHECK(schedule(StepInfo{.step = 1000, .examples = 7, .schedule = 3}) == 0.25);
}

TEST_CASE("Schedule: a callable sees the schedule count", "[optimizers]") {
  const Schedule schedule = [](std::int64_t step) { return 1.0 / static_cast<double>(1 + step); };
  CHECK(schedule(0) == 1);
  CHECK(schedule(3) == 0.25);
  CHECK(schedule(StepInfo{.step = 9, .schedule = 1}) == 0.5);
}

TEST_CASE("Schedule: a function pointer and a callable of another result type convert", "[optimizers]") {
  const Schedule by_float = [](std::int64_t) { return 0.5F; };
  const Schedule by_pointer = +[](std::int64_t step) { return static_cast<double>(step); };
  CHECK(by_float(1) == 0.5);
  CHECK(by_pointer(4) == 4);
}

TEST_CASE("Schedule: by_examples sees the weight so far", "[optimizers]") {
  const Schedule schedule = Schedule::by_examples([](double examples) { return examples / 2; });
  CHECK(schedule(StepInfo{.step = 100, .weight = 50, .examples = 8, .schedule = 100}) == 4);
}

TEST_CASE("Schedule: a value that is not finite is refused, with value and update", "[optimizers]") {
  CHECK_THROWS_AS(Schedule(std::numeric_limits<double>::infinity()), InvalidArgument);
  const Schedule breaks = [](std::int64_t step) {
    return step < 5 ? 1.0 : std::numeric_limits<double>::quiet_NaN();
  };
  CHECK_NOTHROW(breaks(4));
  CHECK_THROWS_WITH(breaks(5), Catch::Matchers::ContainsSubstring("got nan at update 5"));
}

TEST_CASE("Schedule: equality is of constants and of identical functions", "[optimizers]") {
  const Schedule a = [](std::int64_t) { return 1.0; };
  const Schedule copy = a;
  const Schedule b = [](std::int64_t) { return 1.0; };
  CHECK(Schedule(1.0) == Schedule(1.0));
  CHECK_FALSE(Schedule(1.0) == Schedule(2.0));
  CHECK(a == copy);
  CHECK_FALSE(a == b);
  CHECK_FALSE(a == Schedule(1.0));
}
