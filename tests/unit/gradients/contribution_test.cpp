// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/finite.hpp>
#include <lockstep/gradients/row_writer.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <set>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Members = std::set<Index>;

Members members(const Contribution<float>& contribution, std::uint32_t id) {
  Members rows;
  for (Index row = 0; row < contribution.layout()[id].rows(); ++row)
    if (contribution.rows(id).contains(row)) rows.insert(row);
  return rows;
}

void put(Contribution<float>& to, Presence presence, const Members& rows) {
  if (presence == Presence::dense) to.mark_dense(0);
  if (presence == Presence::rows) {
    to.mark_rows(0);
    for (const Index row : rows) to.rows(0).insert(row);
  }
}

}  // namespace

TEST_CASE("contribution: starts empty, and marks say what is present", "[gradients][contribution]") {
  Pile<float> pile({{3}, {4, 2}, {}}, 1);
  Contribution<float>& c = pile[0];
  CHECK(c.is_empty());
  CHECK_FALSE(c.is_dense());
  for (std::uint32_t id = 0; id < 3; ++id) CHECK(c.presence(id) == Presence::absent);

  CHECK(c.mark_dense(0) == c.data());
  CHECK(c.mark_dense(0) == c.data());  // again is the same
  CHECK(c.presence(0) == Presence::dense);
  CHECK(c.header().present == 1);
  c.mark_rows(1);
  c.mark_rows(1);
  CHECK(c.presence(1) == Presence::rows);
  CHECK(c.header().present == 2);
  CHECK(c.header().sparse == 1);
  CHECK_FALSE(c.is_dense());
  CHECK(c.mark_dense(2) == c.data() + pile.layout[2].offset);
  CHECK_FALSE(c.is_dense());  // all present, but one by rows
  c.clear();
  for (std::uint32_t id = 0; id < 3; ++id) c.mark_dense(id);
  CHECK(c.is_dense());
}

TEST_CASE("contribution: a variable has a dense gradient or rows, never both", "[gradients][contribution]") {
  Pile<float> pile({{3}, {4, 2}}, 1);
  Contribution<float>& c = pile[0];
  c.mark_dense(0);
  c.mark_rows(1);
  CHECK_THROWS_AS(c.mark_rows(0), UsageError);
  CHECK_THROWS_WITH(c.mark_rows(0), ContainsSubstring("'v0'") && ContainsSubstring("has a dense gradient"));
  CHECK_THROWS_AS(c.mark_dense(1), UsageError);
  CHECK_THROWS_WITH(c.mark_dense(1), ContainsSubstring("'v1'") && ContainsSubstring("has rows"));
  CHECK(c.presence(0) == Presence::dense);
  CHECK(c.presence(1) == Presence::rows);
  CHECK(c.header().present == 2);
  CHECK(c.header().sparse == 1);
}

TEST_CASE("contribution: clear forgets marks, rows, weights and counts", "[gradients][contribution]") {
  Pile<float> pile({{3}, {9000, 1}}, 1);
  Contribution<float>& c = pile[0];
  c.mark_dense(0)[1] = 5;
  put(c, Presence::absent, {});
  c.mark_rows(1);
  for (const Index row : {0, 63, 64, 4095, 4096, 8999}) c.rows(1).insert(row);
  c.header().unit = 3;
  c.header().total = 4;
  c.header().merged = 2;
  c.clear();
  CHECK(c.is_empty());
  CHECK(c.presence(0) == Presence::absent);
  CHECK(members(c, 1).empty());
  CHECK(c.header().unit == 1);
  CHECK(c.header().total == 1);
  CHECK(c.header().merged == 0);
  CHECK(c.header().sparse == 0);
  CHECK(c.data()[1] == 5);  // data stay, unreachable
}

TEST_CASE("contribution: marks of an old epoch do not come back when epochs wrap",
          "[gradients][contribution]") {
  Pile<float> pile({{3}, {4, 2}, {5}}, 1);
  Contribution<float>& c = pile[0];
  constexpr std::uint32_t last = (std::uint32_t{1} << 30) - 1;
  c.header().epoch = 1;
  c.mark_dense(0);  // in the epoch that returns after the wrap
  c.header().epoch = 2;
  c.mark_dense(1);
  c.header().epoch = last;
  for (std::uint32_t id = 0; id < 3; ++id) CHECK(c.presence(id) == Presence::absent);
  c.header().present = 0;
  c.mark_dense(2);
  CHECK(c.presence(2) == Presence::dense);
  c.clear();
  CHECK(c.header().epoch == 1);
  for (std::uint32_t id = 0; id < 3; ++id) CHECK(c.presence(id) == Presence::absent);
  c.mark_rows(1);
  CHECK(c.presence(1) == Presence::rows);
  c.clear();
  CHECK(c.header().epoch == 2);
  for (std::uint32_t id = 0; id < 3; ++id) CHECK(c.presence(id) == Presence::absent);
}

TEST_CASE("contribution: the union of two presences", "[gradients][contribution]") {
  const Members ours{0, 5, 64}, theirs{5, 63, 4096};
  for (const Presence a : {Presence::absent, Presence::dense, Presence::rows})
    for (const Presence b : {Presence::absent, Presence::dense, Presence::rows}) {
      INFO("first " << static_cast<int>(a) << ", second " << static_cast<int>(b));
      Pile<float> pile({{4097, 1}, {2}}, 2);
      put(pile[0], a, ours);
      put(pile[1], b, theirs);
      pile[0].unite_presence(0, pile[1]);
      const bool dense = a == Presence::dense || b == Presence::dense;
      const bool rows = a == Presence::rows || b == Presence::rows;
      CHECK(pile[0].presence(0) == (dense ? Presence::dense : rows ? Presence::rows : Presence::absent));
      CHECK(pile[0].header().present == (dense || rows ? 1U : 0U));
      CHECK(pile[0].header().sparse == (rows && !dense ? 1U : 0U));
      Members expected;
      if (!dense && a == Presence::rows) expected.insert(ours.begin(), ours.end());
      if (!dense && b == Presence::rows) expected.insert(theirs.begin(), theirs.end());
      CHECK(members(pile[0], 0) == expected);
      CHECK(pile[0].presence(1) == Presence::absent);
      CHECK(pile[1].presence(0) == b);
      pile[0].clear();
      CHECK(members(pile[0], 0).empty());  // nothing is left behind for the next round
    }
}

TEST_CASE("contribution: zero_absent writes zeros only where there is no gradient",
          "[gradients][contribution]") {
  Pile<float> pile({{5, 3}, {5, 3}, {5, 3}}, 1);
  Contribution<float>& c = pile[0];
  std::fill(c.data(), c.data() + pile.layout.size(), 7.0F);
  c.mark_dense(0);
  c.mark_rows(1);
  c.rows(1).insert(1);
  c.rows(1).insert(4);
  for (std::uint32_t id = 0; id < 3; ++id) c.zero_absent(id);
  for (Index i = 0; i < 15; ++i) {
    CHECK(c.data()[i] == 7);
    CHECK(c.data()[pile.layout[1].offset + i] == (i / 3 == 1 || i / 3 == 4 ? 7 : 0));
    CHECK(c.data()[pile.layout[2].offset + i] == 0);
  }
  for (std::uint32_t id = 0; id < 3; ++id) CHECK(c.data()[pile.layout[id].offset + 15] == 7);  // padding
}

TEMPLATE_TEST_CASE("contribution: arrays are aligned and do not overlap", "[gradients][contribution]", float,
                   double, Eigen::half, Eigen::bfloat16) {
  using G = TestType;
  for (const Index size : k_sizes) {
    const Layout layout = layout_of<float>({{size}, {size, 2}});
    const RowLayout rows(layout);
    CHECK(rows[0].words == 0);
    CHECK(rows[1].numbers == RowSet::numbers_for(size));
    CHECK(rows.words() == 2 * RowSet::memory_for(size));
    Carver counter;
    const Contribution<G> counted(counter, layout, rows);
    ZeroedMemory memory(counter.used() + 2 * k_alignment);
    Carver carver(memory.bytes().data());
    Contribution<G> c(carver, layout, rows);
    CHECK(carver.used() == counter.used());
    CHECK(reinterpret_cast<std::uintptr_t>(c.data()) % k_alignment == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(&c.header()) % k_alignment == 0);
    c.header() = {};
    std::fill(c.data(), c.data() + layout.size(), static_cast<G>(-1));
    CHECK(c.is_empty());
    c.mark_rows(0);
    for (Index row = 0; row < size; ++row) c.rows(0).insert(row);
    c.mark_rows(1);
    CHECK_FALSE(c.rows(1).contains(0));
    CHECK(
        std::all_of(c.data(), c.data() + layout.size(), [](G value) { return value == static_cast<G>(-1); }));
    const auto behind = memory.bytes().subspan(counter.used());
    CHECK(std::all_of(behind.begin(), behind.end(), [](std::byte value) { return value == std::byte{0}; }));
  }
}

TEMPLATE_TEST_CASE("contribution: packed rows are those of their places, and can be spread",
                   "[gradients][contribution]", float, Eigen::bfloat16) {
  using G = TestType;
  Numbers numbers(5);
  const Layout layout = layout_of<float>({{3}, {300, 5}, {9000}});
  const RowLayout rows(layout);
  Owned<G> packing(layout, rows, true), placing(layout, rows);
  for (int step = 0; step < 30; ++step) {
    INFO("step " << step);
    for (const std::uint32_t id : {1U, 2U}) {
      const Index width = layout[id].row_size();
      for (int call = 0; call < 1 + step % 2;
           ++call) {  // a second call of a step spreads what the first one wrote
        std::vector<Index> indices;
        for (Index i = numbers.below(60); i >= 0; --i) indices.push_back(numbers.below(layout[id].rows()));
        const auto row_at = [&](Index i) { return indices[static_cast<std::size_t>(i)]; };
        const auto count = static_cast<Index>(indices.size());
        detail::RowWriter<G> packed(*packing, id, count, row_at), placed(*placing, id, count, row_at);
        CHECK(packing->is_packed(id) == (call == 0));
        CHECK_FALSE(placing->is_packed(id));
        for (const Index row : indices) {
          const auto to = packed(row), reference = placed(row);
          CHECK(to.is_first == reference.is_first);
          for (Index i = 0; i < width; ++i) {
            const auto value = static_cast<G>(numbers.exact());
            for (const auto& target : {to, reference})
              target.data[i] = target.is_first ? value : static_cast<G>(target.data[i] + value);
          }
        }
      }
    }
    const auto agree = [&](bool in_place) {
      bool same = true;
      for (const std::uint32_t id : {1U, 2U})
        for (Index row = 0; row < layout[id].rows(); ++row) {
          same = same && packing->rows(id).contains(row) == placing->rows(id).contains(row);
          if (!placing->rows(id).contains(row)) continue;
          const Index width = layout[id].row_size();
          const G* data =
              in_place ? packing->data() + layout[id].offset + row * width : packing->row_data(id, row);
          same = same && std::equal(data, data + width, placing->row_data(id, row));
        }
      return same;
    };
    CHECK(agree(false));
    CHECK(squared_norm(*packing) == squared_norm(*placing));
    for (const std::uint32_t id : {1U, 2U}) packing->spread(id);
    CHECK_FALSE(packing->is_packed(1));
    CHECK(agree(true));
    packing->clear();
    placing->clear();
  }
}
