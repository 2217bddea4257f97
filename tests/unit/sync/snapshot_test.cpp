// SPDX-License-Identifier: MIT
// Saving and restoring of a trainer, also while replicas are at work.
#include "unit/sync/scene.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct SavedModel {
  SavedModel()
      : w(variables.add("w", Eigen::MatrixXf(Eigen::MatrixXf::Ones(7, 9)))),
        rows(variables.add("rows", Table(Table::Ones(70, 3)))) {}
  std::vector<float> bits() const { return {variables.flat().begin(), variables.flat().end()}; }
  Variables<float> variables;
  Handle<Eigen::MatrixXf, float> w;
  Handle<Table, float> rows;
};

/// The gradients of contribution `number`, whoever makes it.
template <class O>
StepResult contribute(O& optimizer, const SavedModel& model, std::int64_t number) {
  const auto x = static_cast<float>(number);
  if (number % 3 != 2) optimizer.set_gradient(model.w, Eigen::MatrixXf::Constant(7, 9, 0.1F + 0.37F * x));
  optimizer.set_rows(model.rows, std::vector{number % 70, Index{69}},
                     Table(Table::Constant(2, 3, 0.3F - 0.11F * x)));
  return optimizer.apply_gradients({.weight = 1.0 + static_cast<double>(number % 4)});
}

template <class Trainer>
void train(Trainer& trainer, const SavedModel& model, std::int64_t first, std::int64_t last) {
  auto replica = trainer.join();
  for (std::int64_t number = first; number < last; ++number) contribute(replica, model, number);
}

}  // namespace

TEST_CASE("snapshot: saving and loading goes on as if training had never stopped", "[sync][snapshot]") {
  const auto check = [](const auto& recipe) {
    const SyncOptions options{.replicas_to_aggregate = 2, .total_num_replicas = 1};
    for (const std::int64_t stop : {0, 2, 4, 10}) {
      SavedModel whole, first, second;
      SyncReplicas never{recipe, whole.variables, options}, before{recipe, first.variables, options},
          after{recipe, second.variables, options};
      train(never, whole, 0, stop);
      never.start_over();
      train(never, whole, stop, stop + 12);
      train(before, first, 0, stop);
      after.restore(before.snapshot());
      CHECK(after.global_step() == before.global_step());
      train(after, second, stop, stop + 12);
      CHECK(second.bits() == whole.bits());
      CHECK(after.global_step() == never.global_step());
      for (const std::string& slot : after.slot_names())
        if (slot != "grad_accum") CHECK(after.slot(slot, second.rows) == never.slot(slot, whole.rows));
    }
  };
  check(Adam{});
  check(MovingAverage{Momentum{}, 0.9, true});
  check(Lamb{});
  check(GradientAggregation<Adam>{Adam{}, {.grad_steps = 3}});
}

TEST_CASE("snapshot: what one trainer saved any other with the same variables and rule restores",
          "[sync][snapshot][thread]") {
  const Watchdog watchdog;
  SavedModel a, b, c;
  SyncReplicas of_three{Adam{}, a.variables, {.replicas_to_aggregate = 3}};
  of_three.run([&](auto& replica) {
    for (int t = 0; t < 4; ++t) contribute(replica, a, replica.index());
  });
  Local local{Adam{}, b.variables};
  local.restore(of_three.snapshot());
  CHECK(b.bits() == a.bits());
  CHECK(local.global_step() == 4);
  CHECK(local.slot("v", b.w) == of_three.slot("v", a.w));
  contribute(local, b, 1);
  SyncReplicas of_two{Adam{}, c.variables, {.replicas_to_aggregate = 2}};
  of_two.restore(local.snapshot());
  CHECK(c.bits() == b.bits());
  of_two.run([&](auto& replica) { contribute(replica, c, 5); });
  CHECK(of_two.global_step() == 6);
}

TEST_CASE("snapshot: shapes are row-major extents and values have no padding", "[sync][snapshot]") {
  SavedModel model;
  SyncReplicas trainer{Momentum{}, model.variables, {.replicas_to_aggregate = 1}};
  train(trainer, model, 0, 1);
  const auto snapshot = trainer.snapshot();
  REQUIRE(snapshot.arrays.size() == 4);
  CHECK(snapshot.arrays[0].variable == "w");
  CHECK(snapshot.arrays[0].slot.empty());
  CHECK(snapshot.arrays[1].slot == "momentum");
  CHECK(snapshot.arrays[0].shape == std::vector<Index>{7, 9});
  CHECK(snapshot.arrays[0].values.size() == 63);
  CHECK(snapshot.arrays[2].values.size() == 210);
  CHECK(snapshot.window.empty());
  CHECK(snapshot.counters.window.updates == 1);
}

TEST_CASE("snapshot: a matrix keeps its elements in a trainer with the other order in memory",
          "[sync][snapshot]") {
  const auto element = [](Index i, Index j) { return static_cast<float>(10 * i + j); };
  Variables<float> columns, rows;
  const auto c = columns.add("w", Eigen::MatrixXf::NullaryExpr(3, 4, element));
  const auto r = rows.add("w", Table::Zero(3, 4));
  REQUIRE(columns.infos()[0].column_major);
  REQUIRE_FALSE(rows.infos()[0].column_major);
  const GradientAggregation recipe{Momentum{.learning_rate = 0.5}, {.grad_steps = 2}};
  Local of_columns{recipe, columns}, of_rows{recipe, rows};
  const auto step = [&](auto& optimizer, const auto& handle, float scale) {
    optimizer.set_gradient(handle, scale * Eigen::MatrixXf::NullaryExpr(3, 4, element));
    optimizer.apply_gradients();
  };
  for (const float scale : {1.0F, 3.0F, 5.0F}) step(of_columns, c, scale);  // the last one in an open window
  of_rows.restore(of_columns.snapshot());
  CHECK(of_rows.value(r) == of_columns.value(c));
  CHECK(of_rows.slot("momentum", r) == of_columns.slot("momentum", c));
  CHECK(of_rows.value(r)(1, 3) == 13 - 0.5F * 2 * 13);
  step(of_rows, r, 7);
  step(of_columns, c, 7);
  CHECK(of_rows.value(r) == of_columns.value(c));
  step(of_rows, r, -1);
  of_columns.restore(of_rows.snapshot());
  step(of_rows, r, -2);
  step(of_columns, c, -2);
  CHECK(of_rows.value(r) == of_columns.value(c));
}

TEST_CASE("snapshot: reordering goes through the elements of any rank", "[sync][snapshot]") {
  const std::vector<Index> shape{2, 3, 4};
  std::vector<int> by_rows(24), by_columns(24), back(24);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k) {
        by_rows[at((i * 3 + j) * 4 + k)] = 100 * i + 10 * j + k;
        by_columns[at(i + 2 * (j + 3 * k))] = 100 * i + 10 * j + k;
      }
  detail::reorder<int>(shape, by_columns.data(), false, back.data());
  CHECK(back == by_rows);
  detail::reorder<int>(shape, by_rows.data(), true, back.data());
  CHECK(back == by_columns);
}

TEST_CASE("snapshot: it counts the restores of its trainer", "[sync][snapshot]") {
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 1}};
  CHECK(trainer.snapshot().generation == 0);
  trainer.restore(trainer.snapshot());
  CHECK(trainer.snapshot().generation == 1);
}

TEST_CASE("snapshot: copies taken during training are whole", "[sync][snapshot][thread]") {
  const Watchdog watchdog;
  for (const bool hooked : {false, true}) {
    Variables<double> variables;
    const auto w = variables.add("w", Eigen::VectorXd::Zero(20000));
    SyncOptions options{.replicas_to_aggregate = 2};
    if (hooked) options.hooks.after_update = [](const UpdateInfo&) {};
    SyncReplicas trainer{MovingAverage{Sgd{1.0}, 0}, variables, options};
    std::atomic<bool> done{false};
    std::vector<std::string> troubles;
    std::int64_t last = 0, taken = 0;
    const auto thrown = run_replicas(3, [&](int i) {
      if (i < 2) {
        auto replica = trainer.join(i);
        while (replica.global_step() < 100) step(replica, w, 1);
        done = true;
        return;
      }
      while (!done || taken == 0) {
        const auto snapshot = trainer.snapshot();
        ++taken;
        const auto updates = snapshot.counters.window.updates;
        if (updates < last) troubles.push_back("steps go back");
        last = updates;
        for (const auto& array : snapshot.arrays)
          for (const double value : array.values)
            if (value != -static_cast<double>(updates)) {
              troubles.push_back("torn " + array.slot);
              break;
            }
      }
    });
    for (const auto& error : thrown) CHECK(message_of(error) == "");
    CHECK(troubles.empty());
    CHECK(trainer.global_step() == 100);
  }
}

TEST_CASE("snapshot: what was computed before a restore is refused by its generation",
          "[sync][snapshot][thread]") {
  const Watchdog watchdog;
  Net<> net;
  SyncReplicas trainer{Sgd{1.0}, net.variables, {.replicas_to_aggregate = 2}};
  const auto start = trainer.snapshot();
  auto first = trainer.join(0), second = trainer.join(1);
  StepResult of_waiter;
  std::jthread waiter([&] { of_waiter = step(first, net.w, 100); });
  wait_until([&] { return trainer.stats(0).accepted == 1; });
  trainer.restore(start);  // the open round is given up
  waiter.join();
  CHECK(of_waiter.status == Status::old_generation);
  CHECK(step(second, net.w, 100).status == Status::old_generation);
  CHECK(net.value() == 0);
  CHECK(trainer.stats(1).stale == 1);
  std::jthread again([&] { step(first, net.w, 1); });
  CHECK(step(second, net.w, 3).contributions == 2);
  again.join();
  CHECK(net.value() == -2);
}

TEST_CASE("snapshot: a misfit is refused and changes nothing", "[sync][snapshot]") {
  const auto attempt = [](auto&& damage, const char* text) {
    SavedModel model;
    SyncReplicas trainer{Momentum{}, model.variables, {.replicas_to_aggregate = 1}};
    train(trainer, model, 0, 2);
    auto snapshot = trainer.snapshot();
    for (auto& array : snapshot.arrays)
      for (float& value : array.values) value = 77;
    damage(snapshot);
    const auto before = model.bits();
    CHECK_THROWS_AS(trainer.restore(snapshot), LayoutMismatch);
    CHECK_THROWS_WITH(trainer.restore(snapshot), ContainsSubstring(text));
    CHECK(model.bits() == before);
    CHECK(trainer.global_step() == 2);
    trainer.start_over();
    train(trainer, model, 2, 3);  // and it still trains
    CHECK(trainer.global_step() == 3);
  };
  attempt([](auto& s) { s.arrays[2].variable = "columns"; }, "'rows'");
  attempt([](auto& s) { s.arrays[1].slot = "m"; }, "momentum");
  attempt([](auto& s) { s.arrays[3].shape = {3, 70}; }, "(3, 70)");
  attempt([](auto& s) { s.arrays[3].values.pop_back(); }, "209");
  attempt([](auto& s) { s.counters.window.pending = 2; }, "2 micro-batches");
}

TEST_CASE("snapshot: one of another rule is refused, and so is one with more in it", "[sync][snapshot]") {
  const auto taken_with = [](const auto& rule) {
    Net<> net;
    SyncReplicas trainer{rule, net.variables, {.replicas_to_aggregate = 1}};
    return trainer.snapshot();
  };
  const auto refused = [](const auto& rule, const Snapshot<double>& snapshot) {
    Net<> net;
    SyncReplicas trainer{rule, net.variables, {.replicas_to_aggregate = 1}};
    return message_of(thrown_by([&] { trainer.restore(snapshot); }));
  };
  CHECK_THAT(refused(AdamW{}, taken_with(Adam{})),
             ContainsSubstring("rule 'adam'") && ContainsSubstring("'adamw'"));
  CHECK_THAT(refused(Lamb{}, taken_with(AdamW{})), ContainsSubstring("rule 'adamw'"));
  CHECK_THAT(refused(Sgd{}, taken_with(Momentum{})), ContainsSubstring("rule 'momentum'"));
  CHECK_THAT(refused(MovingAverage<Sgd>{Sgd{}}, taken_with(Sgd{})), ContainsSubstring("average"));
  CHECK_THAT(refused(Sgd{}, taken_with(MovingAverage<Sgd>{Sgd{}})),
             ContainsSubstring("has 2 variables and slots"));
  CHECK(refused(MovingAverage<Adam>{Adam{}}, taken_with(MovingAverage<Adam>{Adam{}})) == "");
  auto nameless = taken_with(Adam{});
  nameless.rule.clear();  // as of a rule without a name
  CHECK(refused(AdamW{}, nameless) == "");
}

TEST_CASE("snapshot: its arrays may stand in any order", "[sync][snapshot]") {
  SavedModel model;
  Local local{Adam{}, model.variables};
  contribute(local, model, 0);
  Snapshot<float> good = local.snapshot();
  Snapshot<float> turned = good;
  std::reverse(turned.arrays.begin(), turned.arrays.end());
  contribute(local, model, 1);
  REQUIRE(local.snapshot().arrays[0].values != good.arrays[0].values);
  local.restore(turned);
  const Snapshot<float> restored = local.snapshot();
  for (std::size_t i = 0; i < good.arrays.size(); ++i)
    CHECK(restored.arrays[i].values == good.arrays[i].values);
}

TEST_CASE("snapshot: an open window that does not fit is refused", "[sync][snapshot]") {
  SavedModel model;
  Local local{GradientAggregation<Sgd>{Sgd{}, {.grad_steps = 4}}, model.variables};
  contribute(local, model, 0);
  contribute(local, model, 1);
  const auto good = local.snapshot();
  REQUIRE(good.window.size() == 2);
  CHECK(good.window[1].rows == std::vector<Index>{0, 1, 69});
  CHECK(good.window[1].values.size() == 9);
  auto bad = good;
  bad.window[1].rows[2] = 70;
  CHECK_THROWS_AS(local.restore(bad), LayoutMismatch);
  bad = good;
  bad.window[1].presence = Presence::absent;
  CHECK_THROWS_AS(local.restore(bad), LayoutMismatch);
  bad = good;
  bad.window[0].values.pop_back();
  CHECK_THROWS_AS(local.restore(bad), LayoutMismatch);
  bad = good;
  bad.window[0].presence = Presence::rows;  // of a matrix whose rows are not contiguous
  bad.window[0].rows = {0, 1, 2, 3, 4, 5, 6};
  CHECK_THROWS_AS(local.restore(bad), LayoutMismatch);
  CHECK(local.pending() == 2);
  CHECK_NOTHROW(local.restore(good));
}

TEST_CASE("snapshot: counters that no training can have are refused", "[sync][snapshot]") {
  Net<> net;
  Local local{GradientAggregation<Adam>{Adam{}, {.grad_steps = 4}}, net.variables};
  step(local, net.w, 1);
  const Snapshot<double> good = local.snapshot();
  const auto refused = [&](auto&& damage) {
    Snapshot<double> bad = good;
    damage(bad.counters);
    bad.arrays[0].values[0] = 77;
    const std::exception_ptr thrown = thrown_by([&] { local.restore(bad); });
    CHECK(caught<InvalidArgument>(thrown));
    CHECK(net.value() == 0);
    return message_of(thrown);
  };
  CHECK(refused([](auto& c) { c.window.global_step = -7; }) ==
        "restore: the snapshot has global_step -7, which is not from 0 to 4611686018427387904");
  CHECK_THAT(refused([](auto& c) { c.window.updates = -1; }), ContainsSubstring("updates -1"));
  CHECK_THAT(refused([](auto& c) { c.window.counter = -1; }), ContainsSubstring("counter -1"));
  CHECK_THAT(refused([](auto& c) { c.window.pending = -1; }), ContainsSubstring("pending -1"));
  CHECK_THAT(refused([](auto& c) { c.window.updates = std::numeric_limits<Index>::max(); }),
             ContainsSubstring("updates 9223372036854775807"));
  for (const double weight : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK_THAT(refused([&](auto& c) { c.window_unit = weight; }), ContainsSubstring("window_unit "));
    CHECK_THAT(refused([&](auto& c) { c.window_total = weight; }), ContainsSubstring("window_total "));
  }
  CHECK_THAT(refused([](auto& c) { c.examples = -1; }), ContainsSubstring("examples -1"));
  CHECK(local.pending() == 1);
  CHECK_NOTHROW(local.restore(good));
}
