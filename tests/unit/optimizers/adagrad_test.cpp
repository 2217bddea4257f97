// SPDX-License-Identifier: MIT
#include "drive.hpp"
#include <lockstep/optimizers/adagrad.hpp>

#include <limits>

using namespace lockstep;
using namespace lockstep::test;

TEMPLATE_TEST_CASE("Adagrad: several updates follow the formula", "[optimizers]", float, double) {
  check_rule<TestType>(Adagrad{.learning_rate = 0.3, .initial_accumulator_value = 0.5},
                       [](double& w, double g, std::vector<double>& slots, int) {
                         slots[0] = slots[0] + g * g;
                         w = w - 0.3 * g / std::sqrt(slots[0]);
                       });
}

TEST_CASE("Adagrad: the accumulator starts at the option", "[optimizers]") {
  CHECK(slot_initial_value(Adagrad{}, 0) == 0.1);
  CHECK(slot_initial_value(Adagrad{.initial_accumulator_value = 0.25}, 0) == 0.25);
}

TEST_CASE("Adagrad: conformance O04", "[optimizers][conformance]") {
  const Adagrad rule{.learning_rate = 1, .initial_accumulator_value = 0.25};
  Model<double> model = model_of(rule, std::vector{1.0});
  model = update_one(rule, model, 1, 0);
  model = update_one(rule, model, 1, 1);
  CHECK(model.w[0] == Approx(-0.561093857667).epsilon(1e-11));
}

TEST_CASE("Adagrad: validate wants a positive start", "[optimizers]") {
  CHECK_NOTHROW(Adagrad{}.validate());
  check_invalid(Adagrad{.initial_accumulator_value = 0},
                "Adagrad: initial_accumulator_value must be finite and greater than 0, got 0");
  check_invalid(Adagrad{.initial_accumulator_value = std::numeric_limits<double>::infinity()}, "got inf");
}
