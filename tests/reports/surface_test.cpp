// SPDX-License-Identifier: MIT
// Sections F and G of the reports, as far as they can be asked of threads: abilities and the interface.
#include "reports/scenario.hpp"

#include <array>
#include <atomic>
#include <limits>
#include <mutex>
#include <set>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Two rounds of whatever the loop does, with every replica.
template <class V, class Loop>
std::int64_t two_rounds(V& variables, const SyncOptions& options, Loop loop) {
  SyncReplicas trainer{Sgd{1.0}, variables, options};
  trainer.run([&](auto& replica) {
    while (replica.global_step() < 2) loop(replica);
  });
  return trainer.global_step();
}

template <class T>
concept CanBeScalar = requires {
  typename Variables<T>;
};
template <class T, class G>
concept CanBeGradient = requires {
  typename Variables<T, G>;
};
template <class Net>
concept CanCarry = requires {
  typename SyncReplicas<Sgd, Net, double>;
};
template <class R>
concept CanBeWrapped = requires {
  typename SyncReplicas<R, InProcess, double>;
};

struct NotATransport {};
struct NotARule {
  void step(double) const {}
};

}  // namespace

TEST_CASE("BR-123: what a transport can do works from round 0, what it cannot does not compile",
          "[reports][BR-123]") {
  const Watchdog watchdog;
  using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  SECTION("synchronous") {
    Model<float> model;
    CHECK(two_rounds(model.variables, {.replicas_to_aggregate = 2},
                     [&](auto& replica) { step(replica, model.w, 1); }) == 2);
    CHECK(model.value() == -2);
  }
  SECTION("backup replicas") {
    Model<float> model;
    CHECK(two_rounds(model.variables, {.replicas_to_aggregate = 2, .total_num_replicas = 3},
                     [&](auto& replica) { step(replica, model.w, 1); }) == 2);
    CHECK(model.value() == -2);
  }
  SECTION("a chief, with early tokens") {
    Model<float> model;
    SyncReplicas trainer{
        Sgd{1.0}, model.variables, {.replicas_to_aggregate = 2, .init_tokens = 2, .driver = Driver::chief}};
    std::jthread replicas([&] {
      trainer.run([&](auto& replica) {
        while (replica.global_step() < 2) step(replica, model.w, 1);
      });
    });
    CHECK(trainer.chief_step() == 1);
    CHECK(trainer.chief_step() == 2);
    replicas.join();
    CHECK(model.value() == -2);
  }
  SECTION("row-sparse") {
    Variables<float> variables;
    const auto table = variables.add("table", Table::Zero(4, 3));
    CHECK(two_rounds(variables, {.replicas_to_aggregate = 2}, [&](auto& replica) {
            replica.set_rows(table, std::vector{replica.index(), 3}, Table::Ones(2, 3));
            replica.apply_gradients();
          }) == 2);
    Table expected(4, 3);
    expected << -1, -1, -1, -1, -1, -1, 0, 0, 0, -2, -2, -2;
    CHECK(variables.value(table) == expected);
  }
  SECTION("16-bit gradients") {
    const auto check = [](auto gradient) {
      Model<float, decltype(gradient)> model;
      CHECK(two_rounds(model.variables, {.replicas_to_aggregate = 2},
                       [&](auto& replica) { step(replica, model.w, 0.5); }) == 2);
      CHECK(model.value() == -1);
    };
    check(Eigen::half());
    check(Eigen::bfloat16());
  }
  SECTION("what there is not") {
    STATIC_REQUIRE(!CanBeScalar<Eigen::half>);  // variables and slots in 16 bits
    STATIC_REQUIRE(!CanBeScalar<int>);
    STATIC_REQUIRE(!CanBeGradient<float, double>);
    STATIC_REQUIRE(!CanBeGradient<double, float>);
    STATIC_REQUIRE(CanBeGradient<double, Eigen::half>);
    STATIC_REQUIRE(CanCarry<InProcess>);
    STATIC_REQUIRE(!CanCarry<NotATransport>);
    STATIC_REQUIRE(!CanBeWrapped<NotARule>);
    STATIC_REQUIRE(!InProcess::k_survives_kill);  // a fact to be asked at compile time
  }
  SECTION("combinations without meaning are refused by the constructor") {
    Model<float> model;
    const GradientAggregation<Sgd> recipe{Sgd{}, {.grad_steps = 2}};
    CHECK_THROWS_AS(
        (SyncReplicas{recipe, model.variables, {.replicas_to_aggregate = 2, .absent = Absent::excluded}}),
        InvalidArgument);
  }
}

namespace {

/// The one loop of a program, for any optimizer.
struct Program {
  Handle<VectorOf<float>, float> w;
  Handle<Eigen::MatrixXf, float> m;
  int steps;

  void operator()(Optimizer auto& optimizer) const {
    for (int i = 0; i < steps; ++i) {
      const VectorOf<float> seen = optimizer.value(w);
      optimizer.gradient(m) = optimizer.value(m) * 0.3F;
      optimizer.set_gradient(w, seen * 0.1F + VectorOf<float>::LinSpaced(seen.size(), -1, 1));
      if (i % 3 == 2)
        optimizer.minimize([](auto&) { return 0.0; });
      else
        optimizer.apply_gradients();
    }
  }
};

template <class Make>
std::vector<float> train(Make make) {
  Variables<float> variables;
  Program program{variables.add("w", VectorOf<float>::LinSpaced(37, -2, 3)),
                  variables.add("m", Eigen::MatrixXf::Constant(5, 3, 0.7F)), 9};
  auto trainer = make(variables);
  static_assert(Trainer<decltype(trainer)>);
  trainer.run(program);
  CHECK(trainer.global_step() == 9);
  const auto flat = variables.flat();
  return {flat.begin(), flat.end()};
}

}  // namespace

TEMPLATE_TEST_CASE("BR-130: every wrapper is a drop-in, with the bits of what it wraps", "[reports][BR-130]",
                   Sgd, Adam, Lamb) {
  const Watchdog watchdog;
  const TestType rule{.learning_rate = 0.1};
  const GradientAggregation<TestType> recipe{rule, {.grad_steps = 1}};
  const SyncOptions one{.replicas_to_aggregate = 1};
  const auto expected = train([&](auto& v) { return Local{rule, v}; });
  CHECK(expected[0] != -2);
  CHECK(train([&](auto& v) { return Local{recipe, v}; }) == expected);
  CHECK(train([&](auto& v) { return SyncReplicas{rule, v, one}; }) == expected);
  CHECK(train([&](auto& v) { return SyncReplicas{recipe, v, one}; }) == expected);
  CHECK(train([&](auto& v) {
          return GradientAggregation{SyncReplicas{rule, v, one}, {.grad_steps = 1}};
        }) == expected);
  CHECK(train([&](auto& v) { return GradientAggregation{Local{rule, v}, {.grad_steps = 1}}; }) == expected);
  // Equal gradients on several replicas, a power of two of them, have the same mean.
  CHECK(train([&](auto& v) { return SyncReplicas{rule, v, {.replicas_to_aggregate = 4}}; }) == expected);
}

TEST_CASE("BR-132: no option is ignored, and none without meaning is taken", "[reports][BR-132]") {
  const Watchdog watchdog;
  Model<> model;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();

  SECTION("k") {
    for (const int k : {0, -1, std::numeric_limits<int>::min()}) {
      const AggregationOptions options{.grad_steps = k};
      const GradientAggregation<Sgd> recipe{Sgd{}, options};
      CHECK_THROWS_AS((Local{recipe, model.variables}), InvalidArgument);
      CHECK_THROWS_AS((SyncReplicas{recipe, model.variables, {}}), InvalidArgument);
      GradientAggregation around{Local{Sgd{}, model.variables}, options};
      CHECK_THROWS_AS(around.run([](auto&) {}), InvalidArgument);
    }
  }
  SECTION("N and R") {
    const auto make = [&](int r, int n) {
      SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = r, .total_num_replicas = n}};
      return trainer.replicas();
    };
    CHECK_THROWS_AS(make(0, 1), InvalidArgument);
    CHECK_THROWS_AS(make(-1, 1), InvalidArgument);
    CHECK_THROWS_AS(make(1, -1), InvalidArgument);
    CHECK_THROWS_AS(make(1, k_max_replicas + 1), InvalidArgument);
    CHECK(make(3, 0) == 3);  // documented: as many as R
    CHECK(make(3, 2) == 2);  // documented: each contributes as often as needed
    CHECK(make(1, k_max_replicas) == k_max_replicas);
  }
  SECTION("weights") {
    SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 2}};
    std::array<std::vector<std::exception_ptr>, 2> refused;
    trainer.run([&](auto& replica) {
      for (const double weight : {0.0, nan, -1.0, std::numeric_limits<double>::infinity()})
        refused[at(replica.index())].push_back(
            thrown_by([&] { step(replica, model.w, 1, {.weight = weight}); }));
      step(replica, model.w, 1);
    });
    for (const auto& all : refused)
      for (const auto& one : all) CHECK(caught<InvalidArgument>(one));
    CHECK(model.value() == -1);
  }
  SECTION("deadlines") {
    for (const auto deadline : {0ms, -1ms}) {
      CHECK_THROWS_AS((SyncReplicas{Sgd{}, model.variables, {.deadline = deadline}}), InvalidArgument);
    }
    SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 1}};
    auto replica = trainer.join(0);
    CHECK_THROWS_AS(step(replica, model.w, 1, {.timeout = -1ms}), InvalidArgument);
    CHECK(step(replica, model.w, 1, {.timeout = 0ms}).global_step ==
          1);  // documented: the trainer's deadline
  }
  SECTION("num_partitions") {
    for (const int partitions : {0, -2}) {
      const AggregationOptions options{.num_partitions = partitions};
      CHECK_THROWS_AS((Local{GradientAggregation<Sgd>{Sgd{}, options}, model.variables}), InvalidArgument);
      GradientAggregation around{Local{Sgd{}, model.variables}, options};
      CHECK_THROWS_AS(around.run([](auto&) {}), InvalidArgument);
    }
    // Where it has no effect it is refused.
    const AggregationOptions two{.num_partitions = 2};
    GradientAggregation around{Local{Sgd{}, model.variables}, two};
    CHECK_THROWS_AS(around.run([](auto&) {}), InvalidArgument);
    Model<> other;
    CHECK_THROWS_AS((SyncReplicas{GradientAggregation<Sgd>{Sgd{}, two}, other.variables, {}}),
                    InvalidArgument);
  }
  SECTION("limits of norms") {
    for (const double limit : {-1.0, nan}) {
      CHECK_THROWS_AS((Local{Sgd{}, model.variables, {.clip_norm = limit}}), InvalidArgument);
      CHECK_THROWS_AS((SyncReplicas{Sgd{}, model.variables, {.clip_norm = limit}}), InvalidArgument);
      CHECK_THROWS_AS((SyncReplicas{Sgd{}, model.variables, {.clip_contribution_norm = limit}}),
                      InvalidArgument);
    }
  }
  SECTION("where counting starts") {
    CHECK_THROWS_AS((SyncReplicas{Sgd{}, model.variables, {.global_step = -1}}), InvalidArgument);
    CHECK_THROWS_AS((Local{Sgd{}, model.variables, {.global_step = -1}}), InvalidArgument);
  }
  // Whatever was refused has given the variables back.
  CHECK_NOTHROW(Local{Sgd{}, model.variables});
}

TEST_CASE("BR-134: expressions are evaluated before a call returns", "[reports][BR-134]") {
  const Watchdog watchdog;

  SECTION("gradients, initial values and rows from temporaries") {
    Variables<double> variables;
    using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const auto local_plus = [](double a, double b) { return Eigen::Array2d(a, b); };
    const auto w = variables.add("w", local_plus(0, 0) * 2);
    const auto table = variables.add("table", Rows::Zero(3, 2) + Rows::Zero(3, 2));
    SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 2}};
    trainer.run([&](auto& replica) {
      {
        const Eigen::Array2d g = replica.index() == 0 ? local_plus(1, 2) : local_plus(3, 4);
        replica.set_gradient(w, 2 * g + 1);
        std::vector<int> indices{1};
        replica.set_rows(table, indices, (2 * g + 1).matrix().transpose().eval() * 1.0);
        indices[0] = 0;
      }
      replica.apply_gradients();
    });
    CHECK(variables.value(w)[0] == -5);
    CHECK(variables.value(w)[1] == -7);
    Rows expected = Rows::Zero(3, 2);
    expected.row(1) << -5, -7;
    CHECK(variables.value(table) == expected);
  }
  SECTION("an expression that reads what it is assigned to") {
    Model<> model(0, 3);
    Local trainer{Sgd{1.0}, model.variables};
    trainer.set_gradient(model.w, Eigen::Vector3d(1, 2, 3));
    trainer.set_gradient(model.w, trainer.gradient(model.w).reverse().eval() + trainer.gradient(model.w));
    trainer.apply_gradients();
    CHECK(Eigen::Vector3d(trainer.value(model.w)) == Eigen::Vector3d(-4, -4, -4));
  }
  SECTION("spans and vectors that die at once") {
    Variables<float> variables;
    const auto w = variables.add("w", std::vector<float>{1, 2});
    Local trainer{Sgd{1.0}, variables};
    trainer.set_gradient(w, std::vector<float>{5, 7});
    trainer.apply_gradients();
    CHECK(trainer.value(w)[0] == -4);
    CHECK(trainer.value(w)[1] == -5);
  }
}

TEST_CASE("BR-137: callbacks run once per update, never two at a time", "[reports][BR-137]") {
  const Watchdog watchdog;
  for (const auto& [n, k] : {std::array{4, 2}, {3, 1}, {1, 2}, {8, 3}})
    with_both_nestings(
        Sgd{1.0}, {.grad_steps = k}, {.replicas_to_aggregate = n}, [&, n = n, k = k](const char* form, auto) {
          INFO(form << ", N " << n << ", k " << k);
          const bool outside = std::string(form) == "GradientAggregation<SyncReplicas>";
          std::vector<std::int64_t> updates;  // plain: the library calls one hook at a time
          std::vector<int> contributions;
          std::mutex mutex;
          std::multiset<int> began, ended;
          std::set<std::thread::id> callers, replicas;
          const SyncOptions sync{.replicas_to_aggregate = n,
                                 .hooks = {.begin =
                                               [&](int replica) {
                                                 const std::lock_guard lock(mutex);
                                                 began.insert(replica);
                                                 replicas.insert(std::this_thread::get_id());
                                               },
                                           .after_update =
                                               [&](const UpdateInfo& info) {
                                                 updates.push_back(info.global_step);
                                                 contributions.push_back(info.contributions);
                                                 callers.insert(std::this_thread::get_id());
                                               },
                                           .end =
                                               [&](int replica) {
                                                 const std::lock_guard lock(mutex);
                                                 ended.insert(replica);
                                               }}};
          Model<> model;
          const auto train = [&](auto&& trainer) {
            trainer.run([&](auto& replica) {
              for (int i = 0; i < 10 * k; ++i) step(replica, model.w, 1);
            });
          };
          if (outside)
            train(GradientAggregation{SyncReplicas{Sgd{1.0}, model.variables, sync}, {.grad_steps = k}});
          else
            train(SyncReplicas{GradientAggregation<Sgd>{Sgd{1.0}, {.grad_steps = k}}, model.variables, sync});
          CHECK(updates == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
          CHECK(contributions == std::vector<int>(10, n));
          CHECK(static_cast<int>(began.size()) == n);
          CHECK(began == ended);
          for (const auto& caller : callers)
            CHECK(replicas.count(caller) == 1);  // threads of replicas, as documented
          CHECK(model.value() == -10);
        });
}

TEST_CASE("BR-137: with one replica everything runs on the caller's thread", "[reports][BR-137]") {
  Model<> model;
  std::set<std::thread::id> ids;
  const auto note = [&] { ids.insert(std::this_thread::get_id()); };
  SyncReplicas trainer{Sgd{1.0},
                       model.variables,
                       {.replicas_to_aggregate = 1,
                        .hooks = {.begin = [&](int) { note(); },
                                  .after_update = [&](const UpdateInfo&) { note(); },
                                  .end = [&](int) { note(); }}}};
  trainer.run([&](auto& replica) {
    note();
    step(replica, model.w, 1);
  });
  CHECK(ids == std::set{std::this_thread::get_id()});
}
