// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/gradients/merge.hpp>

#include <map>

using namespace lockstep;
using namespace lockstep::test;

namespace {

const std::vector<std::vector<Index>> k_shapes{{1}, {17}, {5, 3}, {65, 2}, {4097}, {}};

/// The present elements.
template <class G>
std::map<Index, G> elements(const Contribution<G>& c) {
  std::map<Index, G> result;
  for (Index i = 0; i < c.layout().size(); ++i)
    if (has_element(c, i)) result[i] = c.data()[i];
  return result;
}

/// `first + c * second` where both are present, by a plain loop; sums are formed in T.
template <class T, class G, class H>
std::map<Index, H> expected_sum(const std::map<Index, H>& first, const std::map<Index, G>& second, T c) {
  std::map<Index, H> sum = first;
  for (const auto& [i, value] : second) {
    const T term = rounded(c * static_cast<T>(value));
    const auto at = first.find(i);
    sum[i] = static_cast<H>(at == first.end() ? term : rounded(static_cast<T>(at->second) + term));
  }
  return sum;
}

template <class G>
bool same_elements(const std::map<Index, G>& a, const std::map<Index, G>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
           return x.first == y.first && same_bits(x.second, y.second);
         });
}

template <class G>
void weigh(Contribution<G>& c, double weight) {
  c.header().unit = c.header().total = weight;
  c.header().merged = 1;
}

template <class T>
void check_merge(bool into_first, bool mixed, double first_weight, double second_weight, std::uint64_t seed) {
  INFO("seed " << seed << ", into the " << (into_first ? "first" : "second") << ", weights " << first_weight
               << " and " << second_weight);
  Numbers numbers(seed);
  Pile<T> pile(k_shapes, 2);
  for (int i = 0; i < 2; ++i) {
    if (mixed)
      fill_mixed(pile[i], numbers);
    else
      for (std::uint32_t id = 0; id < k_shapes.size(); ++id) fill_dense(pile[i], id, numbers);
  }
  weigh(pile[0], first_weight);
  weigh(pile[1], second_weight);
  const auto wanted =
      expected_sum<T>(elements(pile[0]), elements(pile[1]), static_cast<T>(second_weight / first_weight));
  Contribution<T>& target = into_first ? pile[0] : pile[1];
  Contributors<T, T> scratch;
  detail::merge<T>(pile[0], pile[1], target, scratch);
  CHECK(same_elements(elements(target), wanted));
  CHECK(target.header().unit == first_weight);
  CHECK(target.header().total == first_weight + second_weight);
  CHECK(target.header().merged == 2);
}

}  // namespace

TEMPLATE_TEST_CASE("merge: first + c * second, into either of them", "[gradients][merge]", float, double) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed)
    for (const bool into_first : {true, false}) {
      check_merge<TestType>(into_first, true, 1, 1, seed);
      check_merge<TestType>(into_first, true, 2, 6, seed);
      check_merge<TestType>(into_first, true, 3, 1, seed);
    }
  for (const bool into_first : {true, false}) {
    check_merge<TestType>(into_first, false, 5, 5, 1);
    check_merge<TestType>(into_first, false, 3, 1, 1);
  }
}

TEMPLATE_TEST_CASE("merge: sums of a replica's 16-bit gradients are formed wide and rounded once",
                   "[gradients][merge]", Eigen::half, Eigen::bfloat16) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    Numbers numbers(seed);
    Pile<float, TestType> pile(k_shapes, 2);
    detail::Merger<float, TestType> merger;
    for (int round = 0; round < 3; ++round) {
      std::map<Index, float> wanted;
      int published = 0;
      const double weights[] = {2, 1, 4, 2};
      for (int i = 0; i < 4; ++i) {
        Contribution<TestType>& latest = pile[1 - published];
        latest.clear();
        fill_mixed(latest, numbers);
        weigh(latest, weights[i]);
        wanted = expected_sum<float>(wanted, elements(latest), static_cast<float>(weights[i] / weights[0]));
        if (i > 0) merger(pile[published], latest);
        published = 1 - published;
        if (i == 1) {  // one that is refused leaves no trace
          Contribution<TestType>& refused = pile[1 - published];
          refused.clear();
          fill_mixed(refused, numbers);
          weigh(refused, 7);
          merger(pile[published], refused);
          // The published sum has been rounded, and is what the next one is added to.
          wanted.clear();
          for (const auto& [at, value] : elements(pile[published])) wanted[at] = static_cast<float>(value);
        }
        std::map<Index, TestType> rounded_once;
        for (const auto& [at, value] : wanted) rounded_once[at] = static_cast<TestType>(value);
        CHECK(same_elements(elements(pile[published]), rounded_once));
      }
      CHECK(pile[published].header().unit == 2);
      CHECK(pile[published].header().total == 9);
      CHECK(pile[published].header().merged == 4);
    }
  }
}

TEST_CASE("merge: a chain gives the bits of one sum in the same order", "[gradients][merge]") {
  for (const bool into_first : {true, false}) {
    constexpr int count = 5;
    Numbers numbers(9);
    Pile<float> pile({{100}}, count);
    std::vector<float> wanted;
    const double weights[] = {2, 2, 6, 1, 2};
    for (int i = 0; i < count; ++i) {
      fill_dense(pile[i], 0, numbers);
      weigh(pile[i], weights[i]);
      for (Index j = 0; j < 100; ++j) {
        const float value = pile[i].data()[j];
        if (i == 0)
          wanted.push_back(value);
        else
          wanted[static_cast<std::size_t>(j)] =
              rounded(wanted[static_cast<std::size_t>(j)] +
                      rounded(static_cast<float>(weights[i] / weights[0]) * value));
      }
    }
    Contributors<float, float> scratch;
    int target = 0;
    for (int i = 1; i < count; ++i) {
      const int next = into_first ? 0 : i;
      detail::merge<float>(pile[target], pile[i], pile[next], scratch);
      target = next;
    }
    bool same = true;
    for (Index j = 0; j < 100; ++j)
      same = same && same_bits(pile[target].data()[j], wanted[static_cast<std::size_t>(j)]);
    CHECK(same);
    CHECK(pile[target].header().total == 13);
    CHECK(pile[target].header().merged == 5);
  }
}

TEMPLATE_TEST_CASE("merge: a wide sum takes in 16-bit gradients and is narrowed once", "[gradients][merge]",
                   Eigen::half, Eigen::bfloat16) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    Numbers numbers(seed);
    Pile<float, TestType> pile(k_shapes, 4);
    Owned<float> sum(pile.layout, pile.rows);
    fill_mixed(*sum, numbers);  // of an earlier window: the first addend replaces it
    std::map<Index, float> wanted;
    Contributors<float, TestType> scratch;
    const double weights[] = {2, 1, 4};
    for (int i = 0; i < 3; ++i) {
      fill_mixed(pile[i], numbers);
      weigh(pile[i], weights[i]);
      wanted = expected_sum<float>(wanted, elements(pile[i]), static_cast<float>(weights[i] / weights[0]));
      detail::add_wide<float, TestType>(*sum, pile[i], i == 0, scratch);
      CHECK(same_elements(elements(*sum), wanted));
    }
    CHECK(sum->header().unit == 2);
    CHECK(sum->header().total == 7);
    fill_mixed(pile[3], numbers);  // forgotten by narrow
    detail::narrow<float, TestType>(*sum, pile[3], 2.0 / 7);
    std::map<Index, TestType> narrowed;
    for (const auto& [i, value] : wanted)
      narrowed[i] = static_cast<TestType>(rounded(static_cast<float>(2.0 / 7) * value));
    CHECK(same_elements(elements(pile[3]), narrowed));
  }
}
