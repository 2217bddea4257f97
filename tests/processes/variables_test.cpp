// SPDX-License-Identifier: MIT
/// @file
/// VariableReplicas between processes: the same values as in one process, deaths by each policy, a chief of
/// its own, programs that differ.
#include "processes/scenario.hpp"
#include "support/bits.hpp"
#include <lockstep/optimizers/moving_average.hpp>
#include <lockstep/per_variable/variable_replicas.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

SharedMemory net_of_variables(const SessionFolder& folder, int place = -1) {
  return {.name = "variables", .replica = place, .directory = folder.path(), .patience = 30s};
}

/// A vector, and a table of three rows that are two numbers wide.
struct TwoKinds {
  using Table = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Variables<double> variables;
  decltype(variables.add("", Eigen::VectorXd())) w = variables.add("w", Eigen::VectorXd::Constant(5, 1));
  decltype(variables.add("", Table())) table = variables.add("table", Table::Constant(3, 2, 1));

  std::vector<double> values() const {
    const auto flat = variables.flat();
    return {flat.begin(), flat.end()};
  }
  /// Whole numbers, whose sum does not depend on the order of arrival.
  template <class Replica>
  StepResult step(Replica& replica) const {
    const auto number = static_cast<double>(replica.index() + 1 + 2 * replica.sequence());
    replica.set_gradient(w, Eigen::VectorXd::Constant(5, number));
    replica.set_rows(table, std::vector<int>{0, replica.index() % 3}, Table::Constant(2, 2, number));
    return replica.apply_gradients();
  }
};

VariableOptions options_of(int replicas, Departure departure = Departure::wait) {
  return {.replicas_to_aggregate = replicas,
          .sparse = {"table"},
          .departure = departure,
          .deadline = 20s,
          .max_rows = 12};
}

/// Runs `loop(replica, model, found)` as one replica of the session in the calling process.
template <class Loop>
int run_replica(const SessionFolder& folder, int place, const VariableOptions& options, Found& found,
                Loop&& loop) {
  try {
    TwoKinds model;
    VariableReplicas trainer{MovingAverage<Sgd>{Sgd{0.25}, 0.5}, model.variables, options,
                             net_of_variables(folder, place)};
    trainer.run([&](auto& replica) { loop(replica, model, found); });
    found.global_step = trainer.global_step();
    return 0;
  } catch (const Error& error) {
    found.keep(error);
  }
  return 1;
}

auto until(std::int64_t updates) {
  return [=](auto& replica, const TwoKinds& model, Found& found) {
    while (replica.global_step() < updates && found.last != Status::stopped) {
      found.last = model.step(replica).status;
      ++found.rounds;
    }
  };
}

constexpr std::int64_t k_far = 1'000'000'000;

/// The end of a training, for a test that cannot say beforehand how many updates will be enough.
struct End {
  std::atomic<bool> near{false};
  std::atomic<std::int64_t> step{k_far};
};
/// Trains until `end` is near. Replica 0 says which step is the last one, so that all end with the same: they
/// need each other, so nobody is as far ahead.
auto until(End& end) {
  return [&end](auto& replica, const TwoKinds& model, Found& found) {
    while (replica.global_step() < end.step) {
      if (replica.index() == 0 && end.near && end.step == k_far) end.step = replica.global_step() + 10;
      found.last = model.step(replica).status;
      ++found.rounds;
    }
  };
}

}  // namespace

TEST_CASE("variables: processes train to the values of threads", "[processes][per_variable]") {
  const Watchdog watchdog(120s);
  const SessionFolder folder;
  constexpr int replicas = 3;
  constexpr std::int64_t updates = 40;
  TwoKinds here;
  {
    VariableReplicas trainer{MovingAverage<Sgd>{Sgd{0.25}, 0.5}, here.variables, options_of(replicas)};
    trainer.run([&](auto& replica) {
      while (replica.global_step() < updates) here.step(replica);
    });
  }
  const Shared<FoundByAll<replicas>> found;
  const Shared<std::array<double, 16>> last;
  {
    std::vector<Process> all;
    for (int place = 0; place < replicas; ++place)
      all.emplace_back([&, place] {
        return run_replica(folder, place, options_of(replicas), found->replica[place],
                           [&](auto& replica, const TwoKinds& model, Found& of) {
                             until(updates)(replica, model, of);
                             if (place == 0) std::copy_n(replica.values(), last->size(), last->begin());
                           });
      });
    for (Process& one : all) CHECK(one.wait() == 0);
  }
  for (const Found& of : found->replica) {
    INFO(of.text());
    CHECK(of.global_step == updates);
    CHECK(of.rounds == updates);
  }
  std::vector<double> expected = here.values();
  expected.resize(last->size());
  CHECK(same_bits(std::vector<double>(last->begin(), last->end()), expected));
  CHECK(folder.files().empty());
}

TEST_CASE("variables: what the death of a replica does", "[processes][per_variable]") {
  const Watchdog watchdog(120s);
  const SessionFolder folder;
  const Shared<FoundByAll<3>> found;
  const auto start = [&](int place, int at, const VariableOptions& options, const auto& loop) {
    return Process([&, place, at] { return run_replica(folder, place, options, found->replica[at], loop); });
  };
  const auto kill_one_of_two = [&](const VariableOptions& options) {
    Process stays = start(0, 0, options, until(k_far));
    {
      // It dies while it computes: if it stood in line, its token would let the other one go on alone.
      Process dies([&] {
        return run_replica(folder, 1, options, found->replica[1],
                           [&](auto& replica, const TwoKinds& model, Found& of) {
                             until(4)(replica, model, of);
                             found->gate = 1;
                             ::pause();
                           });
      });
      wait_until([&] { return found->gate == 1 || dies.has_ended(); });
      INFO(found->replica[0].text() << "; " << found->replica[1].text());
      CHECK(found->replica[1].rounds >= 4);
      dies.send(SIGKILL);
      dies.wait();
    }
    return stays.wait();
  };
  SECTION("stop: the other one is told that training has ended") {
    CHECK(kill_one_of_two(options_of(2, Departure::stop)) == 0);
    CHECK(found->replica[0].last == Status::stopped);
  }
  SECTION("fail: the other one gets an error that names it") {
    CHECK(kill_one_of_two(options_of(2, Departure::fail)) == 1);
    CHECK(found->replica[0].blamed == 1);
    CHECK_THAT(found->replica[0].text(), ContainsSubstring("its process has died"));
  }
  SECTION("wait: the deadline names it") {
    VariableOptions options = options_of(2);
    options.deadline = 2s;
    CHECK(kill_one_of_two(options) == 1);
    CHECK(found->replica[0].missing == 1);
    CHECK_THAT(found->replica[0].text(), ContainsSubstring("replica 1 is dead"));
  }
  SECTION("wait: a replacement goes on where it was") {
    const VariableOptions options = options_of(2);
    const Shared<End> end;
    const auto loop = until(*end);
    Process stays = start(0, 0, options, loop);
    for (int life = 0; life < 5; ++life) {
      const int before = found->replica[1].rounds;
      Process dies = start(1, 1, options, loop);
      wait_until([&] { return found->replica[1].rounds > before + 3 || dies.has_ended(); });
      dies.send(SIGKILL);
      dies.wait();
    }
    Process replacement = start(1, 2, options, loop);
    // The one that stays may have the token of one that has died, go on alone, and end before.
    wait_until([&] { return found->replica[2].rounds > 0 || replacement.has_ended(); });
    end->near = true;
    INFO(found->replica[0].text() << found->replica[2].text());
    CHECK(stays.wait() == 0);
    CHECK(replacement.wait() == 0);
    CHECK(found->replica[0].global_step == end->step);
    CHECK(found->replica[2].global_step == end->step);
  }
  CHECK(folder.files().empty());
}

TEST_CASE("variables: a chief may be a process of its own, and die", "[processes][per_variable]") {
  const Watchdog watchdog(120s);
  const SessionFolder folder;
  const Shared<FoundByAll<2>> found;
  VariableOptions options = options_of(2);
  options.driver = Driver::chief;
  const auto trainer_of = [&](TwoKinds& model) {
    return VariableReplicas{MovingAverage<Sgd>{Sgd{0.25}, 0.5}, model.variables, options,
                            net_of_variables(folder)};
  };
  SECTION("the replicas wait for it, and for another one") {
    const Shared<End> end;
    std::vector<Process> replicas;  // before there is a chief
    for (int place = 0; place < 2; ++place)
      replicas.emplace_back(
          [&, place] { return run_replica(folder, place, options, found->replica[place], until(*end)); });
    for (int life = 0; life < 4; ++life) {
      Process chief([&] {
        TwoKinds model;
        auto trainer = trainer_of(model);
        auto mine = trainer.chief();
        // What the last one has taken is lost, so all may push once more, as in TensorFlow.
        trainer.init_chief(life == 0 ? 0 : -1);
        mine.run({});
        return 0;
      });
      const int before = found->replica[0].rounds;
      if (life < 3)
        wait_until([&] { return found->replica[0].rounds > before + 5 || replicas[0].has_ended(); });
      if (life < 3) chief.send(SIGKILL);
      if (life == 3) {
        end->near = true;
        for (Process& replica : replicas) CHECK(replica.wait() == 0);
      }
      chief.send(SIGKILL);
      chief.wait();
    }
    for (const Found& of : found->replica) {
      INFO(of.text());
      CHECK(of.global_step >= end->step);
    }
    // Nobody was there to remove the file when the last chief was killed.
    TwoKinds model;
    (void)trainer_of(model);
  }
  SECTION("a deadline says that there is none") {
    options.deadline = 300ms;
    TwoKinds model;
    auto trainer = trainer_of(model);
    CHECK_THROWS_WITH(trainer.join(), ContainsSubstring("a chief that calls init_chief()"));
    trainer.init_chief(0);
    auto replica = trainer.join();
    CHECK_THROWS_WITH(model.step(replica), ContainsSubstring("there is no chief"));
  }
  SECTION("a stop ends the wait for one") {
    TwoKinds model;
    auto trainer = trainer_of(model);
    std::stop_source stop;
    std::jthread later([&] {
      std::this_thread::sleep_for(20ms);
      stop.request_stop();
    });
    CHECK_THROWS_AS(trainer.join(stop.get_token()), Cancelled);
    CHECK_THROWS_AS(trainer.run([](auto&) {}, stop.get_token()), Cancelled);
  }
  CHECK(folder.files().empty());
}

TEST_CASE("variables: who is killed in while_still keeps them still no longer", "[processes][per_variable]") {
  const Watchdog watchdog(120s);
  const SessionFolder folder;
  const Shared<FoundByAll<1>> found;
  const auto net = net_of_variables(folder);
  {
    TwoKinds model;
    VariableReplicas trainer{Sgd{0.25}, model.variables, options_of(1), net};
    auto replica = trainer.join();
    Process holder([&] {
      TwoKinds other;
      VariableReplicas{Sgd{0.25}, other.variables, options_of(1), net}.while_still([&] {
        found->gate = 1;
        ::pause();
      });
      return 0;
    });
    wait_until([&] { return found->gate == 1; });
    replica.set_gradient(model.w, Eigen::VectorXd::Constant(5, 4));
    replica.set_rows(model.table, std::vector<int>{1}, TwoKinds::Table::Constant(1, 2, 4));
    CHECK_THROWS_WITH(replica.apply_gradients({.timeout = 100ms}), ContainsSubstring("while_still"));
    CHECK(model.variables.value(model.w)(0) == 1);
    holder.send(SIGKILL);
    CHECK(replica.resume().global_step == 1);
    CHECK(model.variables.value(model.w)(0) == 0);
  }
  CHECK(folder.files().empty());
}

TEST_CASE("variables: a state that no trainer can have made is told", "[processes][per_variable]") {
  const detail::VariableControl initial(options_of(2));
  const auto fault_of = [&](auto&& damage) {
    detail::VariableControl found = initial;
    damage(found);
    return std::string(detail::state_fault(found, &initial));
  };
  CHECK(fault_of([](auto&) {}).empty());
  CHECK(!fault_of([](auto& state) { state.replicas = 3; }).empty());
  CHECK(!fault_of([](auto& state) { state.replicas = 1000; }).empty());
  CHECK(!fault_of([](auto& state) { state.departure = Departure::stop; }).empty());
  CHECK(!fault_of([](auto& state) { std::memset(&state.updating, 7, 1); }).empty());
  CHECK(!fault_of([](auto& state) { state.updating = true; }).empty());
  CHECK(!fault_of([](auto& state) {
           state.updating = state.plan.applies = state.plan.with_window = true;
         }).empty());
  CHECK(fault_of([](auto& state) { state.updating = state.plan.applies = true; }).empty());
  CHECK(!fault_of([](auto& state) { state.chief = k_max_replicas; }).empty());
  CHECK(!fault_of([](auto& state) { state.planner = -2; }).empty());
  CHECK(!fault_of([](auto& state) { state.culprit = 2; }).empty());
  CHECK(!fault_of([](auto& state) { state.served = -1; }).empty());
  CHECK(!fault_of([](auto& state) { state.at(1).owner = 1 << 20; }).empty());
  CHECK(!fault_of([](auto& state) { state.at(0).seat = protocol::Seat::active; }).empty());
  CHECK(!fault_of([](auto& state) { state.holds[5] = -1; }).empty());
  CHECK(!fault_of([](auto& state) {
           std::memset(static_cast<void*>(&state.tokens), 0xFF, sizeof(state.tokens));
         }).empty());
}

TEST_CASE("variables: a program that differs is refused", "[processes][per_variable]") {
  const SessionFolder folder;
  TwoKinds model;
  const auto net = net_of_variables(folder);
  const VariableReplicas trainer{Sgd{0.25}, model.variables, options_of(2), net};
  const auto attach = [&](double rate, const VariableOptions& options) {
    TwoKinds other;
    (void)VariableReplicas{Sgd{rate}, other.variables, options, net};
  };
  CHECK_THROWS_AS(attach(0.5, options_of(2)), LayoutMismatch);
  CHECK_THROWS_WITH(attach(0.25, options_of(3)), ContainsSubstring("replicas_to_aggregate"));
  VariableOptions dense = options_of(2);
  dense.sparse = {};
  CHECK_THROWS_WITH(attach(0.25, dense), ContainsSubstring("gradients: dense"));
  TwoKinds other;
  CHECK_THROWS_AS((SyncReplicas{Sgd{0.25}, other.variables, {.replicas_to_aggregate = 2}, net}), Error);
  CHECK_NOTHROW(attach(0.25, options_of(2)));
}
