// SPDX-License-Identifier: MIT
// How an update is divided.
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/optimizers/sgd.hpp>
#include <lockstep/optimizers/updater.hpp>

#include <utility>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// An updater over memory of its own.
template <class R>
class Bound {
 public:
  Bound(const R& rule, Variables<float>& variables)
      : rows_(variables.layout()),
        memory_([&](Carver& carver) { (void)Updater<R, float, float>(rule, variables, rows_, carver); }),
        updater(rule, variables, rows_, memory_.carver()) {
    updater.initialise();
  }

 private:
  RowLayout rows_;
  CarvedMemory memory_;

 public:
  Updater<R, float, float> updater;
};

}  // namespace

TEST_CASE("an update is divided into items", "[optimizers][updater]") {
  using Range = std::pair<Index, Index>;
  const Layout layout = layout_of<float>({{4096}, {300}, {5}});  // 4096 + 304 + 16 elements
  const Partition<true> tiles(layout);
  REQUIRE(tiles.items() == 2);
  CHECK(tiles.item(0) == Range{0, 4096});
  CHECK(tiles.item(1) == Range{4096, 4416});
  CHECK(layout.size() == 4416);
  CHECK(tiles.largest_whole_item() == 0);

  const Partition<false> whole(layout);
  REQUIRE(whole.items() == 3);
  CHECK(whole.item(0) == Range{0, 4096});
  CHECK(whole.item(1) == Range{4096, 4400});
  CHECK(whole.item(2) == Range{4400, 4416});
  CHECK(whole.largest_whole_item() == 4096);
}

TEST_CASE("tiles grow with the layout, so that there are not too many", "[optimizers][updater]") {
  const auto items_of = [](Index size) {
    const Layout layout = layout_of<float>({{size}});
    const Partition<true> tiles(layout);
    Index end = 0;
    for (Index i = 0; i < tiles.items(); ++i) {
      const auto [first, last] = tiles.item(i);
      if (first != end || last - first > Partition<true>::k_largest_tile) return Index{-1};
      end = last;
    }
    return end == layout.size() ? tiles.items() : -1;
  };
  CHECK(items_of(4096 * 2048) == 2048);
  CHECK(items_of(4096 * 2049) == 1025);
  CHECK(items_of(64'000'000) == 1954);    // of 32,768
  CHECK(items_of(65536 * 5000) == 5000);  // they grow no further
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
