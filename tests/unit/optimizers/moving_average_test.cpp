// SPDX-License-Identifier: MIT
#include "drive.hpp"
#include <lockstep/optimizers/adagrad.hpp>
#include <lockstep/optimizers/adam.hpp>
#include <lockstep/optimizers/lamb.hpp>
#include <lockstep/optimizers/moving_average.hpp>
#include <lockstep/optimizers/sgd.hpp>

#include <limits>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Moves the average of a variable that has the value w and no gradient.
template <class R>
double average_after(const MovingAverage<R>& rule, double w, double average, std::int64_t step) {
  const Pack<double> variable(w);
  Pack<double> shadow(average);
  rule.update_absent(rule.prepare({.step = step, .schedule = step}), variable, shadow);
  return shadow.packet();
}

}  // namespace

TEMPLATE_TEST_CASE("MovingAverage: runs the inner rule, then moves the average", "[optimizers]", float,
                   double) {
  for (const bool num_updates : {false, true})
    check_rule<TestType>(
        MovingAverage{Adam{.learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3}, 0.9,
                      num_updates},
        [num_updates](double& w, double g, std::vector<double>& slots, int t) {
          double rate = 0.1 * std::sqrt(1 - std::pow(0.95, t)) / (1 - std::pow(0.8, t));
          slots[0] = 0.8 * slots[0] + (1 - 0.8) * g;
          slots[1] = 0.95 * slots[1] + (1 - 0.95) * g * g;
          w = w - rate * slots[0] / (std::sqrt(slots[1]) + 1e-3);
          const double d = num_updates ? std::min(0.9, (1.0 + t) / (10.0 + t)) : 0.9;
          slots[2] = d * slots[2] + (1 - d) * w;
        });
}

TEST_CASE("MovingAverage: the inner rule gives the same bits as without it", "[optimizers]") {
  const Adam inner{.learning_rate = 0.1};
  Model<float> plain = model_of(inner, some_weights<float>());
  Model<float> averaged = model_of(MovingAverage{inner}, some_weights<float>());
  for (int t = 0; t < k_steps; ++t) {
    const StepInfo info{.step = t, .schedule = t};
    update<Register<float>>(inner, info, plain, some_gradient<float>(t));
    update<Register<float>>(MovingAverage{inner}, info, averaged, some_gradient<float>(t));
  }
  CHECK(same_bits(plain.w, averaged.w));
  CHECK(same_bits(plain.slots[0], averaged.slots[0]));
  CHECK(same_bits(plain.slots[1], averaged.slots[1]));
}

TEST_CASE("MovingAverage: adds one slot behind those of the inner rule", "[optimizers]") {
  using Averaged = MovingAverage<Adagrad>;
  CHECK(Averaged::slots.size() == 2);
  CHECK(Averaged::slots[0].name == "accumulator");
  CHECK(Averaged::slots[1].name == "average");
  CHECK(Averaged::slots[1].starts_as_copy);
  CHECK(slot_initial_value(Averaged{.rule = {.initial_accumulator_value = 0.25}}, 0) == 0.25);
}

TEST_CASE("MovingAverage: conformance M01, the average starts at the variable's initial value",
          "[optimizers][conformance]") {
  const MovingAverage rule{Sgd{}, 0.75};
  CHECK(average_after(rule, 2, 4, 0) == 3.5);
  CHECK(average_after(rule, 0, 3.5, 1) == 2.625);
}

TEST_CASE("MovingAverage: conformance M02, the number of updates caps the decay",
          "[optimizers][conformance]") {
  const MovingAverage rule{Sgd{}, 0.75, true};
  const double first = average_after(rule, 2, 4, 0);
  CHECK(first == Approx(2.363636363636).epsilon(1e-11));
  CHECK(average_after(rule, 2, first, 99) == Approx(2.272727272727).epsilon(1e-11));
}

TEST_CASE("MovingAverage: conformance R14 and R15, the average sees the updated variable",
          "[optimizers][conformance]") {
  const MovingAverage plain{Sgd{.learning_rate = 1}, 0.75};
  Model<double> model = model_of(plain, std::vector{4.0});
  model = update_one(plain, model, 2, 0);
  CHECK(model.w[0] == 2);
  CHECK(model.slots[0][0] == 3.5);
  model = update_one(plain, model, 2, 1);
  CHECK(model.w[0] == 0);
  CHECK(model.slots[0][0] == 2.625);

  const MovingAverage counted{Sgd{.learning_rate = 1}, 0.75, true};
  model = update_one(counted, model_of(counted, std::vector{4.0}), 2, 0);
  CHECK(model.slots[0][0] == Approx(2.363636363636).epsilon(1e-11));
  model = update_one(counted, model, 1, 1);
  CHECK(model.slots[0][0] == Approx(1.340909090909).epsilon(1e-11));
}

TEST_CASE("MovingAverage: update_absent moves only the average", "[optimizers]") {
  const MovingAverage rule{Adam{}, 0.75};
  const Register<float> w(2.0F);
  Register<float> m(5.0F), v(7.0F), average(4.0F);
  rule.update_absent(rule.prepare({}), w, m, v, average);
  std::array<float, sizeof(Register<float>) / sizeof(float)> found;
  average.store(found.data());
  CHECK(found[0] == 3.5F);
  CHECK(found.back() == 3.5F);
  m.store(found.data());
  CHECK(found[0] == 5.0F);
  v.store(found.data());
  CHECK(found[0] == 7.0F);
}

TEST_CASE("MovingAverage: not enabled, or with decay 0, it is an exact copy of the variable",
          "[optimizers]") {
  for (const auto& rule : {MovingAverage{Sgd{.learning_rate = 0.1}, 0.75, false, false},
                           MovingAverage{Sgd{.learning_rate = 0.1}, 0.0}}) {
    Model<float> model = model_of(rule, some_weights<float>());
    for (int t = 0; t < k_steps; ++t) {
      update<Register<float>>(rule, {.step = t, .schedule = t}, model, some_gradient<float>(t));
      CHECK(same_bits(model.w, model.slots[0]));
    }
  }
}

TEST_CASE("MovingAverage: decay 1 keeps the initial value", "[optimizers]") {
  const MovingAverage rule{Sgd{.learning_rate = 1}, 1.0};
  const Model<double> model = update_one(rule, model_of(rule, std::vector{4.0}), 2, 0);
  CHECK(model.w[0] == 2);
  CHECK(model.slots[0][0] == 4);
}

TEST_CASE("MovingAverage: forwards whole variables", "[optimizers]") {
  constexpr Index size = 32;
  alignas(k_alignment) std::array<float, size> w{}, g{}, m{}, v{}, average{}, w2{}, m2{}, v2{};
  w[3] = w2[3] = average[3] = 4;
  g[3] = 1;
  const auto flat = [](auto& array) { return Flat<float>(array.data(), size); };
  const ConstFlat<float> gradient(g.data(), size);
  const Lamb inner{.learning_rate = 0.5};
  const MovingAverage rule{inner, 0.75};
  const auto step = rule.prepare({});
  rule.update_variable(step, flat(w), gradient, flat(m), flat(v), flat(average));
  inner.update_variable(inner.prepare({}), flat(w2), gradient, flat(m2), flat(v2));
  CHECK(w == w2);
  CHECK(m == m2);
  CHECK(v == v2);
  const float moved = 4 - 0.25F * (4 - w[3]);
  CHECK(average[3] == moved);
  CHECK(average[0] == 0);

  Flat<float> average_map = flat(average);
  rule.update_absent(step, flat(w), flat(m), flat(v), average_map);
  CHECK(w == w2);
  CHECK(m == m2);
  CHECK(average[3] == moved - 0.25F * (moved - w[3]));
}

TEST_CASE("MovingAverage: validate checks its own option and the inner rule", "[optimizers]") {
  CHECK_NOTHROW(MovingAverage{Adam{}}.validate());
  CHECK_NOTHROW(MovingAverage{Adam{}, 1.0}.validate());
  check_invalid(MovingAverage{Adam{}, 1.5}, "MovingAverage: decay must be in [0, 1], got 1.5");
  check_invalid(MovingAverage{Adam{.beta1 = 3}}, "Adam: beta1 must be in [0, 1), got 3");
}
