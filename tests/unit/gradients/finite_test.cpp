// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/gradients/finite.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;

TEMPLATE_TEST_CASE("finite: NaN and infinity are found at every place", "[gradients][finite]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  using G = TestType;
  using Limits = std::numeric_limits<G>;
  for (const Index size : k_sizes) {
    INFO(size << " elements");
    std::vector<G> data(static_cast<std::size_t>(size), static_cast<G>(1));
    CHECK_FALSE(detail::any_non_finite(data.data(), size));
    CHECK_FALSE(detail::any_non_finite(data.data(), 0));
    bool found = true, clean = true;
    for (Index at = 0; at<size; at += size> 40 && at > 20 && at < size - 20 ? 97 : 1) {
      const G harmful[] = {Limits::quiet_NaN(), -Limits::quiet_NaN(), Limits::infinity(),
                           -Limits::infinity()};
      const G harmless[] = {Limits::max(), -Limits::max(), Limits::denorm_min(), Limits::min(),
                            static_cast<G>(-0.0F)};
      for (const G value : harmful) {
        data[static_cast<std::size_t>(at)] = value;
        found = found && detail::any_non_finite(data.data(), size);
        clean = clean && !detail::any_non_finite(data.data(), at);  // what lies behind does not count
      }
      for (const G value : harmless) {
        data[static_cast<std::size_t>(at)] = value;
        clean = clean && !detail::any_non_finite(data.data(), size);
      }
    }
    CHECK(found);
    CHECK(clean);
  }
}

TEST_CASE("finite: only present elements count", "[gradients][finite]") {
  Pile<float> pile({{3}, {5, 2}, {4200, 1}}, 1);
  Contribution<float>& c = pile[0];
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::fill(c.data(), c.data() + pile.layout.size(), nan);
  CHECK(all_finite(c));
  CHECK(squared_norm(c) == 0);

  c.mark_dense(0);
  for (int i = 0; i < 3; ++i) c.data()[i] = 2;  // the padding stays NaN
  c.mark_rows(1);
  c.rows(1).insert(1);
  c.rows(1).insert(4);
  float* rows = c.data() + pile.layout[1].offset;
  for (const int i : {2, 3, 8, 9}) rows[i] = 3;
  c.mark_rows(2);
  for (const Index row : {63, 64, 4095, 4096, 4199}) {
    c.rows(2).insert(row);
    c.data()[pile.layout[2].offset + row] = 1;
  }
  CHECK(all_finite(c));
  CHECK(squared_norm(c) == 3 * 4 + 4 * 9 + 5);

  rows[9] = std::numeric_limits<float>::infinity();
  CHECK_FALSE(all_finite(c));
  rows[9] = 3;
  c.data()[pile.layout[2].offset + 4096] = nan;
  CHECK_FALSE(all_finite(c));
  c.data()[pile.layout[2].offset + 4096] = 1;
  c.data()[2] = nan;
  CHECK_FALSE(all_finite(c));
  c.clear();
  CHECK(all_finite(c));
}

TEMPLATE_TEST_CASE("finite: the squared norm is summed in double, in eight interleaved sums",
                   "[gradients][finite]", float, double, Eigen::half, Eigen::bfloat16) {
  for (const Index size : k_sizes) {
    Pile<double, TestType> pile({{size}}, 1);
    Numbers numbers(static_cast<std::uint64_t>(size));
    fill_dense(pile[0], 0, numbers);
    std::array<double, 8> sum{};
    for (Index i = 0; i < size; ++i) {
      const auto element = static_cast<double>(pile[0].data()[i]);
      double& lane = sum[static_cast<std::size_t>(i) % 8];
      lane = rounded(lane + rounded(element * element));
    }
    CHECK(squared_norm(pile[0]) ==
          ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7])));
  }
}

TEST_CASE("finite: the squared norm of a mean is that of the mean written out", "[gradients][finite]") {
  for (const Index size : k_sizes) {
    INFO(size << " elements");
    Pile<float> pile({{size}}, 3);
    Numbers numbers(static_cast<std::uint64_t>(size));
    for (int k = 0; k < 2; ++k) fill_dense(pile[k], 0, numbers);
    Sources<float, float> sources;
    sources.scale = 0.5F;
    for (int k = 0; k < 2; ++k) sources.add(pile[k].data(), 1);
    pile[2].mark_dense(0);
    sum_elements(sources, pile[2].data(), 0, size);
    // Bit by bit: a mean is read in parts, which must not change the order of its sum.
    CHECK(squared_norm(sources, 0, size) == squared_norm(pile[2]));
  }
}

TEST_CASE("finite: the clip factor brings a norm down to the limit and never up", "[gradients][finite]") {
  CHECK(clip_factor(25, 5) == 1);
  CHECK(clip_factor(25, 6) == 1);
  CHECK(clip_factor(25, 1) == 0.2);
  CHECK(clip_factor(0, 1) == 1);
  CHECK(clip_factor(1e-300, 1) == 1);
  CHECK(clip_factor(4, 1e-3) == 0.0005);
}
