// SPDX-License-Identifier: MIT
// A process is killed at each step of what it does with an accumulator. For those that stay the sum is with
// its gradient or without it, and whoever was in line is out of it.
#include "kill/everywhere.hpp"
#include "support/catch.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include <lockstep/accumulators/conditional_accumulator.hpp>
#include <lockstep/accumulators/sparse_conditional_accumulator.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

constexpr Index k_rows = 5, k_columns = 7;
constexpr std::size_t k_size = k_rows * k_columns;

/// Element `at` of gradient `number`.
float element(int number, std::size_t at) {
  return static_cast<float>(number) * 0.7F + static_cast<float>(at % 13) * 0.11F;
}

/// Gradient `number` touches all elements.
struct Dense {
  using Accumulator = ConditionalAccumulator<float, SharedMemory>;
  static constexpr Index k_rows_of_sum = 0;

  static void apply(Accumulator& accumulator, int number, Index local_step) {
    std::vector<float> gradient(k_size);
    for (std::size_t i = 0; i < k_size; ++i) gradient[i] = element(number, i);
    accumulator.apply_grad({gradient, {k_rows, k_columns}}, local_step);
  }
  static std::vector<float> mean(const std::vector<int>& numbers) {
    std::vector<float> result(k_size);
    for (std::size_t i = 0; i < k_size; ++i) {
      for (const int number : numbers) result[i] += element(number, i);
      result[i] /= static_cast<float>(numbers.size());
    }
    return result;
  }
  static std::vector<float> elements_of(const Tensor<float>& result) { return result.elements; }
};

/// Gradient `number` touches the rows `number` and 4.
struct Sparse {
  using Accumulator = SparseConditionalAccumulator<float, SharedMemory>;
  static constexpr Index k_rows_of_sum = 4;

  static void apply(Accumulator& accumulator, int number, Index local_step) {
    const std::array<Index, 2> rows{number, 4};
    std::vector<float> slices;
    for (const Index row : rows)
      for (Index column = 0; column < k_columns; ++column)
        slices.push_back(element(number, static_cast<std::size_t>(row * k_columns + column)));
    accumulator.apply_grad({.indices = rows, .values = {slices, {2, k_columns}}}, local_step);
  }
  static std::vector<float> mean(const std::vector<int>& numbers) {
    std::vector<float> result(k_size), count(k_size);
    for (const int number : numbers)
      for (std::size_t i = 0; i < k_size; ++i) {
        const std::size_t row = i / k_columns;
        if (row != static_cast<std::size_t>(number) && row != 4) continue;
        result[i] += element(number, i);
        ++count[i];
      }
    for (std::size_t i = 0; i < k_size; ++i)
      if (count[i] > 0) result[i] /= count[i];
    return result;
  }
  static std::vector<float> elements_of(const SparseTensor<float>& result) {
    std::vector<float> elements(k_size);
    for (std::size_t row = 0; row < result.indices.size(); ++row)
      for (std::size_t column = 0; column < k_columns; ++column)
        elements[static_cast<std::size_t>(result.indices[row]) * k_columns + column] =
            result.values.elements[row * k_columns + column];
    return elements;
  }
};

template <class Kind>
typename Kind::Accumulator attach(const SessionFolder& folder) {
  return typename Kind::Accumulator(
      {.shape = Shape{k_rows, k_columns}, .max_takers = 1, .max_rows = Kind::k_rows_of_sum}, net_in(folder));
}

}  // namespace

TEMPLATE_TEST_CASE("who is killed applying a gradient has added all of it or nothing", "[kill][accumulator]",
                   Dense, Sparse) {
  using Kind = TestType;
  const Watchdog watchdog(300s);
  const SessionFolder folder;
  {
    auto accumulator = attach<Kind>(folder);
    const auto prepare = [&] { return attach<Kind>(folder); };
    const auto apply = [&](auto& subject) { Kind::apply(subject, 1, 1'000'000); };

    kill_everywhere(
        "applying", prepare, apply, [&] { Kind::apply(accumulator, 0, 1'000'000); },
        [&] {
          std::vector<int> in_sum{0};
          if (accumulator.num_accumulated() == 2) in_sum.push_back(1);
          Kind::apply(accumulator, 2, 1'000'000);
          in_sum.push_back(2);
          CHECK(accumulator.num_accumulated() == static_cast<Index>(in_sum.size()));
          CHECK(Kind::elements_of(accumulator.take_grad(1)) == Kind::mean(in_sum));
        });

    std::optional<typename Kind::Accumulator::Taker> taker;
    kill_everywhere(
        "applying for one who waits", prepare, apply,
        [&] {
          Kind::apply(accumulator, 0, 1'000'000);
          taker.emplace(accumulator.begin_take(2));
        },
        [&] {
          const bool is_there = taker->ready();
          if (!is_there) Kind::apply(accumulator, 2, 1'000'000);
          CHECK(Kind::elements_of(taker->get(10s)) == Kind::mean({0, is_there ? 1 : 2}));
          CHECK(accumulator.num_accumulated() == 0);
        });
  }
  CHECK(folder.files().empty());
}

TEMPLATE_TEST_CASE("who is killed taking leaves its place to the next one", "[kill][accumulator]", Dense,
                   Sparse) {
  using Kind = TestType;
  const Watchdog watchdog(300s);
  const SessionFolder folder;
  {
    auto accumulator = attach<Kind>(folder);
    const auto prepare = [&] { return attach<Kind>(folder); };
    Index step = 0;

    // The only place: if the dead one kept it, nobody could take.
    const auto check_rest = [&](Index steps_of_victim) {
      std::vector<int> in_sum;
      CHECK((accumulator.step() == step || accumulator.step() == step + steps_of_victim));
      if (accumulator.step() == step) in_sum.push_back(0);
      Kind::apply(accumulator, 2, 1'000'000);
      in_sum.push_back(2);
      CHECK(Kind::elements_of(accumulator.take_grad(1, 10s)) == Kind::mean(in_sum));
      step = accumulator.step();
    };
    const auto begin = [&] { Kind::apply(accumulator, 0, 1'000'000); };
    kill_everywhere(
        "taking", prepare, [](auto& subject) { (void)subject.take_grad(1, 10s); }, begin,
        [&] { check_rest(1); });
    kill_everywhere(
        "getting in line and out of it", prepare, [](auto& subject) { (void)subject.begin_take(7); }, begin,
        [&] { check_rest(0); });
    kill_everywhere(
        "attaching", [] { return 0; }, [&](int) { (void)attach<Kind>(folder); }, begin,
        [&] { check_rest(0); });
  }
  CHECK(folder.files().empty());
}
