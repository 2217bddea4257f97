// SPDX-License-Identifier: MIT
#include "drive.hpp"
#include <lockstep/optimizers/momentum.hpp>

#include <limits>

using namespace lockstep;
using namespace lockstep::test;

TEMPLATE_TEST_CASE("Momentum: several updates follow the formula", "[optimizers]", float, double) {
  check_rule<TestType>(Momentum{.learning_rate = 0.1, .momentum = 0.9},
                       [](double& w, double g, std::vector<double>& slots, int) {
                         slots[0] = 0.9 * slots[0] + g;
                         w = w - 0.1 * slots[0];
                       });
}

TEMPLATE_TEST_CASE("Momentum: Nesterov adds the gradient to a look ahead", "[optimizers]", float, double) {
  check_rule<TestType>(Momentum{.learning_rate = 0.1, .momentum = 0.7, .nesterov = true},
                       [](double& w, double g, std::vector<double>& slots, int) {
                         slots[0] = 0.7 * slots[0] + g;
                         w = w - 0.1 * g - 0.1 * 0.7 * slots[0];
                       });
}

TEST_CASE("Momentum: conformance O02 and O03", "[optimizers][conformance]") {
  for (const bool nesterov : {false, true}) {
    const Momentum rule{.learning_rate = 0.5, .momentum = 0.5, .nesterov = nesterov};
    Model<double> model = model_of(rule, std::vector{1.0});
    model = update_one(rule, model, 2, 0);
    model = update_one(rule, model, 1, 1);
    CHECK(model.w[0] == (nesterov ? -1.5 : -1.0));
  }
}

TEST_CASE("Momentum: momentum 0 is plain descent", "[optimizers]") {
  const Momentum rule{.learning_rate = 0.5, .momentum = 0};
  Model<double> model = model_of(rule, std::vector{1.0});
  model = update_one(rule, model, 2, 0);
  model = update_one(rule, model, 1, 1);
  CHECK(model.w[0] == -0.5);
}

TEST_CASE("Momentum: validate names option, range and value", "[optimizers]") {
  CHECK_NOTHROW(Momentum{}.validate());
  CHECK_NOTHROW(Momentum{.momentum = 0}.validate());
  check_invalid(Momentum{.momentum = 1}, "Momentum: momentum must be in [0, 1), got 1");
  check_invalid(Momentum{.momentum = -0.5}, "got -0.5");
  check_invalid(Momentum{.momentum = std::numeric_limits<double>::quiet_NaN()}, "got nan");
}
