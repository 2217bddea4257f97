// SPDX-License-Identifier: MIT
// explain_rule says what a near miss lacks, one section per requirement; and the concept itself names its
// failing part.
#include <lockstep/optimizers/explain.hpp>
#include <lockstep/optimizers/moving_average.hpp>

#include <array>
#include <memory>
#include <string>

using namespace lockstep;

struct Step {
  double rate;
};

// expect-error(SECTION_copyable): \[lockstep\.rule\.copyable\].*#update-rule
// expect-error(SECTION_slots): \[lockstep\.rule\.slots\].*#update-rule
// expect-error(SECTION_prepare): \[lockstep\.rule\.prepare\].*#update-rule
// expect-error(SECTION_step): \[lockstep\.rule\.step\].*#update-rule
// expect-error(SECTION_slot_count_low): \[lockstep\.rule\.slot_count\].*#update-rule
// expect-error(SECTION_slot_count_high): \[lockstep\.rule\.slot_count\].*#update-rule
// expect-error(SECTION_slot_count_whole): \[lockstep\.rule\.slot_count\].*#update-rule
// expect-error(SECTION_update): \[lockstep\.rule\.update\].*#update-rule
// expect-error(SECTION_other_step): \[lockstep\.rule\.update\].*#update-rule
// expect-error(SECTION_const): \[lockstep\.rule\.const\].*#update-rule
// expect-error(SECTION_width): \[lockstep\.rule\.width\].*#update-rule
// expect-error(SECTION_void): \[lockstep\.rule\.void\].*#update-rule
// expect-error(SECTION_void_whole): \[lockstep\.rule\.void\].*#update-rule
// expect-error(SECTION_average): \[lockstep\.rule\.average\].*#update-rule
// expect-error(SECTION_concept): DeclaresSlots

#if defined(SECTION_copyable)

struct Rule {
  static constexpr std::array slots{Slot{"a"}};
  std::unique_ptr<double> rate;
  void update(const StepInfo&, auto& w, auto g, auto&) const { w -= g; }
};
template struct lockstep::explain_rule<Rule>;

#elif defined(SECTION_slots)

struct Rule {
  Step prepare(const StepInfo&) const { return {1}; }
  void update(const Step& step, auto& w, auto g) const { w -= step.rate * g; }
};
template struct lockstep::explain_rule<Rule>;

#elif defined(SECTION_prepare)

struct Rule {
  static constexpr std::array slots{Slot{"a"}};
  Step prepare(const StepInfo&) { return {1}; }
  void update(const Step& step, auto& w, auto g, auto&) const { w -= step.rate * g; }
};
template struct lockstep::explain_rule<Rule>;

#elif defined(SECTION_step)

struct Rule {
  static constexpr std::array slots{Slot{"a"}};
  std::string prepare(const StepInfo&) const { return "1"; }
  void update(const std::string&, auto& w, auto g, auto&) const { w -= g; }
};
template struct lockstep::explain_rule<Rule>;

#elif defined(SECTION_slot_count_low)

struct Rule {
  static constexpr std::array slots{Slot{"a"}};
  Step prepare(const StepInfo&) const { return {1}; }
  void update(const Step& step, auto& w, auto g) const { w -= step.rate * g; }
};
template struct lockstep::explain_rule<Rule>;

#elif defined(SECTION_slot_count_high)

struct Rule {
  static constexpr std::array slots{Slot{"a"}};
  Step prepare(const StepInfo&) const { return {1}; }
  void update(const Step& step, auto& w, auto g, auto&, auto&) const { w -= step.rate * g; }
};
template struct lockstep::explain_rule<Rule>;

#elif defined(SECTION_slot_count_whole)

struct Rule {
  static constexpr std::array slots{Slot{"a"}};
  void update_variable(const StepInfo&, Flat<float> w, ConstFlat<float> g) const { w -= g; }
};
template struct lockstep::explain_rule<Rule>;

#elif defined(SECTION_update)

struct Rule {
  static constexpr std::array slots{Slot{"a"}};
  void apply(const StepInfo&, auto& w, auto g, auto&) const { w -= g; }
};
template struct lockstep::explain_rule<Rule>;

#elif defined(SECTION_other_step)

struct Rule {
  static constexpr std::array slots{Slot{"a"}};
  double prepare(const StepInfo&) const { return 1; }
  void update(const Step& step, auto& w, auto g, auto&) const { w -= step.rate * g; }
};
template struct lockstep::explain_rule<Rule>;

#elif defined(SECTION_const)

struct Rule {
  static constexpr std::array slots{Slot{"a"}};
  double calls = 0;
  void update(const StepInfo&, auto& w, auto g, auto&) {
    calls += 1;
    w -= g;
  }
};
template struct lockstep::explain_rule<Rule>;

#elif defined(SECTION_width)

struct Rule {
  static constexpr std::array slots{Slot{"a"}};
  void update(const StepInfo&, Pack<float>& w, Pack<float> g, Pack<float>&) const { w -= g; }
};
template struct lockstep::explain_rule<Rule>;

#elif defined(SECTION_void)

struct Rule {
  static constexpr std::array slots{Slot{"a"}};
  bool update(const StepInfo&, auto& w, auto g, auto&) const {
    w -= g;
    return true;
  }
};
template struct lockstep::explain_rule<Rule>;

#elif defined(SECTION_void_whole)

struct Rule {
  static constexpr std::array slots{Slot{"a"}};
  int update_variable(const StepInfo&, Flat<float>, ConstFlat<float>, Flat<float>) const { return 0; }
};
template struct lockstep::explain_rule<Rule>;

#elif defined(SECTION_average)

struct Rule {
  static constexpr std::array slots{Slot{"average"}};
  void update(const StepInfo&, auto& w, auto g, auto&) const { w -= g; }
};
constexpr auto count = MovingAverage<Rule>::slots.size();

#elif defined(SECTION_concept)

struct Rule {
  void update(const StepInfo&, auto& w, auto g) const { w -= g; }
};
template <UpdateRule R>
void use(const R&) {}
void call() { use(Rule{}); }

#else

struct Rule {
  static constexpr std::array slots{Slot{"a"}};
  Step prepare(const StepInfo&) const { return {1}; }
  void update(const Step& step, auto& w, auto g, auto&) const { w -= step.rate * g; }
};
template struct lockstep::explain_rule<Rule>;
template struct lockstep::explain_rule<MovingAverage<Rule>>;

struct Whole {
  static constexpr std::array slots{Slot{"a"}};
  void update_variable(const StepInfo&, Flat<float> w, ConstFlat<float> g, Flat<float>) const { w -= g; }
};
template struct lockstep::explain_rule<Whole>;

#endif
