// SPDX-License-Identifier: MIT
/// @file
/// The dense accumulator: arithmetic, shapes, takers, deadlines and threads.
#include "support/catch.hpp"
#include "support/hooked_transport.hpp"
#include "support/threads.hpp"
#include <lockstep/accumulators/conditional_accumulator.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace ls = lockstep;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using ls::Index;
using ls::Shape;
using ls::Tensor;

static_assert(ls::AccumulatedScalar<Eigen::half> && ls::AccumulatedScalar<float> &&
              ls::AccumulatedScalar<double>);
static_assert(!ls::AccumulatedScalar<int> && !ls::AccumulatedScalar<long double>);

namespace {

template <class T>
std::vector<T> of(std::initializer_list<double> values) {
  std::vector<T> result;
  for (const double value : values) result.push_back(static_cast<T>(value));
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("conditional_accumulator: mean and sum in the type of the gradients", "[accumulator]",
                   float, double, Eigen::half) {
  const auto a = of<TestType>({1, 2, 3, 4});
  const auto b = of<TestType>({3, 6, 9, 14});
  SECTION("mean") {
    ls::ConditionalAccumulator<TestType> accumulator;
    accumulator.apply_grad({a, {2, 2}}, 0);
    accumulator.apply_grad({b, {2, 2}}, 0);
    CHECK(accumulator.take_grad(1) == Tensor<TestType>{of<TestType>({2, 4, 6, 9}), {2, 2}});
  }
  SECTION("sum") {
    ls::ConditionalAccumulator<TestType> accumulator({.reduction = ls::Reduction::sum});
    accumulator.apply_grad({a, {2, 2}}, 0);
    accumulator.apply_grad({b, {2, 2}}, 0);
    CHECK(accumulator.take_grad(1) == Tensor<TestType>{of<TestType>({4, 8, 12, 18}), {2, 2}});
  }
}

TEST_CASE("conditional_accumulator: half stops growing where half does", "[accumulator]") {
  ls::ConditionalAccumulator<Eigen::half> accumulator({.reduction = ls::Reduction::sum});
  const auto big = of<Eigen::half>({2048});
  const auto one = of<Eigen::half>({1});
  accumulator.apply_grad(big, 0);
  for (int i = 0; i < 8; ++i) accumulator.apply_grad(one, 0);
  CHECK(static_cast<float>(accumulator.take_grad(1).elements[0]) == 2048.0F);
}

TEST_CASE("conditional_accumulator: gradients without elements and scalars are gradients", "[accumulator]") {
  ls::ConditionalAccumulator<float> accumulator;
  accumulator.apply_grad(std::vector<float>{}, 0);
  CHECK(accumulator.take_grad(1) == Tensor<float>{{}, {0}});
  const std::array<float, 1> scalar{3.0F};
  accumulator.apply_grad({scalar, {}}, 1);
  CHECK(accumulator.take_grad(1) == Tensor<float>{{3.0F}, {}});
}

TEST_CASE("conditional_accumulator: Eigen expressions arrive by rows", "[accumulator][eigen]") {
  ls::ConditionalAccumulator<float> accumulator;
  Eigen::MatrixXf matrix(2, 3);
  matrix << 1, 2, 3, 4, 5, 6;
  SECTION("a matrix") {
    accumulator.apply_grad(matrix, 0);
    accumulator.apply_grad(3.0F * matrix, 0);
    CHECK(accumulator.take_grad(2) == Tensor<float>{{2, 4, 6, 8, 10, 12}, {2, 3}});
  }
  SECTION("a transposed block") {
    accumulator.apply_grad(matrix.rightCols(2).transpose(), 0);
    CHECK(accumulator.take_grad(1) == Tensor<float>{{2, 5, 3, 6}, {2, 2}});
  }
  SECTION("vectors of both directions, arrays and expressions of arrays have rank 1") {
    const Eigen::VectorXf column = Eigen::VectorXf::Constant(3, 2.0F);
    accumulator.apply_grad(column, 0);
    accumulator.apply_grad(column.transpose(), 0);
    accumulator.apply_grad(column.array(), 0);
    accumulator.apply_grad(column.array().square() + 2.0F, 0);
    CHECK(accumulator.take_grad(4) == Tensor<float>{{3, 3, 3}, {3}});
  }
  SECTION("an array of rank 2, stored by rows") {
    const Eigen::Array<float, 2, 2, Eigen::RowMajor> array{{1, 2}, {3, 4}};
    accumulator.apply_grad(array, 0);
    accumulator.apply_grad(array * 2, 0);
    CHECK(accumulator.take_grad(2) == Tensor<float>{{1.5F, 3, 4.5F, 6}, {2, 2}});
  }
}

TEST_CASE("conditional_accumulator: a wrong shape is refused with both shapes in the text", "[accumulator]") {
  ls::ConditionalAccumulator<double> accumulator({.shape = Shape{ls::k_unknown, 2}});
  const std::vector<double> elements{1, 2, 3, 4, 5, 6};
  CHECK_THROWS_WITH(accumulator.apply_grad({elements, {2, 3}}, 0),
                    ContainsSubstring("(2, 3)") && ContainsSubstring("(-1, 2)"));
  CHECK_THROWS_AS(accumulator.apply_grad(elements, 0), ls::ShapeMismatch);
  CHECK(accumulator.num_accumulated() == 0);
  CHECK(accumulator.apply_grad({elements, {3, 2}}, 0));
  const std::vector<double> shorter{1, 2, 3, 4};
  CHECK_THROWS_WITH(accumulator.apply_grad({shorter, {2, 2}}, 0),
                    ContainsSubstring("(2, 2)") && ContainsSubstring("(3, 2)"));
  CHECK(accumulator.num_accumulated() == 1);
  CHECK(accumulator.take_grad(1).elements == elements);
}

TEST_CASE("conditional_accumulator: a view whose shape is not its size is refused", "[accumulator]") {
  ls::ConditionalAccumulator<double> accumulator;
  const std::vector<double> elements{1, 2, 3, 4};
  CHECK_THROWS_AS(accumulator.apply_grad({elements, {3}}, 0), ls::ShapeMismatch);
  CHECK_THROWS_AS(accumulator.apply_grad({elements, {-2, -2}}, 0), ls::ShapeMismatch);
}

TEST_CASE("conditional_accumulator: declared extents below -1 mean nothing", "[accumulator]") {
  CHECK_THROWS_AS(ls::ConditionalAccumulator<float>({.shape = Shape{2, -2}}), ls::InvalidArgument);
}

TEST_CASE("conditional_accumulator: a stale gradient is dropped unseen and reported", "[accumulator]") {
  ls::ConditionalAccumulator<float> accumulator({.shape = Shape{2}});
  CHECK_FALSE(accumulator.set_global_step(2));
  CHECK_FALSE(accumulator.apply_grad(std::vector<float>{1, 2, 3}, 1));
  CHECK(accumulator.apply_grad(std::vector<float>{1, 2}, 2));
  CHECK(accumulator.set_global_step(1));
  CHECK(accumulator.step() == 1);
  CHECK(accumulator.num_accumulated() == 1);
}

TEST_CASE("conditional_accumulator: a result is no alias of the next sum", "[accumulator]") {
  ls::ConditionalAccumulator<float> accumulator;
  accumulator.apply_grad(std::vector<float>{1}, 0);
  const auto first = accumulator.take_grad(1);
  accumulator.apply_grad(std::vector<float>{5}, 1);
  const auto second = accumulator.take_grad(1);
  CHECK(first.elements[0] == 1.0F);
  CHECK(second.elements[0] == 5.0F);
}

TEST_CASE("conditional_accumulator: a taker is served inside someone else's apply", "[accumulator][taker]") {
  ls::ConditionalAccumulator<float> accumulator;
  auto taker = accumulator.begin_take(2);
  CHECK_FALSE(taker.ready());
  accumulator.apply_grad(std::vector<float>{1}, 0);
  CHECK_FALSE(taker.ready());
  accumulator.apply_grad(std::vector<float>{3}, 0);
  CHECK(taker.ready());
  CHECK(accumulator.num_accumulated() == 0);
  CHECK_FALSE(taker.cancel());
  CHECK(taker.get().elements[0] == 2.0F);
  CHECK_THROWS_AS(taker.get(), ls::UsageError);
}

TEST_CASE("conditional_accumulator: a taker that goes away leaves the line", "[accumulator][taker]") {
  ls::ConditionalAccumulator<float> accumulator;
  auto small = [&] {
    const auto abandoned = accumulator.begin_take(5);
    return accumulator.begin_take(1);
  }();
  accumulator.apply_grad(std::vector<float>{7}, 0);
  CHECK(small.get().elements[0] == 7.0F);
}

TEST_CASE("conditional_accumulator: takers move", "[accumulator][taker]") {
  ls::ConditionalAccumulator<float> accumulator;
  auto a = accumulator.begin_take(3);
  auto b = accumulator.begin_take(1);
  auto c = std::move(b);
  a = std::move(c);  // cancels the request for three
  accumulator.apply_grad(std::vector<float>{7}, 0);
  CHECK(a.ready());
  CHECK_THROWS_AS(b.ready(), ls::UsageError);  // NOLINT(bugprone-use-after-move): that it throws is the point
  auto& same = a;
  a = std::move(same);
  CHECK(a.get().elements[0] == 7.0F);
}

TEST_CASE("conditional_accumulator: a cancelled taker says so, and its sum stays", "[accumulator][taker]") {
  ls::ConditionalAccumulator<float> accumulator;
  auto taker = accumulator.begin_take(2);
  accumulator.apply_grad(std::vector<float>{1}, 0);
  CHECK(taker.cancel());
  CHECK_FALSE(taker.cancel());
  CHECK(taker.ready());
  CHECK_THROWS_AS(taker.get(), ls::Cancelled);
  CHECK(accumulator.take_grad(1).elements[0] == 1.0F);
}

TEST_CASE("conditional_accumulator: num_required below one is refused even when others wait",
          "[accumulator][taker]") {
  ls::ConditionalAccumulator<float> accumulator;
  const auto waiting = accumulator.begin_take(1);
  CHECK_THROWS_AS(accumulator.begin_take(0), ls::InvalidArgument);
  CHECK_THROWS_AS(accumulator.take_grad(-1), ls::InvalidArgument);
  CHECK_FALSE(waiting.ready());
}

TEST_CASE("conditional_accumulator: more takers than fit are refused, and the line is intact",
          "[accumulator][taker]") {
  ls::ConditionalAccumulator<float> accumulator;
  std::vector<ls::ConditionalAccumulator<float>::Taker> takers;
  bool is_full = false;
  while (!is_full && takers.size() < 100'000) {
    try {
      takers.push_back(accumulator.begin_take(1));
    } catch (const ls::CapacityExceeded&) {
      is_full = true;
    }
  }
  CHECK(is_full);
  accumulator.apply_grad(std::vector<float>{4}, 0);
  CHECK(takers.front().ready());
  CHECK_FALSE(takers.back().ready());
  CHECK_NOTHROW(accumulator.begin_take(1).cancel());
}

TEST_CASE("conditional_accumulator: a deadline ends the wait without a trace", "[accumulator][deadline]") {
  ls::ConditionalAccumulator<float> accumulator;
  accumulator.apply_grad(std::vector<float>{1}, 0);
  CHECK_THROWS_WITH(accumulator.take_grad(3, 5ms),
                    ContainsSubstring("3 gradients required, 1 accumulated after 5 ms"));
  CHECK_THROWS_AS(accumulator.take_grad(3, 1ms), ls::TimeoutError);
  CHECK_THROWS_AS(accumulator.take_grad(1, 0ms), ls::InvalidArgument);
  CHECK(accumulator.step() == 0);
  CHECK(accumulator.take_grad(1, 1s).elements[0] == 1.0F);
}

TEST_CASE("conditional_accumulator: after a deadline a taker may be asked again", "[accumulator][deadline]") {
  ls::ConditionalAccumulator<float> accumulator;
  auto taker = accumulator.begin_take(1);
  CHECK_THROWS_AS(taker.get(2ms), ls::TimeoutError);
  accumulator.apply_grad(std::vector<float>{1}, 0);
  CHECK(taker.get(1s).elements[0] == 1.0F);
}

TEST_CASE("conditional_accumulator: a stop that came first cancels even what could be served",
          "[accumulator][stop]") {
  ls::ConditionalAccumulator<float> accumulator;
  accumulator.apply_grad(std::vector<float>{1}, 0);
  std::stop_source stop;
  stop.request_stop();
  CHECK_THROWS_AS(accumulator.take_grad(1, 1s, stop.get_token()), ls::Cancelled);
  CHECK(accumulator.num_accumulated() == 1);
}

TEST_CASE("conditional_accumulator: a stop ends a waiting take and lets the next one run",
          "[accumulator][stop][thread]") {
  const ls::test::Watchdog watchdog;
  ls::ConditionalAccumulator<float> accumulator;
  accumulator.apply_grad(std::vector<float>{6}, 0);
  std::stop_source stop;
  std::atomic<bool> was_cancelled = false;
  std::jthread big([&] {
    try {
      accumulator.take_grad(2, 50s, stop.get_token());
    } catch (const ls::Cancelled&) {
      was_cancelled = true;
    }
  });
  // The big request is in line once a small one behind it is not served at once.
  while (true) {
    auto probe = accumulator.begin_take(1);
    if (!probe.ready()) {
      stop.request_stop();
      CHECK(probe.get(50s).elements[0] == 6.0F);
      break;
    }
    probe.get();
    accumulator.apply_grad(std::vector<float>{6}, accumulator.step());
  }
  big.join();
  CHECK(was_cancelled);
}

TEST_CASE("conditional_accumulator: any thread may cancel a taker that another waits for",
          "[accumulator][thread]") {
  const ls::test::Watchdog watchdog;
  ls::ConditionalAccumulator<float> accumulator;
  auto taker = accumulator.begin_take(1);
  std::atomic<bool> was_cancelled = false;
  std::jthread waiting([&] {
    try {
      taker.get(50s);
    } catch (const ls::Cancelled&) {
      was_cancelled = true;
    }
  });
  std::this_thread::sleep_for(2ms);
  CHECK(taker.cancel());
  waiting.join();
  CHECK(was_cancelled);
}

TEST_CASE("conditional_accumulator: concurrent pushes are all in the mean", "[accumulator][thread]") {
  const ls::test::Watchdog watchdog;
  constexpr int k_threads = 4, k_pushes = 50;
  ls::ConditionalAccumulator<double> accumulator({.shape = Shape{3}});
  auto taker = accumulator.begin_take(k_threads * k_pushes);
  const auto thrown = ls::test::run_replicas(k_threads, [&](int id) {
    for (int i = 0; i < k_pushes; ++i) accumulator.apply_grad(Eigen::Vector3d::Constant(id), 0);
  });
  for (const auto& exception : thrown) CHECK(ls::test::message_of(exception) == "");
  CHECK(taker.get(1s).elements == std::vector<double>(3, 1.5));
}

TEST_CASE("conditional_accumulator: no gradient is lost or averaged twice between concurrent takes",
          "[accumulator][thread]") {
  const ls::test::Watchdog watchdog;
  constexpr int k_pushers = 3, k_takers = 3, k_takes = 40, k_required = 2;
  // Every gradient is 1, so a sum is the number of gradients in it.
  ls::ConditionalAccumulator<double> accumulator({.reduction = ls::Reduction::sum});
  std::atomic<int> takes_left = k_takers * k_takes;
  std::atomic<int> accepted = 0;
  std::mutex mutex;
  std::vector<double> taken;
  const auto thrown = ls::test::run_replicas(k_pushers + k_takers, [&](int id) {
    if (id < k_pushers) {
      while (takes_left > 0)
        if (accumulator.apply_grad(std::vector<double>{1.0}, accumulator.step())) ++accepted;
      return;
    }
    for (int i = 0; i < k_takes; ++i) {
      const double sum = accumulator.take_grad(k_required, 50s).elements[0];
      --takes_left;
      const std::lock_guard lock(mutex);
      taken.push_back(sum);
    }
  });
  for (const auto& exception : thrown) CHECK(ls::test::message_of(exception) == "");
  double total = static_cast<double>(accumulator.num_accumulated());
  double least = k_required;
  for (const double sum : taken) {
    total += sum;
    least = std::min(least, sum);
  }
  CHECK(taken.size() == k_takers * k_takes);
  CHECK(least == k_required);
  CHECK(total == static_cast<double>(accepted));
  CHECK(accumulator.step() == k_takers * k_takes);
}

TEST_CASE("conditional_accumulator: takes that race with deadlines and stops lose no gradient",
          "[accumulator][thread][deadline]") {
  const ls::test::Watchdog watchdog;
  constexpr int k_takers = 3, k_rounds = 60;
  ls::ConditionalAccumulator<double> accumulator({.reduction = ls::Reduction::sum});
  std::atomic<int> takers_left = k_takers;
  std::atomic<int> accepted = 0;
  std::array<double, k_takers> sums{};
  const auto thrown = ls::test::run_replicas(k_takers + 1, [&](int id) {
    if (id == k_takers) {
      while (takers_left > 0) {
        if (accumulator.apply_grad(std::vector<double>{1.0}, accumulator.step())) ++accepted;
        std::this_thread::sleep_for(30us);
      }
      return;
    }
    for (int i = 0; i < k_rounds; ++i) {
      std::stop_source stop;
      try {
        std::jthread stopper;
        if (i % 2 == 0) stopper = std::jthread([&] { stop.request_stop(); });
        sums[static_cast<std::size_t>(id)] += accumulator.take_grad(2, 100us, stop.get_token()).elements[0];
      } catch (const ls::TimeoutError&) {
      } catch (const ls::Cancelled&) {
      }
    }
    --takers_left;
  });
  for (const auto& exception : thrown) CHECK(ls::test::message_of(exception) == "");
  CHECK(sums[0] + sums[1] + sums[2] + static_cast<double>(accumulator.num_accumulated()) ==
        static_cast<double>(accepted));
  accumulator.apply_grad(std::vector<double>{1.0}, accumulator.step());
  CHECK_NOTHROW(accumulator.take_grad(1, 1s));
}

TEST_CASE("conditional_accumulator: what is served in the last moment of a wait is not thrown away",
          "[accumulator][deadline][stop]") {
  const ls::test::Hooked net;
  ls::ConditionalAccumulator<float, ls::test::Hooked> accumulator({}, net);
  std::stop_source stop;
  // The first section is the registration, the second the look that finds the taker waiting.
  net.script->countdown = 2;
  SECTION("at the deadline") {
    net.script->action = [&] {
      accumulator.apply_grad(std::vector<float>{7}, 0);
      std::this_thread::sleep_for(3ms);
    };
    CHECK(accumulator.take_grad(1, 2ms).elements[0] == 7.0F);
  }
  SECTION("at a stop") {
    net.script->action = [&] {
      accumulator.apply_grad(std::vector<float>{7}, 0);
      stop.request_stop();
    };
    CHECK(accumulator.take_grad(1, 50s, stop.get_token()).elements[0] == 7.0F);
  }
  CHECK(accumulator.num_accumulated() == 0);
}

TEST_CASE("conditional_accumulator: only who changes the line wakes those in it", "[accumulator][thread]") {
  const ls::test::Hooked net;
  ls::ConditionalAccumulator<float, ls::test::Hooked> accumulator({}, net);
  auto first = accumulator.begin_take(2);
  auto second = accumulator.begin_take(1);
  accumulator.apply_grad(std::vector<float>{1}, 0);
  CHECK(net.script->wakes.load() == 0);
  accumulator.apply_grad(std::vector<float>{1}, 0);
  CHECK(net.script->wakes.load() == 1);
  second.cancel();
  CHECK(net.script->wakes.load() == 2);
}
