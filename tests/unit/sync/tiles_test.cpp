// SPDX-License-Identifier: MIT
// Claims on items, and what is left of them when their owners die.
#include "support/catch.hpp"
#include <lockstep/sync/tiles.hpp>
#include <lockstep/sync/undo.hpp>

#include <algorithm>
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
std::vector<std::pair<Index, Index>> release(Tiles& tiles, std::uint64_t stage, int owner, Index next) {
  std::vector<std::pair<Index, Index>> seen;
  tiles.release_claims(stage, owner, [&](Index i, Index first) {
    seen.emplace_back(i, first);
    return next;
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

TEST_CASE("words of items have the low bits of a stage, which may begin anew", "[sync][tiles]") {
  Words w;
  for (const std::uint64_t stage :
       {std::uint64_t{1}, std::uint64_t{1} << 35, std::uint64_t{1} << 36, std::uint64_t{3} << 35,
        (std::uint64_t{1} << 37) - 1, std::uint64_t{1} << 37, (std::uint64_t{1} << 37) + 1,
        std::uint64_t{5} << 35}) {
    INFO("stage " << stage);
    for (const Index i : {0, 1, 2}) {
      CHECK_FALSE(w.tiles.all_done(stage));
      REQUIRE(w.tiles.claim(i, stage, 4));
      CHECK_FALSE(w.tiles.claim(i, stage, 5));
    }
    CHECK(release(w.tiles, stage, 4, 65536).size() == 3);
    for (const Index i : {0, 1, 2}) {
      REQUIRE(w.tiles.claim(i, stage, 5));
      CHECK(w.tiles.first(i) == 65536);
      w.tiles.finish(i, stage, 5);
    }
    CHECK(w.tiles.all_done(stage));
    CHECK(w.tiles.all_done(stage - 1));
    CHECK_FALSE(w.tiles.claim(0, stage - 1, 5));  // a sleeper of an older stage
  }
}

TEST_CASE("who claims an item of a dead owner begins where that one was", "[sync][tiles]") {
  Words w;
  REQUIRE(w.tiles.claim(0, 5, 2));
  REQUIRE(w.tiles.claim(2, 5, 1));
  CHECK(w.tiles.first(0) == 0);
  using Seen = std::vector<std::pair<Index, Index>>;
  CHECK(release(w.tiles, 5, 2, 1100) == Seen{{0, 0}});
  CHECK_FALSE(w.tiles.claim(0, 4, 1));  // free in its stage only
  REQUIRE(w.tiles.claim(0, 5, 1));
  CHECK(w.tiles.first(0) == 1100);
  // Dies as well, before it has begun with the one, in the middle of the other.
  CHECK(release(w.tiles, 5, 1, 4095) == Seen{{0, 1100}, {2, 0}});
  REQUIRE(w.tiles.claim(0, 5, -1));
  CHECK(w.tiles.first(0) == 4095);
  w.tiles.finish_last(0, 5, -1);
  REQUIRE(w.tiles.claim(0, 6, 0));
  CHECK(w.tiles.first(0) == 0);
  // A place that no item has does not make it an item of another stage.
  CHECK(release(w.tiles, 6, 0, (Index{1} << 20) + 3).size() == 1);
  REQUIRE(w.tiles.claim(0, 6, 1));
  CHECK(w.tiles.first(0) == 3);
  w.tiles.finish(0, 6, 1);
  CHECK(w.tiles.claim(0, 7, 1));
}

namespace {

/// Two arrays, an undo area for them, and what its owner leaves behind.
struct Scene {
  static constexpr Index size = 300;
  Scene() {
    for (std::size_t i = 0; i < w.size(); ++i) m[i] = 1000 + (w[i] = static_cast<float>(i));
  }
  /// Changes elements of the item [0, 300), as a run of a loop does, and stops before element `end` is
  /// changed.
  void change(Index begin, Index run_end, Index end) {
    undo.lines(size).for_lines(begin, run_end, 0, arrays, [&](Index from, Index to) {
      for (Index i = from; i < std::min(to, end); ++i) w[at(i)] = m[at(i)] = -1;
    });
  }
  Index restore(std::uint64_t stage, Index item, Index first) {
    return undo.restore(stage, item, first, arrays, 0, size);
  }
  /// Elements that are as they were.
  bool is_untouched(Index begin, Index end) const {
    for (Index i = begin; i < end; ++i)
      if (w[at(i)] != static_cast<float>(i) || m[at(i)] != 1000 + static_cast<float>(i)) return false;
    return true;
  }
  bool is_changed(Index begin, Index end) const {
    for (Index i = begin; i < end; ++i)
      if (w[at(i)] != -1 || m[at(i)] != -1) return false;
    return true;
  }
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  alignas(64) std::array<std::byte, 12'000> memory{};
  std::array<float, 300> w{}, m{};
  std::array<float*, 2> arrays{w.data(), m.data()};
  Carver carver{memory.data()};
  Undo undo{carver, size, size, 2};
};

}  // namespace

TEST_CASE("an undo area puts back the lines that were being changed", "[sync][tiles]") {
  Scene s;
  s.undo.forget();
  CHECK(s.restore(9, 1, 7) == 7);  // claimed, not begun
  s.undo.reach(9, 1, 5);
  CHECK(s.restore(9, 1, 0) == 5);  // begun, nothing changed
  // Copies begin with elements 5, 69 and 133; what the third one has is changed in part.
  s.change(5, 197, 150);
  CHECK(s.restore(9, 0, 3) == 3);  // of an item before the run
  CHECK(s.restore(8, 1, 3) == 3);  // of another stage
  CHECK(s.is_changed(5, 150));
  for (int times = 0; times < 2; ++times) {
    CHECK(s.restore(9, 1, 0) == 133);
    CHECK((s.is_changed(5, 133) && s.is_untouched(133, 300) && s.is_untouched(0, 5)));
  }
  // Who goes on there does the rest of that run, then one that begins at element 290.
  s.undo.reach(9, 1, 133);
  CHECK(s.restore(9, 1, 0) == 133);
  s.change(133, 197, 197);
  s.change(290, 300, 291);
  CHECK(s.restore(9, 1, 0) == 290);
  CHECK((s.is_changed(5, 197) && s.is_untouched(197, 300)));
}

TEST_CASE("a run of several items is put back item by item", "[sync][tiles]") {
  Scene s;
  const auto restore = [&](Index item, Index first) {  // items of 100 elements, from item 1 on
    return s.undo.restore(9, item, first, s.arrays, 100 * (item - 1), 100 * item);
  };
  s.undo.reach(9, 1, 5);
  s.change(5, 133, 110);  // the second copy has elements 69 to 133, of two items
  CHECK(restore(3, 250) == 250);
  CHECK((s.is_changed(5, 110) && s.is_untouched(110, 300)));
  for (int times = 0; times < 2; ++times) {
    CHECK(restore(2, 0) == 100);
    CHECK((s.is_changed(5, 100) && s.is_untouched(100, 300)));
  }
  CHECK(restore(1, 5) == 69);
  CHECK((s.is_changed(5, 69) && s.is_untouched(69, 300)));

  s.undo.reach(9, 1, 69);
  s.change(69, 261, 240);
  CHECK(restore(1, 5) == 100);  // all of it is done
  CHECK(restore(2, 100) == 197);
  CHECK(restore(3, 200) == 200);
  CHECK((s.is_changed(5, 197) && s.is_untouched(197, 300)));
  // Another run behind it that is claimed and not begun, also where this one ends.
  s.undo.reach(9, 1, 200);
  CHECK(restore(3, 250) == 250);
  CHECK(s.undo.restore(9, 5, 430, s.arrays, 400, 500) == 430);
  // Another one has begun with element 230, and its item is not named yet.
  s.undo.lines(300).for_lines(230, 230, 0, s.arrays, [](Index, Index) {});
  CHECK(restore(3, 230) == 230);
}

TEST_CASE("the last copy of a run has whole lines, as far as there are", "[sync][tiles]") {
  Scene s;
  s.undo.reach(9, 1, 0);
  s.change(0, 70, 69);  // the second copy is of one line
  for (const Index i : {79, 80}) s.w[s.at(i)] = -1;
  CHECK(s.restore(9, 1, 0) == 64);
  CHECK((s.is_changed(0, 64) && s.is_untouched(64, 80)));
  CHECK(s.w[80] == -1);
  s.w[80] = 80;
  s.undo.reach(9, 1, 296);
  s.change(296, 299, 298);
  s.w[299] = -1;
  CHECK(s.restore(9, 1, 0) == 296);
  CHECK(s.is_untouched(64, 300));
}

TEST_CASE("an undo area puts back an item that was copied as a whole", "[sync][tiles]") {
  Scene s;
  s.undo.reach(4, 0, 0);
  s.undo.save(s.arrays, 10, 290);
  for (Index i = 10; i < 290; i += 3) s.w[s.at(i)] = s.m[s.at(i)] = -1;
  CHECK(s.undo.restore(4, 0, 10, s.arrays, 10, 290) == 10);
  CHECK(s.is_untouched(0, 300));
  s.undo.reach(4, 1, 0);
  s.w[50] = -1;
  CHECK(s.undo.restore(4, 1, 10, s.arrays, 10, 290) == 10);
  CHECK(s.w[50] == -1);
}

TEST_CASE("what a damaged undo area says is not believed", "[sync][tiles]") {
  Scene s;
  Carver again{s.memory.data()};
  // The same words for a layout of 100 elements, of which 10 are copied.
  const Undo smaller{again, 100, 10, 2};
  s.undo.reach(4, 0, 0);
  s.undo.save(s.arrays, 0, 20);
  s.w[5] = -1;
  CHECK(smaller.restore(4, 0, 3, s.arrays, 0, 20) == 3);
  CHECK(s.w[5] == -1);
  s.undo.reach(4, 0, 101);
  CHECK(smaller.restore(4, 0, 3, s.arrays, 0, 20) == 3);
  s.undo.reach(4, 0, 100);
  CHECK(smaller.restore(4, 0, 3, s.arrays, 0, 20) == 20);
}

TEST_CASE("what is not of an item is not put back", "[sync][tiles]") {
  Scene s;
  s.undo.reach(4, 0, 0);
  s.change(96, 100, 97);
  CHECK(s.undo.restore(4, 0, 2, s.arrays, 0, 90) == 90);
  CHECK(s.w[96] == -1);
}
