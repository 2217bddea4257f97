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

/// An updater of one item with its undo area, in memory of which copies can be made.
template <class R>
class Scene {
  using Subject = Updater<R, float, float>;

 public:
  Scene(const R& rule, Variables<float>& variables)
      : rows_(variables.layout()),
        memory_([&](Carver& carver) {
          const Subject counted(rule, variables, rows_, carver, true);
          (void)undo_area(carver, counted);
        }),
        updater(rule, variables, rows_, memory_.carver(), true),
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

  /// The whole update of item 0, from `first` on, as a participant does it.
  void change(const UpdatePlan& plan, const Contributors<float, float>& sources, Index first) {
    const auto [begin, end] = updater.partition().item(0);
    undo.reach(k_stage, 0, first);
    detail::run_undoably(updater, plan, sources, undo, begin, begin + first, end);
  }
  /// What whoever notices the death does. @return the element with which to go on.
  Index restore(const UpdatePlan& plan, Index first) {
    const auto [begin, end] = updater.partition().item(0);
    return undo.restore(k_stage, 0, first, updater.changed_arrays(plan), begin, end);
  }

 private:
  static constexpr std::uint64_t k_stage = 5;

  static detail::UndoArea<float> undo_area(Carver& carver, const Subject& updater) {
    return {carver, updater.partition().largest_whole_item(), updater.most_changed_arrays};
  }
  RowLayout rows_;
  CarvedMemory memory_;

 public:
  Subject updater;
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

/// Stops at each point that `f` passes: calls `then` with the memory that a process killed there leaves.
template <class R>
int stop_at_each(Scene<R>& scene, const std::function<void()>& f,
                 const std::function<void(const Bytes&)>& then) {
  std::vector<Bytes> left;
  call_at_points([&](const char*) { left.push_back(scene.memory()); });
  f();
  call_at_points({});
  for (const Bytes& memory : left) then(memory);
  return static_cast<int>(left.size());
}

/// @return points at which an update of these sources was stopped.
template <class R>
int stop_everywhere(const R& rule, Variables<float>& variables, const Contributors<float, float>& sources,
                    const UpdatePlan& plan) {
  Scene<R> scene(rule, variables);
  if (plan.applies) scene.updater.prepare({}, plan);
  const Bytes before = scene.memory();
  scene.change(plan, sources, 0);
  const std::vector<float> expected = outcome(scene, plan);
  scene.set_memory(before);
  REQUIRE(outcome(scene, plan) != expected);

  int wrong = 0, second_stops = 0;
  const auto finish = [&](Index first) {
    scene.change(plan, sources, first);
    const std::vector<float> found = outcome(scene, plan);
    wrong += std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) != 0 ? 1 : 0;
  };
  const int stops = stop_at_each(
      scene, [&] { scene.change(plan, sources, 0); },
      [&](const Bytes& left) {
        scene.set_memory(left);
        const Index next = scene.restore(plan, 0);
        const Bytes restored = scene.memory();
        finish(next);
        // Whoever restores is stopped, too, and then whoever goes on.
        scene.set_memory(left);
        second_stops += stop_at_each(
            scene, [&] { (void)scene.restore(plan, 0); },
            [&](const Bytes& again) {
              scene.set_memory(again);
              finish(scene.restore(plan, 0));
            });
        scene.set_memory(restored);
        int number = 0;
        stop_at_each(
            scene, [&] { scene.change(plan, sources, next); },
            [&](const Bytes& again) {
              if (++number % 5 != 1) return;
              ++second_stops;
              scene.set_memory(again);
              finish(scene.restore(plan, next));
            });
      });
  CHECK(wrong == 0);
  CHECK(second_stops > stops / 2);
  return stops;
}

using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A table with rows of a width that no line has, a wide one, and a vector: less than one item.
struct Model {
  Model() {
    (void)variables.add("narrow", Table(Table::Zero(40, 5)));
    (void)variables.add("wide", Table(Table::Zero(6, 150)));
    (void)variables.add("bias", Eigen::VectorXf::Zero(77));
  }
  Variables<float> variables;
};
const std::vector<std::vector<Index>> k_shapes = {{40, 5}, {6, 150}, {77}};

UpdatePlan applying(int contributions) { return {.applies = true, .scale = 1.0 / contributions}; }

/// Two gradients, dense or by rows, and all that an update reads of them.
struct Gradients {
  explicit Gradients(bool dense) : pile(k_shapes, 2) {
    Numbers numbers(3);
    for (int i = 0; i < 2; ++i) {
      if (dense) {
        for (std::uint32_t id = 0; id < 3; ++id) fill_dense(pile[i], id, numbers);
      } else {
        fill_rows(pile[i], 0, {i, 3, 20 + i, 39}, numbers);
        fill_rows(pile[i], 1, {2, 3 + i}, numbers);
        if (i == 0) fill_dense(pile[i], 2, numbers);
      }
      sources.add(pile[i], 1, 1);
    }
    sources.scale = 0.5;
  }
  Pile<float> pile;
  Contributors<float, float> sources;
};

}  // namespace

TEST_CASE("an update of elements that is stopped at any copy can be gone on with", "[kill][undo]") {
  Model model;
  for (const bool dense : {true, false}) {
    INFO((dense ? "dense" : "rows"));
    const Gradients gradients(dense);
    const auto stops = [&](const auto& rule) {
      return stop_everywhere(rule, model.variables, gradients.sources, applying(2));
    };
    // 64 elements at a time of 208 + 912 + 80; of rows: 6 of 5, 3 of 150, then 80 elements.
    const int copies = dense ? 19 : 6 + 3 * 3 + 2;
    CHECK(stops(Sgd{0.5}) == 2 * copies);
    CHECK(stops(Momentum{0.5, 0.9}) == 2 * copies);
    CHECK(stops(Adam{.lazy_rows = true}) == 2 * copies);
    CHECK(stops(Adam{}) >= 2 * 19);  // all rows, some of them in runs of their own
    CHECK(stops(MovingAverage<Sgd>{Sgd{0.5}, 0.9}) >= 2 * copies);
  }
}

TEST_CASE("so can one of a rule that needs whole variables", "[kill][undo]") {
  Model model;
  const Gradients gradients(true);
  CHECK(stop_everywhere(Lamb{}, model.variables, gradients.sources, applying(2)) == 2);
}

TEST_CASE("so can sums of an open window", "[kill][undo]") {
  Model model;
  for (const bool dense : {true, false}) {
    INFO((dense ? "dense" : "rows"));
    const Gradients gradients(dense);
    const GradientAggregation<Sgd> recipe{Sgd{0.5}, {.grad_steps = 4}};
    CHECK(stop_everywhere(recipe, model.variables, gradients.sources, {.applies = false}) >= 2 * 17);
  }
}
