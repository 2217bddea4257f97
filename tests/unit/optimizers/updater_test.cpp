// SPDX-License-Identifier: MIT
// How an update is divided, and which parts of it change nothing.
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/optimizers/adam.hpp>
#include <lockstep/optimizers/sgd.hpp>
#include <lockstep/optimizers/updater.hpp>

#include <array>
#include <cstddef>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Parts follow each other without a gap. @return the number of parts of item `i`.
template <bool by_elements>
int walk(const Partition<by_elements>& partition, Index i, Index& at) {
  bool right = partition.item(i).first == at;
  for (int k = 0; k < partition.parts(i); ++k) {
    const auto [begin, end] = partition.part(i, k);
    right = right && begin == at && end > begin && end - begin <= partition.part_size();
    at = end;
  }
  CHECK((right && partition.item(i).second == at));
  return partition.parts(i);
}

/// An updater over memory of its own.
template <class R>
class Bound {
 public:
  Bound(const R& rule, Variables<float>& variables)
      : rows_(variables.layout()),
        memory_(bytes(rule, variables)),
        carver_(memory_.bytes().data()),
        updater(rule, variables, rows_, carver_) {
    updater.initialise();
  }

 private:
  std::size_t bytes(const R& rule, Variables<float>& variables) const {
    Carver counter;
    const Updater<R, float, float> counted(rule, variables, rows_, counter);
    return counter.used();
  }
  RowLayout rows_;
  ZeroedMemory memory_;
  Carver carver_;

 public:
  Updater<R, float, float> updater;
};

}  // namespace

TEST_CASE("an update is divided into items, and these into parts", "[optimizers][updater]") {
  const Layout layout = layout_of<float>({{4096}, {300}, {5}});  // 4096 + 304 + 16 elements
  Index at = 0;
  const Partition<true> tiles(layout);
  REQUIRE(tiles.items() == 2);
  CHECK(walk(tiles, 0, at) == 16);
  CHECK(walk(tiles, 1, at) == 2);  // 256 + 64
  CHECK(at == layout.size());

  at = 0;
  const Partition<false> whole(layout);
  REQUIRE(whole.items() == 3);
  for (Index i = 0; i < 3; ++i) CHECK(walk(whole, i, at) == 1);
  CHECK(at == layout.size());
  CHECK(whole.part_size() == 4096);
}

TEST_CASE("a part that no gradient touches is known before it is changed", "[optimizers][updater]") {
  Variables<float> variables;
  using Table = Eigen::Matrix<float, Eigen::Dynamic, 16, Eigen::RowMajor>;
  (void)variables.add("table", Table(Table::Zero(100, 16)));  // 16 rows to a part
  (void)variables.add("bias", Eigen::VectorXf::Zero(256));
  Pile<float> pile({{100, 16}, {256}}, 2);
  Numbers numbers(1);
  fill_rows(pile[0], 0, {17}, numbers);
  fill_rows(pile[1], 0, {20, 99}, numbers);
  Contributors<float, float> sources;
  for (int i = 0; i < 2; ++i) sources.add(pile[i], 1, 1);
  const auto changes = [&](const auto& rule) {
    Bound bound(rule, variables);
    std::array<bool, 8> result{};
    for (int part = 0; part < 8; ++part) {
      const auto [begin, end] = bound.updater.partition().part(0, part);
      result[static_cast<std::size_t>(part)] = bound.updater.changes(sources, begin, end);
    }
    return result;
  };
  // Rows 16 to 31 and 96 to 99; the last part has the rest of the table and the beginning of the bias.
  CHECK(changes(Sgd{}) == std::array{false, true, false, false, false, false, true, false});
  // Moments decay in all rows of a table that has a gradient, not in a variable that has none.
  CHECK(changes(Adam{}) == std::array{true, true, true, true, true, true, true, false});
  CHECK(changes(Adam{.lazy_rows = true}) == std::array{false, true, false, false, false, false, true, false});
  for (int i = 0; i < 2; ++i) fill_dense(pile[i], 1, numbers);
  CHECK(changes(Sgd{})[7]);
  CHECK(changes(Adam{})[7]);
}

TEST_CASE("a damaged plan does not lead to a window that is not there", "[optimizers][updater]") {
  Variables<float> variables;
  (void)variables.add("w", Eigen::VectorXf::Zero(3));
  Bound bound(Sgd{}, variables);
  Contributors<float, float> sources;
  bound.updater.list({.applies = true, .with_window = true}, {}, 1, sources);
  CHECK(sources.all.empty());
  UpdaterState state;
  bound.updater.commit(state, {.applies = false}, {});
  CHECK(state.window.updates == 0);
}
