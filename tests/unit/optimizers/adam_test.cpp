// SPDX-License-Identifier: MIT
#include "drive.hpp"
#include <lockstep/optimizers/adam.hpp>

#include <limits>

using namespace lockstep;
using namespace lockstep::test;

TEMPLATE_TEST_CASE("Adam: several updates follow the formula", "[optimizers]", float, double) {
  check_rule<TestType>(Adam{.learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3},
                       [](double& w, double g, std::vector<double>& slots, int t) {
                         double rate = 0.1 * std::sqrt(1 - std::pow(0.95, t)) / (1 - std::pow(0.8, t));
                         slots[0] = 0.8 * slots[0] + (1 - 0.8) * g;
                         slots[1] = 0.95 * slots[1] + (1 - 0.95) * g * g;
                         w = w - rate * slots[0] / (std::sqrt(slots[1]) + 1e-3);
                       });
}

TEST_CASE("Adam: conformance O05, two updates", "[optimizers][conformance]") {
  const Adam rule{.learning_rate = 0.1, .epsilon = 1e-8};
  Model<double> model = model_of(rule, std::vector{1.0});
  model = update_one(rule, model, 2, 0);
  CHECK(model.w[0] == Approx(0.900000015811).epsilon(1e-11));
  model = update_one(rule, model, 0.5, 1);
  CHECK(model.w[0] == Approx(0.816940275191).epsilon(1e-11));
}

TEST_CASE("Adam: conformance O06, epsilon outside the root and not corrected", "[optimizers][conformance]") {
  const Adam rule{.learning_rate = 0.1, .epsilon = 0.5};
  CHECK(update_one(rule, model_of(rule, std::vector{1.0}), 2, 0).w[0] ==
        Approx(0.988771229024).epsilon(1e-11));
}

TEST_CASE("Adam: all rows move unless lazy_rows", "[optimizers]") {
  CHECK(updates_all_rows(Adam{}));
  CHECK_FALSE(updates_all_rows(Adam{.lazy_rows = true}));
}

TEST_CASE("Adam: validate names option, range and value", "[optimizers]") {
  CHECK_NOTHROW(Adam{}.validate());
  CHECK_NOTHROW(Adam{.beta1 = 0, .epsilon = 0}.validate());
  check_invalid(Adam{.beta1 = 1}, "Adam: beta1 must be in [0, 1), got 1");
  check_invalid(Adam{.beta2 = -0.1}, "Adam: beta2 must be in [0, 1), got -0.1");
  check_invalid(Adam{.epsilon = -1e-8}, "Adam: epsilon must be finite and at least 0, got -1e-08");
}
