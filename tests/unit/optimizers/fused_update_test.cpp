// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/optimizers/adam.hpp>
#include <lockstep/optimizers/fused_update.hpp>

#include <array>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Variable and slots with something behind them that no update may change.
template <class T>
struct State {
  explicit State(Index size) {
    Numbers numbers(7);
    for (auto& array : arrays) {
      for (Index i = 0; i < size; ++i) array.push_back(static_cast<T>(numbers.real() * numbers.real()));
      array.insert(array.end(), 64, T(77));
    }
  }
  void update(const Sources<T, T>& sources, Index start, Index size) {
    const Adam rule;
    update_elements(rule, prepare_step(rule, StepInfo{}), arrays[0].data(),
                    std::array<T*, 2>{arrays[1].data(), arrays[2].data()}, sources, start, size);
  }
  std::array<std::vector<T>, 3> arrays;  // variable, m, v
};

}  // namespace

TEMPLATE_TEST_CASE("update_elements: a range has the bits of its elements one by one", "[optimizers]", float,
                   double) {
  using T = TestType;
  // Around a register, a cache line, and what is taken to be in a cache.
  for (const Index size : {1, 7, 15, 16, 17, 31, 63, 255, 257, 8193, 16'385, 20'011}) {
    const auto count = static_cast<std::size_t>(size);
    Numbers numbers(static_cast<std::uint64_t>(size));
    std::vector<T> first, second;
    for (Index i = 0; i < size; ++i) {
      first.push_back(static_cast<T>(numbers.real()));
      second.push_back(static_cast<T>(numbers.real()));
    }
    Sources<T, T> sources;
    sources.add(first.data(), 1);
    sources.add(second.data(), 1);
    sources.scale = T(1) / T(3);
    State<T> at_once(size), one_by_one(size);
    at_once.update(sources, 0, size);
    for (Index i = 0; i < size; ++i) one_by_one.update(sources, i, 1);
    INFO(size << " elements");
    for (std::size_t array = 0; array < 3; ++array) {
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < count + 64; ++i)
        if (!same_bits(at_once.arrays[array][i], one_by_one.arrays[array][i])) ++wrong;
      CHECK(wrong == 0);
      CHECK(at_once.arrays[array][count] == T(77));
    }
  }
}
