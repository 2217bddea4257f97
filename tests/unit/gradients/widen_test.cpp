// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/gradients/widen.hpp>

#include <Eigen/Core>

#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;

namespace {

using NarrowKinds = std::tuple<Kind<float, Eigen::half>, Kind<float, Eigen::bfloat16>,
                               Kind<double, Eigen::half>, Kind<double, Eigen::bfloat16>>;

}  // namespace

TEMPLATE_LIST_TEST_CASE("widen: each number of 16 bits is converted exactly", "[gradients][widen]",
                        NarrowKinds) {
  using T = typename TestType::T;
  using G = typename TestType::G;
  using Packet = detail::BestPacket<T>;
  constexpr std::size_t lanes = Eigen::internal::unpacket_traits<Packet>::size, all = 65'536;
  std::vector<G> narrow;
  for (std::size_t bits = 0; bits < all; ++bits)
    narrow.push_back(std::bit_cast<G>(static_cast<std::uint16_t>(bits)));
  std::vector<T> wide(all);
  for (std::size_t i = 0; i < all; i += lanes) detail::load_as<T, Packet>(&narrow[i]).store(&wide[i]);
  std::size_t wrong = 0, no_numbers = 0;
  for (std::size_t i = 0; i < all; ++i) {
    const T expected = static_cast<T>(narrow[i]);
    if (std::isnan(expected)) {  // processors differ in the bits of those
      ++no_numbers;
      if (!std::isnan(wide[i])) ++wrong;
    } else if (!same_bits(wide[i], expected)) {
      ++wrong;
    }
  }
  CHECK(wrong == 0);
  CHECK(no_numbers == (std::same_as<G, Eigen::half> ? 2 * 1'023 : 2 * 127));
}
