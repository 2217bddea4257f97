// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include <lockstep/optimizers/adamw.hpp>
#include <lockstep/optimizers/moving_average.hpp>
#include <lockstep/optimizers/per_variable.hpp>
#include <lockstep/optimizers/sgd.hpp>

using namespace lockstep;

namespace {
const VariableInfo kernel{"kernel", 0, 0, 6, {2, 3}};
const VariableInfo bias{"bias", 1, 16, 3, {3}};
}  // namespace

TEST_CASE("PerVariable: adjusts a copy of the rule for each variable", "[optimizers]") {
  const PerVariable groups{AdamW{.weight_decay = 0.5}, [](AdamW& rule, const VariableInfo& variable) {
                             if (variable.rank() < 2) rule.weight_decay = 0;
                           }};
  CHECK(groups.rule_for(kernel).weight_decay == 0.5);
  CHECK(groups.rule_for(bias).weight_decay == 0);
  CHECK(groups.rule.weight_decay == 0.5);
  CHECK(groups.is_trainable(bias));
}

TEST_CASE("PerVariable: without functions every variable has the rule and trains", "[optimizers]") {
  const PerVariable groups{Sgd{.learning_rate = 0.5}};
  CHECK(groups.rule_for(kernel) == Sgd{.learning_rate = 0.5});
  CHECK(groups.is_trainable(kernel));
}

TEST_CASE("PerVariable: trainable freezes variables", "[optimizers]") {
  const PerVariable groups{Sgd{}, nullptr,
                           [](const VariableInfo& variable) { return variable.name != "bias"; }};
  CHECK(groups.is_trainable(kernel));
  CHECK_FALSE(groups.is_trainable(bias));
}

TEST_CASE("PerVariable: reaches into a moving average", "[optimizers]") {
  const PerVariable groups{MovingAverage{Sgd{}, 0.5}, [](MovingAverage<Sgd>& rule, const VariableInfo& v) {
                             rule.enabled = v.rank() > 1;
                           }};
  CHECK(groups.rule_for(kernel).enabled);
  CHECK_FALSE(groups.rule_for(bias).enabled);
}

TEST_CASE("PerVariable: an adjustment to an invalid option is refused", "[optimizers]") {
  const PerVariable groups{AdamW{}, [](AdamW& rule, const VariableInfo&) { rule.beta1 = 2; }};
  CHECK_NOTHROW(groups.validate());
  CHECK_THROWS_AS(groups.rule_for(bias), InvalidArgument);
  CHECK_THROWS_AS(PerVariable{AdamW{.beta2 = 1}}.validate(), InvalidArgument);
}
