// SPDX-License-Identifier: MIT
#include "drive.hpp"
#include <lockstep/optimizers/sgd.hpp>

using namespace lockstep;
using namespace lockstep::test;

TEMPLATE_TEST_CASE("Sgd: several updates follow w - rate g", "[optimizers]", float, double) {
  check_rule<TestType>(Sgd{.learning_rate = 0.125},
                       [](double& w, double g, std::vector<double>&, int) { w -= 0.125 * g; });
}

TEST_CASE("Sgd: the rate may change with the step", "[optimizers]") {
  const Sgd rule{.learning_rate = [](std::int64_t step) { return step == 0 ? 1.0 : 0.25; }};
  Model<double> model = model_of(rule, std::vector{1.0});
  model = update_one(rule, model, 0.5, 0);
  CHECK(model.w[0] == 0.5);
  model = update_one(rule, model, 1, 1);
  CHECK(model.w[0] == 0.25);
}

TEST_CASE("Sgd: conformance O01, dense", "[optimizers][conformance]") {
  const Sgd rule{.learning_rate = 0.5};
  Model<double> model = model_of(rule, std::vector{1.0, -1.0});
  update<Pack<double>>(rule, {.step = 0}, model, {1, -2});
  update<Pack<double>>(rule, {.step = 1}, model, {1, 0});
  CHECK(model.w == std::vector{0.0, 0.0});
}

TEST_CASE("Sgd: rules are equal if their options are", "[optimizers]") {
  CHECK(Sgd{.learning_rate = 0.5} == Sgd{.learning_rate = 0.5});
  CHECK_FALSE(Sgd{.learning_rate = 0.5} == Sgd{.learning_rate = 0.25});
}
