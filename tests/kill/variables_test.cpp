// SPDX-License-Identifier: MIT
// A process is killed at each step of what it does with a trainer that has one accumulator per variable. For
// those that stay its gradients have counted, those of all variables, or none has; and variables and slots
// have the bits of a trainer in one process that got the same gradients.
#include "kill/everywhere.hpp"
#include "support/bits.hpp"
#include "support/catch.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include <lockstep/optimizers/moving_average.hpp>
#include <lockstep/optimizers/sgd.hpp>
#include <lockstep/per_variable/variable_replicas.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <Eigen/Core>

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

constexpr Index k_long = 5000;  // more than an item of an update has
constexpr Index k_rows = 6, k_columns = 3;

/// The average is a slot, and Sgd applies repeated rows in turn.
using Rule = MovingAverage<Sgd>;

struct VariableSet {
  Variables<float> variables;
  decltype(variables.add("", Eigen::VectorXf())) w =
      variables.add("w", Eigen::VectorXf::LinSpaced(k_long, 0, 1));
  decltype(variables.add("", Eigen::VectorXf())) table =
      variables.add("table", Eigen::VectorXf::Constant(k_rows* k_columns, 1));
};

VariableOptions options_of(int replicas, Driver driver) {
  return {.replicas_to_aggregate = replicas,
          .sparse = {"table"},
          .init_tokens = 0,
          .deadline = 20s,
          .driver = driver,
          .max_rows = 12};
}

/// A trainer with its variables.
template <class Net>
struct Model : VariableSet {
  VariableReplicas<Rule, Net> trainer;
  explicit Model(const VariableOptions& options, const Net& net = {})
      : trainer({Sgd{0.3}, 0.9}, variables, options, net) {}

  /// Gradient `number` for all variables; it has a row twice, which is an element of `table`.
  template <class Use>
  static auto with_gradient(int number, Use&& use) {
    std::vector<float> dense(k_long);
    for (std::size_t i = 0; i < dense.size(); ++i)
      dense[i] = static_cast<float>(number + 1) * 0.7F + static_cast<float>(i % 13) * 0.11F;
    const std::array<Index, 3> rows{1, 1, number % 4 + 2};
    const std::array<float, 3> values{0.1F * static_cast<float>(number), 0.7F, 1.3F};
    const std::array<NamedGradient<float>, 2> gradients{
        {{"w", TensorView<const float>(dense)},
         {"table", SparseGradient<float>{.indices = rows, .values = {values, {3}}}}}};
    return use(gradients);
  }
  void push(int place, int number) {
    with_gradient(number, [&](const auto& gradients) { return trainer.push(place, gradients); });
  }
  void step(int place, int number) {
    with_gradient(number, [&](const auto& gradients) { return trainer.step(place, gradients, 20s); });
  }
  /// Variables and slots.
  std::vector<float> values() const {
    std::vector<float> all;
    const auto add = [&](const auto& array) {
      all.insert(all.end(), array.data(), array.data() + array.size());
    };
    for (const auto& handle : {w, table}) {
      add(variables.value(handle));
      add(trainer.slot("average", handle));
    }
    return all;
  }
};
using Here = Model<InProcess>;
using There = Model<SharedMemory>;

}  // namespace

TEST_CASE("a replica that is killed in a step of its variables", "[kill][per_variable]") {
  const Watchdog watchdog(300s);
  const SessionFolder folder;
  const VariableOptions options = options_of(2, Driver::cooperative);
  {
    There model(options, net_in(folder));
    Here replay(options);
    const auto attach = [&] { return There(options, net_in(folder)); };
    Index step = 0;

    // What is left: the gradient of place 0 is in, that of the victim perhaps.
    const auto finish = [&] {
      int other = 1;
      if (model.trainer.accumulator_step(0) == step) model.push(1, other = 2);
      CHECK(model.trainer.token(0, 20s) == ++step);
      CHECK(model.trainer.global_step() == step);
      for (const int number : {0, other}) replay.push(number == 0 ? 0 : 1, number);
      CHECK(same_bits(model.values(), replay.values()));
      // The token of the other place is there, or lost with the victim.
      const std::vector<Index> left = model.trainer.tokens();
      CHECK((left.empty() || left == std::vector<Index>{step}));
      for (const Index token : left) CHECK(model.trainer.token(1, 20s) == token);
      model.trainer.init_worker(1);
      CHECK(model.trainer.tokens().empty());
      for (const int place : {0, 1}) CHECK(replay.trainer.token(place) == step);
    };
    kill_everywhere(
        "a step that updates", attach, [](There& victim) { victim.step(1, 1); }, [&] { model.push(0, 0); },
        finish);
    kill_everywhere(
        "attaching to a trainer", [] { return 0; }, [&](int) { (void)attach(); }, [&] { model.push(0, 0); },
        finish);
    kill_everywhere(
        "joining and leaving", attach,
        [](There& victim) {
          auto replica = victim.trainer.join(1);
          (void)replica.global_step();
        },
        [&] { model.push(0, 0); },
        [&] {
          {
            auto replica = model.trainer.join(1);  // in place of the dead one
          }
          finish();
        });

    // The first one dies in the update, the second one where it carries on.
    for (const char* const first : {"update: opened", "undo: marked", "unit: changed", "update: done"})
      kill_everywhere((std::string("carrying on after '") + first + "'").c_str(), [] { return 0; },
                      [&](int) { (void)attach().trainer.global_step(); },
                      [&] {
                        model.push(0, 0);
                        const Shared<FaultLog> log;
                        Process victim([&] {
                          auto subject = attach();
                          arm(*log, first[0] == 'u' && first[1] == 'n' ? 5 : 1, first);
                          subject.step(1, 1);
                          return 0;
                        });
                        CHECK(victim.wait() == 128 + SIGKILL);
                      },
                      finish);
  }
  CHECK(folder.files().empty());
}

TEST_CASE("who is killed in line for a token leaves it to the others", "[kill][per_variable]") {
  const Watchdog watchdog(300s);
  const SessionFolder folder;
  const VariableOptions options = options_of(2, Driver::cooperative);
  {
    There model(options, net_in(folder));
    const Shared<FaultLog> log;
    Process victim([&] {
      There subject(options, net_in(folder));
      arm(*log, 1, "token: in line");
      subject.step(1, 1);
      return 0;
    });
    CHECK(victim.wait() == 128 + SIGKILL);
    model.push(0, 0);
    CHECK(model.trainer.global_step() == 1);  // its gradient counts
    CHECK(model.trainer.tokens() == std::vector<Index>{1, 1});
  }
  CHECK(folder.files().empty());
}

TEST_CASE("a chief that is killed is replaced", "[kill][per_variable]") {
  const Watchdog watchdog(300s);
  const SessionFolder folder;
  const VariableOptions options = options_of(2, Driver::chief);
  {
    There model(options, net_in(folder));
    Here replay(options);
    model.trainer.init_chief(0);
    replay.trainer.init_chief(0);
    auto chief_here = replay.trainer.chief();
    Index step = 0;
    const auto both = [](auto& of, int first) {
      of.push(0, first);
      of.push(1, first + 1);
    };
    kill_everywhere(
        "an update by a chief", [&] { return There(options, net_in(folder)); },
        [](There& victim) { (void)victim.trainer.chief().step(20s); }, [&] { both(model, 0); },
        [&] {
          auto chief = model.trainer.chief();
          int first = 0;
          if (model.trainer.global_step() == step) {
            // What the dead one had taken is lost; what it had not is there.
            model.trainer.init_chief(0);
            if (model.trainer.num_accumulated(0) == 0) both(model, first = 3);
            CHECK(model.trainer.num_accumulated(1) == 2);
            CHECK(chief.step(20s).global_step == step + 1);
          }
          CHECK(model.trainer.global_step() == ++step);
          both(replay, first);
          chief_here.step();
          CHECK(same_bits(model.values(), replay.values()));
          CHECK(model.trainer.tokens() == std::vector<Index>{step, step});
          for (const int place : {0, 1}) {
            CHECK(model.trainer.token(place, 20s) == step);
            CHECK(replay.trainer.token(place) == step);
          }
        });
  }
  CHECK(folder.files().empty());
}

TEST_CASE("who is killed making a trainer leaves it to the next one", "[kill][per_variable]") {
  const Watchdog watchdog(300s);
  const SessionFolder folder;
  const VariableOptions options = options_of(1, Driver::cooperative);
  Here replay(options);
  replay.step(0, 1);
  kill_everywhere(
      "making a trainer", [] { return 0; }, [&](int) { (void)There(options, net_in(folder)); }, [] {},
      [&] {
        There model(options, net_in(folder));
        model.step(0, 1);
        CHECK(same_bits(model.values(), replay.values()));
      });
  CHECK(folder.files().empty());
}
