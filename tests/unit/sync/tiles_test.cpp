// SPDX-License-Identifier: MIT
// Claims on items, and what is left of them when their owners die.
#include "support/catch.hpp"
#include <lockstep/sync/tiles.hpp>
#include <lockstep/sync/undo.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace {

using lockstep::Carver;
using lockstep::Index;
using lockstep::detail::Tiles;
using Undo = lockstep::detail::UndoArea<float>;

struct Words {
  std::array<Tiles::Word, 3> words{};
  Tiles tiles{words.data(), 3};
};

/// Settles what `owner` has claimed as it comes, each with the same answer.
std::vector<std::pair<Index, int>> release(Tiles& tiles, std::uint64_t stage, int owner, int part) {
  std::vector<std::pair<Index, int>> seen;
  tiles.release_claims(stage, owner, [&](Index i, int first) {
    seen.emplace_back(i, first);
    return part;
  });
  return seen;
}

}  // namespace

TEST_CASE("an item is claimed once per stage, and done for the stages before", "[sync][tiles]") {
  Words w;
  CHECK(w.tiles.claim(1, 7, 0));
  CHECK_FALSE(w.tiles.claim(1, 7, 3));
  CHECK_FALSE(w.tiles.claim(1, 6, 3));  // a sleeper of an older stage
  w.tiles.finish(1, 7, 0);
  CHECK_FALSE(w.tiles.claim(1, 7, 3));
  CHECK_FALSE(w.tiles.all_done(7));
  for (const Index i : {0, 2}) {
    CHECK(w.tiles.claim(i, 7, 127));
    w.tiles.finish_last(i, 7, 127);
  }
  CHECK(w.tiles.all_done(7));
  CHECK(w.tiles.all_done(6));
  CHECK_FALSE(w.tiles.all_done(8));
  CHECK(w.tiles.claim(1, 8, 3));
}

TEST_CASE("who claims an item of a dead owner begins where that one was", "[sync][tiles]") {
  Words w;
  REQUIRE(w.tiles.claim(0, 5, 2));
  REQUIRE(w.tiles.claim(2, 5, 1));
  CHECK(w.tiles.first_part(0) == 0);
  using Seen = std::vector<std::pair<Index, int>>;
  CHECK(release(w.tiles, 5, 2, 11) == Seen{{0, 0}});
  CHECK_FALSE(w.tiles.claim(0, 4, 1));  // free in its stage only
  REQUIRE(w.tiles.claim(0, 5, 1));
  CHECK(w.tiles.first_part(0) == 11);
  // Dies as well, before it has begun with the one, in the middle of the other.
  CHECK(release(w.tiles, 5, 1, 15) == Seen{{0, 11}, {2, 0}});
  REQUIRE(w.tiles.claim(0, 5, -1));
  CHECK(w.tiles.first_part(0) == 15);
  w.tiles.finish_last(0, 5, -1);
  REQUIRE(w.tiles.claim(0, 6, 0));
  CHECK(w.tiles.first_part(0) == 0);
}

TEST_CASE("an undo area puts back the part that was being changed", "[sync][tiles]") {
  constexpr Index part = 4;
  alignas(64) std::array<std::byte, 256> memory{};
  Carver carver(memory.data());
  Undo undo(carver, part, 2);
  std::array<float, 12> w{}, m{};
  for (std::size_t i = 0; i < w.size(); ++i) m[i] = 100 + (w[i] = static_cast<float>(i));
  const auto w_before = w, m_before = m;
  const std::array<float*, 2> arrays{w.data(), m.data()};
  const auto range = [](int k) { return std::pair<Index, Index>{k * part, (k + 1) * part}; };
  const auto restore = [&](std::uint64_t stage, Index item, int first) {
    return undo.restore(stage, item, first, arrays, range);
  };

  undo.forget();
  CHECK(restore(9, 1, 1) == 1);  // claimed, not begun
  undo.reach(9, 1, 1);
  CHECK(restore(9, 1, 0) == 1);
  undo.save(arrays, 4, 8);
  for (std::size_t i = 4; i < 8; ++i) w[i] = m[i] = -1;
  CHECK(restore(9, 2, 0) == 0);  // of another item
  CHECK(restore(8, 1, 0) == 0);  // of another stage
  CHECK(w[5] == -1);
  for (int times = 0; times < 2; ++times) {
    CHECK(restore(9, 1, 0) == 1);
    CHECK((w == w_before && m == m_before));
  }
  w[5] = m[5] = -2;  // done
  undo.reach(9, 1, 2);
  CHECK(restore(9, 1, 0) == 2);
  CHECK((w[5] == -2 && m[5] == -2));
}
