// SPDX-License-Identifier: MIT
// Wrong arguments and calls at the wrong moment: the type of the exception, a text with what was asked and
// what was found, and nothing half done.
#include "support/catch.hpp"
#include "support/threads.hpp"
#include <lockstep/lockstep.hpp>

#include <Eigen/Core>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

using Vector = Eigen::VectorXd;
using DoubleTable = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr double k_nan = std::numeric_limits<double>::quiet_NaN();
constexpr double k_infinity = std::numeric_limits<double>::infinity();

/// What a call threw: the exact type, and the text.
struct Thrown {
  std::string type = "nothing", text;
};
template <class E, class Call>
Thrown thrown(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return {typeid(error) == typeid(E) ? "expected" : typeid(error).name(), error.what()};
  } catch (...) {
    return {"no std::exception", ""};
  }
  return {};
}

/// Checks that `call()` throws exactly an `E` whose text has all of `parts`.
template <class E, class Call>
void refuses(Call&& call, std::initializer_list<const char*> parts) {
  const Thrown found = thrown<E>(call);
  INFO("text: " << found.text);
  CHECK(found.type == "expected");
  for (const char* part : parts) {
    INFO("looking for: " << part);
    CHECK(found.text.find(part) != std::string::npos);
  }
}

/// A model of several kinds of tensors that has been trained for a while, so that every slot has something in
/// it.
struct Fixture {
  Variables<double> variables;
  Handle<Eigen::MatrixXd, double> m = variables.add("m", Eigen::MatrixXd::Constant(2, 3, 1));
  Handle<Vector, double> v = variables.add("v", Vector::Constant(5, 2));
  Handle<DoubleTable, double> table = variables.add("table", DoubleTable::Constant(4, 2, 3));
  Handle<std::span<double>, double> plain = variables.add("plain", std::vector<double>{1, 2, 3, 4});
  Handle<Vector, double> never = variables.add("never", Vector::Constant(1, 4));

  template <class O>
  void fill(O& optimizer) const {
    optimizer.set_gradient(m, Eigen::MatrixXd::Constant(2, 3, 0.5));
    optimizer.set_gradient(v, Vector::LinSpaced(5, -1, 1));
    optimizer.set_rows(table, std::vector{1, 3}, DoubleTable::Constant(2, 2, 0.25));
    optimizer.set_gradient(plain, std::vector<double>{1, 0, -1, 2});
  }
  template <class O>
  StepResult step(O& optimizer) const {
    fill(optimizer);
    return optimizer.apply_gradients();
  }
};

/// Everything an update may change, as bytes.
template <class O>
std::string state_of(const O& optimizer, const Fixture& f) {
  std::string state;
  const auto add = [&](const double* data, std::size_t count) {
    state.append(reinterpret_cast<const char*>(data), count * sizeof(double));
  };
  const auto add_all = [&](const auto& handle) {
    const auto value = optimizer.value(handle);
    add(value.data(), static_cast<std::size_t>(value.size()));
    for (const std::string& name : optimizer.slot_names()) {
      if (name == "grad_accum") continue;  // a gradient that is not handed over yet may lie there
      const auto slot = optimizer.slot(name, handle);
      add(slot.data(), static_cast<std::size_t>(slot.size()));
    }
  };
  add_all(f.m);
  add_all(f.v);
  add_all(f.table);
  add_all(f.plain);
  add_all(f.never);
  return state + " step " + std::to_string(optimizer.global_step()) + " sequence " +
         std::to_string(optimizer.sequence());
}

/// Calls `check(name, with)` for trainers of one replica; `with(f, body)` runs `body(optimizer)` after two
/// steps.
template <class Check>
void with_each_optimizer(Check&& check) {
  const auto run = [](auto make) {
    return [make](const Fixture& f, Variables<double>& variables, auto body) {
      auto trainer = make(variables);
      trainer.run([&](auto& optimizer) {
        f.step(optimizer);
        f.step(optimizer);
        body(optimizer);
      });
    };
  };
  const Adam rule{.learning_rate = 0.1};
  check("Local", run([rule](auto& v) { return Local{rule, v}; }));
  check("SyncReplicas", run([rule](auto& v) { return SyncReplicas{rule, v, {.replicas_to_aggregate = 1}}; }));
  check("GradientAggregation<SyncReplicas>", run([rule](auto& v) {
          return GradientAggregation{SyncReplicas{rule, v, {.replicas_to_aggregate = 1}}, {.grad_steps = 1}};
        }));
  check("Local<GradientAggregation>", run([rule](auto& v) {
          return Local{GradientAggregation<Adam>{rule, {.grad_steps = 2}}, v};
        }));
}

/// For each kind of optimizer: `call(optimizer)` throws an `E` with these parts, changes nothing, and the
/// steps after it give the bits of a run in which it never happened.
template <class E, class Call>
void refused_by_each(Call&& call, std::initializer_list<const char*> parts) {
  with_each_optimizer([&](const char* name, auto with) {
    INFO(name);
    std::string untouched;
    {
      Fixture f;
      with(f, f.variables, [&](auto& optimizer) {
        f.step(optimizer);
        f.step(optimizer);
        untouched = state_of(optimizer, f);
      });
    }
    Fixture f;
    with(f, f.variables, [&](auto& optimizer) {
      const std::string before = state_of(optimizer, f);
      refuses<E>([&] { call(optimizer, f); }, parts);
      CHECK((state_of(optimizer, f) == before));
      CHECK(f.step(optimizer).status != Status::skipped);
      refuses<E>([&] { call(optimizer, f); }, parts);
      f.step(optimizer);
      CHECK((state_of(optimizer, f) == untouched));
    });
  });
}

}  // namespace

TEST_CASE("bad input: weights and limits of a call", "[sync][bad_input]") {
  const Watchdog watchdog;
  const auto weight = [](double w) {
    // Gradients that were set stay set, so only what the next step replaces.
    return [w](auto& optimizer, const Fixture& f) {
      optimizer.set_gradient(f.v, Vector::Ones(5));
      optimizer.apply_gradients({.weight = w});
    };
  };
  refused_by_each<InvalidArgument>(weight(0), {"weight", "positive", "got 0"});
  refused_by_each<InvalidArgument>(weight(-0.5), {"weight", "positive", "got -0.5"});
  refused_by_each<InvalidArgument>(weight(k_nan), {"weight", "finite", "nan"});
  refused_by_each<InvalidArgument>(weight(k_infinity), {"weight", "finite", "inf"});
  refused_by_each<InvalidArgument>(
      [](auto& optimizer, const Fixture& f) {
        optimizer.set_gradient(f.v, Vector::Ones(5));
        optimizer.apply_gradients({.timeout = -5ms});
      },
      {"timeout", "got -5 ms"});
}

TEST_CASE("bad input: no gradient at all", "[sync][bad_input]") {
  const Watchdog watchdog;
  refused_by_each<NoGradients>([](auto& optimizer, const Fixture&) { optimizer.apply_gradients(); },
                               {"apply_gradients", "gradient"});
  refused_by_each<NoGradients>(
      [](auto& optimizer, const Fixture&) { optimizer.minimize([](auto&) { return 0.5; }); },
      {"apply_gradients"});
  STATIC_REQUIRE(std::is_base_of_v<UsageError, NoGradients>);
}

TEST_CASE("bad input: handles", "[sync][bad_input]") {
  const Watchdog watchdog;
  Variables<double> other;
  const auto foreign = other.add("v", Vector::Constant(5, 2));
  const Handle<Vector, double> unknown;
  const auto each_call = [](const auto& handle, std::initializer_list<const char*> parts) {
    refused_by_each<UnknownVariable>([&](auto& o, const Fixture&) { o.gradient(handle).setZero(); }, parts);
    refused_by_each<UnknownVariable>(
        [&](auto& o, const Fixture&) { o.set_gradient(handle, Vector::Zero(5)); }, parts);
    refused_by_each<UnknownVariable>(
        [&](auto& o, const Fixture&) { o.set_rows(handle, std::vector{0}, Vector::Zero(1)); }, parts);
    refused_by_each<UnknownVariable>(
        [&](auto& o, const Fixture&) { (void)o.row_gradients(handle, std::vector{0}); }, parts);
    refused_by_each<UnknownVariable>([&](auto& o, const Fixture&) { (void)o.value(handle); }, parts);
    refused_by_each<UnknownVariable>([&](auto& o, const Fixture&) { (void)o.slot("m", handle); }, parts);
  };
  each_call(foreign, {"another set", "0"});
  each_call(unknown, {"never returned by add()"});
  refused_by_each<UnknownVariable>([](auto& o, const Fixture& f) { (void)o.slot("velocity", f.v); },
                                   {"'velocity'", "m, v"});
}

TEST_CASE("bad input: shapes", "[sync][bad_input]") {
  const Watchdog watchdog;
  refused_by_each<ShapeMismatch>(
      [](auto& o, const Fixture& f) { o.set_gradient(f.m, Eigen::MatrixXd::Zero(3, 2)); },
      {"'m'", "(2, 3)", "(3, 2)"});
  refused_by_each<ShapeMismatch>(
      [](auto& o, const Fixture& f) { o.set_gradient(f.m, Eigen::MatrixXd(0, 0)); },
      {"'m'", "(2, 3)", "(0, 0)"});
  refused_by_each<ShapeMismatch>([](auto& o, const Fixture& f) { o.set_gradient(f.v, Vector::Zero(6)); },
                                 {"'v'", "(5, 1)", "(6, 1)"});
  refused_by_each<ShapeMismatch>(
      [](auto& o, const Fixture& f) { o.set_gradient(f.v, Eigen::RowVectorXd::Zero(5)); },
      {"'v'", "(5, 1)", "(1, 5)"});
  refused_by_each<ShapeMismatch>(
      [](auto& o, const Fixture& f) { o.set_gradient(f.plain, std::vector<double>(3)); },
      {"'plain'", "(4)", "(3)"});
  SECTION("rows") {
    refused_by_each<ShapeMismatch>(
        [](auto& o, const Fixture& f) {
          o.set_rows(f.table, std::vector{0, 1}, DoubleTable::Zero(1, 2));
        },
        {"'table'", "2 rows of 2", "got 2 elements"});
    refused_by_each<ShapeMismatch>(
        [](auto& o, const Fixture& f) { o.set_rows(f.table, std::vector{0}, DoubleTable::Zero(1, 3)); },
        {"'table'", "1 rows of 2", "got 3 elements"});
    refused_by_each<ShapeMismatch>(
        [](auto& o, const Fixture& f) {
          o.set_rows(f.table, std::vector{0, 1, 2}, DoubleTable::Zero(2, 3));
        },
        {"'table'", "(3, 2)", "(2, 3)"});
    refused_by_each<ShapeMismatch>(
        [](auto& o, const Fixture& f) {
          o.set_rows(f.plain, std::vector{0, 1}, std::vector<double>(3));
        },
        {"'plain'", "2 rows of 1", "got 3 elements"});
  }
  SECTION("row numbers") {
    for (const int row : {-1, 4, std::numeric_limits<int>::max()}) {
      const std::string found = "got " + std::to_string(row);
      refused_by_each<InvalidArgument>(
          [&](auto& o, const Fixture& f) {
            o.set_rows(f.table, std::vector{0, row}, DoubleTable::Zero(2, 2));
          },
          {"'table'", "[0, 4)", found.c_str()});
      refused_by_each<InvalidArgument>(
          [&](auto& o, const Fixture& f) {
            (void)o.row_gradients(f.table, std::vector{0, row});
          },
          {"'table'", "[0, 4)", found.c_str()});
    }
    refused_by_each<InvalidArgument>(
        [](auto& o, const Fixture& f) {
          (void)o.row_gradients(f.table, std::vector{2, 0, 2});
        },
        {"'table'", "row 2", "twice", "set_rows"});
    refused_by_each<InvalidArgument>(
        [](auto& o, const Fixture& f) {
          o.set_rows(f.plain, std::vector<long>{1L << 40}, std::vector<double>(1));
        },
        {"'plain'", "[0, 4)", "got 1099511627776"});
  }
}

TEST_CASE("bad input: dense and rows for one variable in one step", "[sync][bad_input]") {
  const Watchdog watchdog;
  with_each_optimizer([](const char* name, auto with) {
    INFO(name);
    Fixture f;
    with(f, f.variables, [&](auto& optimizer) {
      const std::string before = state_of(optimizer, f);
      optimizer.set_rows(f.table, std::vector{2}, DoubleTable::Ones(1, 2));
      refuses<UsageError>([&] { (void)optimizer.gradient(f.table); }, {"'table'", "rows", "dense"});
      refuses<UsageError>([&] { optimizer.set_gradient(f.table, DoubleTable::Ones(4, 2)); },
                          {"'table'", "rows", "dense"});
      refuses<UsageError>([&] { (void)optimizer.gradients(); }, {"'table'", "has rows", "dense"});
      refuses<UsageError>([&] { (void)optimizer.row_gradients(f.table, std::vector{0}); },
                          {"'table'", "has rows", "rows in place"});
      optimizer.set_gradient(f.v, Vector::Ones(5));
      refuses<UsageError>([&] { optimizer.set_rows(f.v, std::vector{1}, Vector::Ones(1)); },
                          {"'v'", "rows", "dense"});
      refuses<UsageError>([&] { (void)optimizer.row_gradients(f.v, std::vector{1}); },
                          {"'v'", "has a dense gradient", "rows in place"});
      CHECK((state_of(optimizer, f) == before));
      // What was there first stands.
      while (optimizer.apply_gradients().status == Status::accumulated)
        optimizer.set_gradient(f.v, Vector::Ones(5));
      CHECK(optimizer.value(f.table)(2, 0) < 3);
      CHECK(optimizer.value(f.table)(0, 0) == 3);
      CHECK(optimizer.value(f.never)[0] == 4);
    });
  });
}

TEST_CASE("bad input: options of a trainer, which then leaves the variables free", "[sync][bad_input]") {
  const Watchdog watchdog;
  Fixture f;
  const auto sync = [&](const SyncOptions& options) {
    return [&, options] { SyncReplicas trainer{Sgd{}, f.variables, options}; };
  };
  const auto with_steps = [&](std::int64_t k) {
    return [&, k] { Local trainer{GradientAggregation<Sgd>{Sgd{}, {.grad_steps = k}}, f.variables}; };
  };
  refuses<InvalidArgument>(sync({.replicas_to_aggregate = 0}),
                           {"replicas_to_aggregate", "at least 1", "got 0"});
  refuses<InvalidArgument>(sync({.replicas_to_aggregate = -3}),
                           {"replicas_to_aggregate", "at least 1", "got -3"});
  refuses<InvalidArgument>(sync({.total_num_replicas = -1}), {"total_num_replicas", "at least 1", "got -1"});
  refuses<InvalidArgument>(sync({.total_num_replicas = 1000}), {"total_num_replicas", "at most", "got 1000"});
  refuses<InvalidArgument>(sync({.replicas_to_aggregate = 3, .total_num_replicas = 2, .init_tokens = 0}),
                           {"init_tokens", "3", "2", "at least 1", "got 0"});
  refuses<InvalidArgument>(sync({.init_tokens = -2}), {"init_tokens", "got -2"});
  refuses<InvalidArgument>(sync({.clip_norm = -1}), {"clip_norm", "negative", "got -1"});
  refuses<InvalidArgument>(sync({.clip_norm = k_nan}), {"clip_norm", "nan"});
  refuses<InvalidArgument>(sync({.clip_contribution_norm = -2}), {"clip_contribution_norm", "got -2"});
  refuses<InvalidArgument>(sync({.global_step = -1}), {"global_step", "got -1"});
  refuses<InvalidArgument>(sync({.deadline = 0ms}), {"deadline", "positive", "got 0 ms"});
  refuses<InvalidArgument>(sync({.deadline = -7ms}), {"deadline", "positive", "got -7 ms"});
  for (const std::int64_t k : {std::int64_t{0}, std::int64_t{-2}}) {
    const std::string found = "got " + std::to_string(k);
    refuses<InvalidArgument>(with_steps(k), {"grad_steps", "at least 1", found.c_str()});
  }
  refuses<InvalidArgument>(
      [&] {
        Local trainer{Sgd{}, f.variables, {.clip_norm = -1}};
      },
      {"clip_norm", "got -1"});
  refuses<InvalidArgument>(
      [&] {
        Local trainer{Sgd{}, f.variables, {.global_step = -4}};
      },
      {"global_step", "got -4"});
  refuses<InvalidArgument>(
      [&] {
        Local trainer{Momentum{.momentum = 1}, f.variables};
      },
      {"momentum", "got 1"});
  Variables<double> empty;
  refuses<InvalidArgument>([&] { Local trainer{Sgd{}, empty}; }, {"at least one variable", "none"});

  Local trainer{Sgd{1.0}, f.variables};
  f.step(trainer);
  CHECK(trainer.value(f.m)(0, 0) == 0.5);
}

TEST_CASE("bad input: a number that is no enumerator is refused by whoever takes it", "[sync][bad_input]") {
  const Watchdog watchdog;
  Fixture f;
  const auto cast = [](auto& option) { option = static_cast<std::decay_t<decltype(option)>>(7); };
  const auto refused = [](const char* option, const char* range, auto&& make) {
    refuses<InvalidArgument>(make, {option, range, "got 7"});
  };
  // Makes something with one option that is none.
  const auto with = [&]<class Options, class Option>(Option Options::*member, const auto& make) {
    return [&, member] {
      Options options;
      cast(options.*member);
      make(options);
    };
  };
  const auto sync = [&](const SyncOptions& options) { SyncReplicas trainer{Sgd{}, f.variables, options}; };
  refused("reduction", "0 to 1", with(&SyncOptions::reduction, sync));
  refused("departure", "0 to 4", with(&SyncOptions::departure, sync));
  refused("absent", "0 to 1", with(&SyncOptions::absent, sync));
  refused("non_finite", "0 to 2", with(&SyncOptions::non_finite, sync));
  refused("driver", "0 to 1", with(&SyncOptions::driver, sync));
  refused("reading", "0 to 2", with(&SyncOptions::reading, sync));

  const auto by_variable = [&](const VariableOptions& options) {
    VariableReplicas trainer{Sgd{}, f.variables, options};
  };
  refused("reduction", "0 to 1", with(&VariableOptions::reduction, by_variable));
  refused("departure", "0 to 4", with(&VariableOptions::departure, by_variable));
  refused("driver", "0 to 1", with(&VariableOptions::driver, by_variable));
  refused("kind", "0 to 2", [&] {
    VariableReplicas trainer{
        Sgd{}, f.variables, {.kind = [](const VariableInfo&) { return static_cast<GradientKind>(7); }}};
  });

  const auto below = [&](const AggregationOptions& options) {
    Local trainer{GradientAggregation{Sgd{}, options}, f.variables};
  };
  const auto above = [&](const AggregationOptions& options) {
    GradientAggregation trainer{SyncReplicas{Sgd{}, f.variables, SyncOptions{}}, options};
    (void)trainer.join();
  };
  refused("reduction", "0 to 1", with(&AggregationOptions::reduction, below));
  refused("reduction", "0 to 1", with(&AggregationOptions::reduction, above));
  refused("variant", "0 to 5", with(&AggregationOptions::variant, below));
  refused("variant", "0 to 5", with(&AggregationOptions::variant, above));
  refused("non_finite", "0 to 2", with(&AggregationOptions::non_finite, below));
  refused("non_finite", "0 to 2", with(&AggregationOptions::non_finite, above));

  refused("non_finite", "0 to 2", [&] {
    Local trainer{Sgd{}, f.variables, {.non_finite = static_cast<NonFinite>(7)}};
  });
  refused("rule", "0 to 2", [&] { ExtraState extra{static_cast<StateRule>(7), f.variables, {}}; });
  const AccumulatorOptions sums{.reduction = static_cast<Reduction>(7)};
  refused("reduction", "0 to 1", [&] { ConditionalAccumulator<float> accumulator{sums}; });
  refused("reduction", "0 to 1", [&] { SparseConditionalAccumulator<float> accumulator{sums}; });
  refuses<InvalidArgument>([&] { ConditionalAccumulator<float>{{.reduction = static_cast<Reduction>(-1)}}; },
                           {"reduction", "0 to 1", "got -1"});

  Local trainer{Sgd{1.0}, f.variables};
  f.step(trainer);
  CHECK(trainer.value(f.m)(0, 0) == 0.5);
}

TEST_CASE("bad input: a length of the window that stops making sense", "[sync][bad_input]") {
  const Watchdog watchdog;
  const auto check = [](const char* name, auto make) {
    INFO(name);
    Fixture f;
    int k = 2;
    auto trainer = make(f.variables, [&k](std::int64_t) { return k; });
    trainer.run([&](auto& optimizer) {
      f.step(optimizer);
      f.step(optimizer);
      f.step(optimizer);
      const std::string before = state_of(optimizer, f);
      k = 0;
      refuses<InvalidArgument>([&] { f.step(optimizer); }, {"grad_steps", "got 0"});
      CHECK((state_of(optimizer, f) == before));
      k = 2;
      refuses<InvalidArgument>([&] { optimizer.set_grad_steps(-1); }, {"grad_steps", "got -1"});
      CHECK(optimizer.pending() == 1);
      CHECK(f.step(optimizer).status == Status::accepted);
      CHECK(optimizer.global_step() == 2);
      CHECK(optimizer.value(f.m)(0, 0) == 0);
    });
  };
  check("Local<GradientAggregation>", [](auto& v, auto length) {
    return Local{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = length}}, v};
  });
  check("GradientAggregation<Local>", [](auto& v, auto length) {
    return GradientAggregation{Local{Sgd{1.0}, v}, {.grad_steps = length}};
  });
  check("GradientAggregation<SyncReplicas>", [](auto& v, auto length) {
    return GradientAggregation{SyncReplicas{Sgd{1.0}, v, {.replicas_to_aggregate = 1}},
                               {.grad_steps = length}};
  });
}

TEST_CASE("bad input: the set of variables is closed while a trainer is bound", "[sync][bad_input]") {
  Fixture f;
  const auto check = [&](auto& trainer) {
    refuses<UsageError>([&] { f.variables.add("late", Vector::Zero(1)); }, {"'late'", "bound"});
    refuses<UsageError>([&] { f.variables.assign(f.v, Vector::Zero(5)); }, {"assign", "bound"});
    refuses<UsageError>([&] { Local second{Sgd{}, f.variables}; }, {"already bound"});
    refuses<UsageError>([&] { SyncReplicas second{Sgd{}, f.variables, {}}; }, {"already bound"});
    CHECK(f.variables.infos().size() == 5);
    trainer.run([&](auto& optimizer) { f.step(optimizer); });
  };
  {
    Local trainer{Sgd{1.0}, f.variables};
    check(trainer);
  }
  {
    SyncReplicas trainer{Sgd{1.0}, f.variables, {}};
    check(trainer);
  }
  CHECK(f.variables.value(f.m)(0, 0) == 0);
  refuses<InvalidArgument>([&] { f.variables.add("m", Vector::Zero(1)); }, {"'m'", "taken"});
  refuses<InvalidArgument>([&] { f.variables.add("", Vector::Zero(1)); }, {"name"});
  refuses<InvalidArgument>([&] { f.variables.add("hollow", Vector(0)); }, {"'hollow'", "(0)"});
  CHECK_NOTHROW(f.variables.add("late", Vector::Zero(1)));
}

TEST_CASE("bad input: joining and leaving", "[sync][bad_input]") {
  const Watchdog watchdog;
  Fixture f;
  SyncReplicas trainer{
      Sgd{1.0}, f.variables, {.replicas_to_aggregate = 2, .departure = Departure::wait, .deadline = 50s}};
  refuses<InvalidArgument>([&] { (void)trainer.join(2); }, {"join", "0 to 1", "got 2"});
  refuses<InvalidArgument>([&] { (void)trainer.join(-1); }, {"join", "0 to 1", "got -1"});
  refuses<InvalidArgument>([&] { (void)trainer.stats(2); }, {"stats", "0 to 1", "got 2"});
  refuses<InvalidArgument>([&] { (void)trainer.stats(-1); }, {"stats", "0 to 1", "got -1"});
  CHECK(trainer.stats(0).incarnation == 0);

  auto first = trainer.join(0);
  refuses<UsageError>([&] { (void)trainer.join(0); }, {"replica 0", "joined already"});
  refuses<UsageError>([&] { trainer.run([](auto&) {}); }, {"still active: 0 (of 2)"});
  auto second = trainer.join();
  CHECK(second.index() == 1);
  refuses<UsageError>([&] { (void)trainer.join(); }, {"all 2 replicas"});
  CHECK(trainer.stats(0).incarnation == 1);
  refuses<UsageError>([&] { first.resume(); }, {"resume", "replica 0", "no pending"});
  refuses<UsageError>([&] { first.withdraw(); }, {"withdraw", "replica 0", "no pending"});

  second.leave();
  CHECK_NOTHROW(second.leave());
  const auto left = {"replica", "has left"};
  refuses<UsageError>([&] { second.apply_gradients(); }, left);
  refuses<UsageError>([&] { (void)second.gradient(f.v); }, left);
  refuses<UsageError>([&] { (void)second.gradients(); }, left);
  refuses<UsageError>([&] { second.set_gradient(f.v, Vector::Zero(5)); }, left);
  refuses<UsageError>([&] { second.set_rows(f.table, std::vector{0}, DoubleTable::Zero(1, 2)); }, left);
  refuses<UsageError>([&] { (void)second.row_gradients(f.table, std::vector{0}); }, left);
  refuses<UsageError>([&] { (void)second.value(f.v); }, left);
  refuses<UsageError>([&] { (void)second.variables(); }, left);
  refuses<UsageError>([&] { (void)second.slot_names(); }, left);

  // The place can be taken again, and a round be made.
  const auto thrown_by_replicas = run_replicas(2, [&](int i) {
    if (i == 0) {
      f.step(first);
      return;
    }
    auto again = trainer.join(1);
    f.step(again);
  });
  for (const auto& one : thrown_by_replicas) CHECK(message_of(one) == "");
  CHECK(trainer.stats(1).incarnation == 2);
  CHECK(trainer.global_step() == 1);
  CHECK(f.variables.value(f.m)(0, 0) == 0.5);
}

TEST_CASE("bad input: a rate that is not finite", "[sync][bad_input]") {
  const Watchdog watchdog;

  SECTION("in one replica: nothing happened, the gradient is still there") {
    for (const double bad : {k_nan, k_infinity, -k_infinity}) {
      Fixture f;
      double rate = 1;
      Local trainer{Momentum{.learning_rate = Schedule([&](std::int64_t) { return rate; })}, f.variables};
      f.step(trainer);
      const std::string before = state_of(trainer, f);
      rate = bad;
      refuses<InvalidArgument>([&] { f.step(trainer); }, {"learning rate", "finite", "update 1"});
      CHECK((state_of(trainer, f) == before));
      rate = 1;
      CHECK(trainer.apply_gradients().global_step == 2);
      CHECK(trainer.value(f.m)(0, 0) == Approx(1 - 0.5 - 0.95).epsilon(1e-14));
    }
  }
  SECTION("a constant: there is no such rule") {
    for (const double bad : {k_nan, k_infinity}) {
      refuses<InvalidArgument>([&] { (void)Sgd{bad}; }, {"learning rate", "finite"});
      refuses<InvalidArgument>([&] { (void)Adam{.learning_rate = bad}; }, {"learning rate", "finite"});
    }
  }
  SECTION("in the middle of a window: what was gathered is not lost") {
    const auto check = [](const char* name, auto make) {
      INFO(name);
      Fixture f;
      double rate = k_nan;
      auto trainer = make(f.variables, Sgd{Schedule([&rate](std::int64_t) { return rate; })});
      trainer.run([&](auto& optimizer) {
        optimizer.set_gradient(f.m, Eigen::MatrixXd::Constant(2, 3, 1));
        optimizer.apply_gradients();
        const std::string before = state_of(optimizer, f);
        optimizer.set_gradient(f.m, Eigen::MatrixXd::Constant(2, 3, 3));
        refuses<InvalidArgument>([&] { optimizer.apply_gradients(); }, {"learning rate", "finite"});
        CHECK(optimizer.value(f.m)(0, 0) == 1);
        CHECK(optimizer.global_step() == 0);
        CHECK((state_of(optimizer, f) == before));
        CHECK(optimizer.pending() == 1);
        rate = 1;
        CHECK(optimizer.apply_gradients().status == Status::accepted);
        CHECK(optimizer.value(f.m)(0, 0) == 1 - 2);
      });
    };
    check("Local<GradientAggregation>", [](auto& v, const Sgd& rule) {
      return Local{GradientAggregation<Sgd>{rule, {.grad_steps = 2}}, v};
    });
  }
  SECTION("between replicas: all learn of it, nothing was applied, and the trainer can start over") {
    Fixture f;
    double rate = k_nan;
    SyncReplicas trainer{Sgd{Schedule([&](std::int64_t) { return rate; })},
                         f.variables,
                         {.replicas_to_aggregate = 3, .deadline = 50s}};
    const auto failed = run_replicas(3, [&](int i) {
      auto replica = trainer.join(i);
      f.step(replica);
    });
    int causes = 0, consequences = 0;
    for (const auto& one : failed) {
      REQUIRE(one);
      CHECK(message_of(one).find("learning rate: must be finite") != std::string::npos);
      try {
        std::rethrow_exception(one);
      } catch (const PeerFailed&) {
        ++consequences;
      } catch (const InvalidArgument&) {
        ++causes;
      } catch (...) {
      }
    }
    CHECK(causes == 1);
    CHECK(consequences == 2);
    CHECK(f.variables.value(f.m)(0, 0) == 1);
    CHECK(trainer.global_step() == 0);
    rate = 1;
    trainer.run([&](auto& replica) { f.step(replica); });
    CHECK(f.variables.value(f.m)(0, 0) == 0.5);
    CHECK(trainer.global_step() == 1);
  }
}

TEST_CASE("bad input: while a contribution is pending its memory is not to be touched", "[sync][bad_input]") {
  const Watchdog watchdog;
  Fixture f;
  SyncReplicas trainer{Sgd{1.0}, f.variables, {.replicas_to_aggregate = 2}};
  auto first = trainer.join(0);
  f.fill(first);
  refuses<TimeoutError>([&] { first.apply_gradients({.timeout = 50ms}); },
                        {"replica 0", "50 ms", "replica 1 has not joined"});
  const auto pending = {"replica 0", "still pending", "resume() or withdraw()"};
  refuses<UsageError>([&] { (void)first.gradient(f.v); }, pending);
  refuses<UsageError>([&] { (void)first.gradients(); }, pending);
  refuses<UsageError>([&] { first.set_gradient(f.v, Vector::Zero(5)); }, pending);
  refuses<UsageError>([&] { first.set_rows(f.table, std::vector{0}, DoubleTable::Zero(1, 2)); }, pending);
  refuses<UsageError>([&] { (void)first.row_gradients(f.table, std::vector{0}); }, pending);
  refuses<UsageError>([&] { first.apply_gradients(); }, pending);
  CHECK(first.global_step() == 0);
  CHECK(first.value(f.m)(0, 0) == 1);
  // A second deadline changes nothing.
  refuses<TimeoutError>([&] { first.resume({.timeout = 50ms}); }, {"replica 1 has not joined"});

  SECTION("resumed") {
    const auto thrown_by_replicas = run_replicas(2, [&](int i) {
      if (i == 0) {
        if (first.resume().contributions != 2) throw Error("not both");
        return;
      }
      auto second = trainer.join(1);
      f.step(second);
    });
    for (const auto& one : thrown_by_replicas) CHECK(message_of(one) == "");
    CHECK(trainer.global_step() == 1);
    CHECK(f.variables.value(f.m)(0, 0) == 0.5);
  }
  SECTION("withdrawn") {
    CHECK(first.withdraw());
    CHECK(first.sequence() == 0);
    refuses<NoGradients>([&] { first.apply_gradients(); }, {"replica 0", "no gradient"});
    const auto thrown_by_replicas = run_replicas(2, [&](int i) {
      if (i == 0) {
        first.set_gradient(f.m, Eigen::MatrixXd::Constant(2, 3, 1.5));
        first.apply_gradients();
        return;
      }
      auto second = trainer.join(1);
      f.step(second);
    });
    for (const auto& one : thrown_by_replicas) CHECK(message_of(one) == "");
    CHECK(trainer.global_step() == 1);
    CHECK(f.variables.value(f.m)(0, 0) == 0);
    CHECK(f.variables.value(f.v)[4] == 2 - 0.5);  // of the second alone
  }
  CHECK(trainer.stats(0).accepted == 1);
}
