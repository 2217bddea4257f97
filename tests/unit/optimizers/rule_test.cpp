// SPDX-License-Identifier: MIT
#include "drive.hpp"
#include <lockstep/optimizers/optimizers.hpp>
#include <lockstep/optimizers/rule.hpp>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// The least a rule can be: no options, no prepare, no validate.
struct Descend {
  static constexpr std::array<Slot, 1> slots{Slot{"seen", 7}};
  void update(const StepInfo& info, auto& w, auto g, auto& seen) const {
    w -= g;
    seen = static_cast<double>(info.step);
  }
};

}  // namespace

TEST_CASE("slot_initial_value: takes the option, then the declaration", "[optimizers]") {
  CHECK(slot_initial_value(Descend{}, 0) == 7);
  CHECK(slot_initial_value(RmsProp{}, 0) == 1);
  CHECK(slot_initial_value(RmsProp{}, 1) == 0);
  CHECK(slot_initial_value(Adagrad{.initial_accumulator_value = 3}, 0) == 3);
}

TEST_CASE("validate_rule: a rule without validate is taken as it is", "[optimizers]") {
  CHECK_NOTHROW(validate_rule(Descend{}));
  CHECK_NOTHROW(validate_rule(Sgd{}));
}

TEST_CASE("prepare_step: a rule without prepare sees the info itself", "[optimizers]") {
  const Model<double> model = update_one(Descend{}, model_of(Descend{}, std::vector{1.0}), 0.25, 12);
  CHECK(model.w[0] == 0.75);
  CHECK(model.slots[0][0] == 12);
}

TEST_CASE("updates_all_rows: is false unless the rule says so", "[optimizers]") {
  CHECK_FALSE(updates_all_rows(Descend{}));
  CHECK_FALSE(updates_all_rows(Sgd{}));
  CHECK_FALSE(updates_all_rows(Momentum{}));
  CHECK_FALSE(updates_all_rows(Adagrad{}));
  CHECK_FALSE(updates_all_rows(RmsProp{}));
  CHECK(updates_all_rows(MovingAverage{Adam{}}));
  CHECK_FALSE(updates_all_rows(MovingAverage{Sgd{}}));
}
