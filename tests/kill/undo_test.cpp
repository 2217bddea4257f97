// SPDX-License-Identifier: MIT
// An update is stopped wherever lines are copied. From the memory that is left another one goes on, and is
// stopped as well; the end is that of an update that nobody has stopped, bit for bit.
#include "kill/fault_points.hpp"
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/optimizers/adam.hpp>
#include <lockstep/optimizers/aggregation.hpp>
#include <lockstep/optimizers/lamb.hpp>
#include <lockstep/optimizers/momentum.hpp>
#include <lockstep/optimizers/moving_average.hpp>
#include <lockstep/optimizers/sgd.hpp>
#include <lockstep/optimizers/updater.hpp>
#include <lockstep/sync/undo.hpp>

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Bytes = std::vector<std::byte>;

/// An updater, the words of its items and the undo area of one participant, in memory of which copies can be
/// made.
template <class R>
class Scene {
  using Subject = Updater<R, float, float>;

 public:
  Scene(const R& rule, Variables<float>& variables)
      : rows_(variables.layout()),
        memory_([&](Carver& carver) {
          const Subject counted(rule, variables, rows_, carver, true);
          (void)words(carver, counted);
          (void)undo_area(carver, counted);
        }),
        updater(rule, variables, rows_, memory_.carver(), true),
        tiles(words(memory_.carver(), updater)),
        undo(undo_area(memory_.carver(), updater)) {
    for (Index i = 0; i < variables.layout().size(); ++i)
      updater.values()[i] = static_cast<float>(i % 23) * 0.25F - 2;
    updater.initialise();
  }

  Bytes memory() {
    const auto all = memory_.bytes();
    return {all.begin(), all.end()};
  }
  void set_memory(const Bytes& bytes) { std::memcpy(memory_.bytes().data(), bytes.data(), bytes.size()); }

  /// All items that are not done, as a participant does them.
  void change(const UpdatePlan& plan, const Contributors<float, float>& sources) {
    undo.forget();
    for (Index i = 0; i < tiles.count(); ++i) {
      Index end = i;
      while (end < tiles.count() && tiles.claim(end, k_stage, k_owner)) ++end;
      while (i < end)
        for (const Index next = detail::run_claimed(updater, plan, sources, undo, tiles, k_stage, i, end);
             i < next; ++i) {
          tiles.finish(i, k_stage, k_owner);
          detail::fault_point("item: done");
        }
    }
  }
  /// What whoever notices the death does.
  void restore(const UpdatePlan& plan) {
    tiles.release_claims(k_stage, k_owner, [&](Index i, Index first) {
      const auto [begin, end] = updater.partition().item(i);
      return undo.restore(k_stage, i, begin + first, updater.changed_arrays(plan), begin, end) - begin;
    });
  }

 private:
  static constexpr std::uint64_t k_stage = 5;
  static constexpr int k_owner = 1;

  static detail::Tiles words(Carver& carver, const Subject& updater) {
    const Index items = updater.partition().items();
    return {carver.array<detail::Tiles::Word>(static_cast<std::size_t>(items)), items};
  }
  static detail::UndoArea<float> undo_area(Carver& carver, const Subject& updater) {
    return {carver, updater.layout().size(), updater.partition().largest_whole_item(),
            updater.most_changed_arrays};
  }
  RowLayout rows_;
  CarvedMemory memory_;

 public:
  Subject updater;
  detail::Tiles tiles;
  detail::UndoArea<float> undo;
};

/// Variables and slots, or the window: what an update leaves.
template <class R>
std::vector<float> outcome(Scene<R>& scene, const UpdatePlan& plan) {
  std::vector<float> all;
  for (const float* array : scene.updater.changed_arrays(plan))
    all.insert(all.end(), array, array + scene.updater.layout().size());
  return all;
}

/// Stops at one of `stride` points that `f` passes: calls `then` with the memory that a process killed there
/// leaves.
template <class R>
int stop_at_each(Scene<R>& scene, int stride, const std::function<void()>& f,
                 const std::function<void(const Bytes&)>& then) {
  std::vector<Bytes> left;
  int passed = 0;
  call_at_points([&](const char*) {
    if (passed++ % stride == 0) left.push_back(scene.memory());
  });
  f();
  call_at_points({});
  for (const Bytes& memory : left) then(memory);
  return passed;
}

/// @param stride one of so many points is tried.
/// @return points at which an update of these sources could be stopped.
template <class R>
int stop_everywhere(const R& rule, Variables<float>& variables, const Contributors<float, float>& sources,
                    const UpdatePlan& plan, int stride = 1) {
  Scene<R> scene(rule, variables);
  if (plan.applies) scene.updater.prepare({}, plan);
  const Bytes before = scene.memory();
  scene.change(plan, sources);
  const std::vector<float> expected = outcome(scene, plan);
  scene.set_memory(before);
  REQUIRE(outcome(scene, plan) != expected);

  int wrong = 0, second_stops = 0;
  const auto finish = [&] {
    scene.restore(plan);
    scene.change(plan, sources);
    const std::vector<float> found = outcome(scene, plan);
    wrong += std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) != 0 ? 1 : 0;
  };
  const auto finish_from = [&](const Bytes& left) {
    ++second_stops;
    scene.set_memory(left);
    finish();
  };
  const int stops = stop_at_each(
      scene, stride, [&] { scene.change(plan, sources); },
      [&](const Bytes& left) {
        scene.set_memory(left);
        finish();
        // Whoever restores is stopped, too, and then whoever goes on.
        scene.set_memory(left);
        stop_at_each(
            scene, 1, [&] { scene.restore(plan); }, finish_from);
        scene.set_memory(left);
        scene.restore(plan);
        stop_at_each(
            scene, 5 * stride, [&] { scene.change(plan, sources); }, finish_from);
      });
  CHECK(wrong == 0);
  CHECK(second_stops > stops / stride / 2);
  return stops;
}

using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

std::vector<std::vector<Index>> shapes(Index rows) { return {{40, 5}, {rows, 150}, {77}}; }

/// A table with rows of a width that no line has, one of `rows` wide ones, and a vector.
struct Model {
  explicit Model(Index rows) {
    (void)variables.add("narrow", Table(Table::Zero(40, 5)));
    (void)variables.add("wide", Table(Table::Zero(rows, 150)));
    (void)variables.add("bias", Eigen::VectorXf::Zero(77));
  }
  Variables<float> variables;
};
constexpr Index k_one_item = 6, k_three_items = 60;  // rows

UpdatePlan applying(int contributions) { return {.applies = true, .scale = 1.0 / contributions}; }

/// Some gradients, dense or two by rows, and all that an update reads of them.
struct Gradients {
  Gradients(bool dense, Index rows, int count = 2) : pile(shapes(rows), count) {
    Numbers numbers(3);
    for (int i = 0; i < count; ++i) {
      if (dense) {
        for (std::uint32_t id = 0; id < 3; ++id) fill_dense(pile[i], id, numbers);
      } else {
        fill_rows(pile[i], 0, {i, 3, 20 + i, 39}, numbers);
        fill_rows(pile[i], 1, {2, 3 + i}, numbers);
        if (rows == k_three_items) fill_rows(pile[i], 1, {25, 40 + i, 53}, numbers);
        if (i == 0) fill_dense(pile[i], 2, numbers);
      }
      sources.add(pile[i], 1, 1);
    }
    sources.scale = 1.0 / count;
  }
  Pile<float> pile;
  Contributors<float, float> sources;
};

}  // namespace

TEST_CASE("an update of elements that is stopped at any copy can be gone on with", "[kill][undo]") {
  Model model(k_one_item);
  for (const bool dense : {true, false}) {
    INFO((dense ? "dense" : "rows"));
    const Gradients gradients(dense, k_one_item);
    const auto stops = [&](const auto& rule) {
      return stop_everywhere(rule, model.variables, gradients.sources, applying(2));
    };
    // 64 elements at a time of 208 + 912 + 80; of rows: 6 of 5, 3 of 150, then 80 elements. Then the item.
    const int points = 1 + 2 * (dense ? 19 : 6 + 3 * 3 + 2);
    CHECK(stops(Sgd{0.5}) == points);
    CHECK(stops(Momentum{0.5, 0.9}) == points);
    CHECK(stops(Adam{.lazy_rows = true}) == points);
    CHECK(stops(Adam{}) >= 2 * 19);  // all rows, some of them in runs of their own
    CHECK(stops(MovingAverage<Sgd>{Sgd{0.5}, 0.9}) >= points);
  }
}

TEST_CASE("so can one that goes over several items in one run", "[kill][undo]") {
  Model model(k_three_items);
  REQUIRE(Scene<Sgd>(Sgd{0.5}, model.variables).tiles.count() == 3);
  {
    const Gradients gradients(true, k_three_items);
    const auto stops = [&](const auto& rule) {
      return stop_everywhere(rule, model.variables, gradients.sources, applying(2), 7);
    };
    // 64 elements at a time of 208 + 9,008 + 80, which all items begin with.
    CHECK(stops(Sgd{0.5}) == 3 + 2 * 146);
    CHECK(stops(Adam{}) == 3 + 2 * 146);
  }
  {
    // Rows 25 and 53 of the wide ones lie in two items, which share a copy of four lines.
    const Gradients gradients(false, k_three_items);
    const auto stops = [&](const auto& rule) {
      return stop_everywhere(rule, model.variables, gradients.sources, applying(2));
    };
    CHECK(stops(Sgd{0.5}) == 3 + 2 * (6 + 7 * 3 + 2));
    CHECK(stops(Adam{.lazy_rows = true}) == 3 + 2 * (6 + 7 * 3 + 2));
    const auto some_stops = [&](const auto& rule) {
      return stop_everywhere(rule, model.variables, gradients.sources, applying(2), 7);
    };
    CHECK(some_stops(Adam{}) >= 2 * 146);  // all rows
    CHECK(some_stops(MovingAverage<Sgd>{Sgd{0.5}, 0.9}) >= 2 * 146);
  }
}

TEST_CASE("so can one of more contributions than a kernel takes", "[kill][undo]") {
  constexpr int many = 9;
  Model model(k_three_items);
  const Gradients gradients(true, k_three_items, many);
  const auto stops = [&](const auto& rule) {
    return stop_everywhere(rule, model.variables, gradients.sources, applying(many), 7);
  };
  CHECK(stops(Sgd{0.5}) == 3 + 2 * 146);
  CHECK(stops(Adam{}) == 3 + 2 * 146);
}

TEST_CASE("so can one of a rule that needs whole variables", "[kill][undo]") {
  Model model(k_one_item);
  for (const bool dense : {true, false}) {
    INFO((dense ? "dense" : "rows"));
    const Gradients gradients(dense, k_one_item);
    CHECK(stop_everywhere(Lamb{}, model.variables, gradients.sources, applying(2)) == 3 + 2 * 3);
  }
}

TEST_CASE("so can sums of an open window", "[kill][undo]") {
  for (const Index rows : {k_one_item, k_three_items}) {
    Model model(rows);
    for (const bool dense : {true, false}) {
      INFO((dense ? "dense, " : "rows, ") << rows);
      const Gradients gradients(dense, rows);
      const GradientAggregation<Sgd> recipe{Sgd{0.5}, {.grad_steps = 4}};
      const int stride = dense && rows == k_three_items ? 7 : 1;
      CHECK(stop_everywhere(recipe, model.variables, gradients.sources, {.applies = false}, stride) >=
            2 * 17);
    }
  }
}
