// SPDX-License-Identifier: MIT
#include "drive.hpp"
#include <lockstep/optimizers/rmsprop.hpp>

#include <limits>

using namespace lockstep;
using namespace lockstep::test;

TEMPLATE_TEST_CASE("RmsProp: several updates follow the formula", "[optimizers]", float, double) {
  check_rule<TestType>(RmsProp{.learning_rate = 0.05, .rho = 0.8, .momentum = 0.6, .epsilon = 1e-3},
                       [](double& w, double g, std::vector<double>& slots, int) {
                         slots[0] = 0.8 * slots[0] + (1 - 0.8) * g * g;
                         slots[1] = 0.6 * slots[1] + 0.05 * g / std::sqrt(slots[0] + 1e-3);
                         w = w - slots[1];
                       });
}

TEST_CASE("RmsProp: the mean square starts at one, so the first step is near rate times gradient",
          "[optimizers]") {
  const RmsProp rule{.learning_rate = 0.5, .rho = 0.75, .epsilon = 0};
  Model<double> model = model_of(rule, std::vector{1.0});
  CHECK(model.slots[0][0] == 1);
  CHECK(model.slots[1][0] == 0);
  model = update_one(rule, model, 1, 0);
  CHECK(model.slots[0][0] == 1);  // 1 + 0.25 * (1 - 1)
  CHECK(model.w[0] == 0.5);
}

TEST_CASE("RmsProp: validate names option, range and value", "[optimizers]") {
  CHECK_NOTHROW(RmsProp{}.validate());
  check_invalid(RmsProp{.rho = 1}, "RmsProp: rho must be in [0, 1), got 1");
  check_invalid(RmsProp{.momentum = 2}, "RmsProp: momentum must be in [0, 1), got 2");
  check_invalid(RmsProp{.epsilon = -1}, "RmsProp: epsilon must be finite and at least 0, got -1");
  check_invalid(RmsProp{.epsilon = std::numeric_limits<double>::infinity()}, "got inf");
}
