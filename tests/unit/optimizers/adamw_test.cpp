// SPDX-License-Identifier: MIT
#include "drive.hpp"
#include <lockstep/optimizers/adamw.hpp>

#include <limits>

using namespace lockstep;
using namespace lockstep::test;

TEMPLATE_TEST_CASE("AdamW: several updates follow algorithm 2 of the paper", "[optimizers]", float, double) {
  check_rule<TestType>(
      AdamW{.learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.25},
      [](double& w, double g, std::vector<double>& slots, int t) {
        slots[0] = 0.8 * slots[0] + (1 - 0.8) * g;
        slots[1] = 0.95 * slots[1] + (1 - 0.95) * g * g;
        const double corrected_m = slots[0] / (1 - std::pow(0.8, t));
        const double corrected_v = slots[1] / (1 - std::pow(0.95, t));
        w = w - 0.1 * (corrected_m / (std::sqrt(corrected_v) + 1e-3) + 0.25 * w);
      });
}

TEST_CASE("AdamW: the decay does not pass through the moments", "[optimizers]") {
  const AdamW rule{.learning_rate = 0.5, .weight_decay = 0.5};
  const Model<double> model = update_one(rule, model_of(rule, std::vector{4.0}), 0, 0);
  CHECK(model.w[0] == 3);
  CHECK(model.slots[0][0] == 0);
  CHECK(model.slots[1][0] == 0);
}

TEST_CASE("AdamW: all rows move unless lazy_rows", "[optimizers]") {
  CHECK(updates_all_rows(AdamW{}));
  CHECK_FALSE(updates_all_rows(AdamW{.lazy_rows = true}));
}

TEST_CASE("AdamW: validate names option, range and value", "[optimizers]") {
  CHECK_NOTHROW(AdamW{}.validate());
  check_invalid(AdamW{.beta1 = 1.5}, "AdamW: beta1 must be in [0, 1), got 1.5");
  check_invalid(AdamW{.beta2 = 1}, "AdamW: beta2 must be in [0, 1), got 1");
  check_invalid(AdamW{.epsilon = -1}, "AdamW: epsilon must be finite and at least 0, got -1");
  check_invalid(AdamW{.weight_decay = -0.5}, "AdamW: weight_decay must be finite and at least 0, got -0.5");
}
