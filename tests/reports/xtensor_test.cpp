// SPDX-License-Identifier: MIT
// BR-069 and BR-134 with xtensor.
#include "reports/scenario.hpp"
#include <lockstep/tensor/xtensor.hpp>

#if __has_include(<xtensor/views/xview.hpp>)
#include <xtensor/views/xstrided_view.hpp>
#include <xtensor/views/xview.hpp>
#else
#include <xtensor/xstrided_view.hpp>
#include <xtensor/xview.hpp>
#endif

#include <array>

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("BR-069: strided xtensor views are read as what they are", "[reports][BR-069][xtensor]") {
  const Watchdog watchdog;
  const std::array<xt::xtensor<float, 2>, 2> matrices{xt::xtensor<float, 2>{{1, 9}, {2, 9}},
                                                      xt::xtensor<float, 2>{{3, 9}, {4, 9}}};
  Variables<float> variables;
  const auto w = variables.add("w", xt::xtensor<float, 1>{0, 0});
  const auto turned = variables.add("turned", xt::transpose(matrices[0]));
  SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 2}};
  trainer.run([&](auto& replica) {
    const auto& matrix = matrices[at(replica.index())];
    replica.set_gradient(w, xt::view(matrix, xt::all(), 0));
    replica.set_gradient(
        turned, xt::view(matrix, xt::range(xt::placeholders::_, xt::placeholders::_, -1), xt::all()));
    replica.apply_gradients();
  });
  CHECK(variables.value(w)(0) == -2);
  CHECK(variables.value(w)(1) == -3);
  // {{1, 2}, {9, 9}} less the mean of {{2, 9}, {1, 9}} and {{4, 9}, {3, 9}}
  CHECK(variables.value(turned)(0, 0) == -2);
  CHECK(variables.value(turned)(0, 1) == -7);
  CHECK(variables.value(turned)(1, 0) == 7);
  CHECK(variables.value(turned)(1, 1) == 0);
  for (const auto& matrix : matrices) CHECK((matrix(0, 1) == 9 && matrix(1, 1) == 9));
}

TEST_CASE("BR-134: xtensor expressions are evaluated before a call returns", "[reports][BR-134][xtensor]") {
  const Watchdog watchdog;
  const auto make = [](double a, double b) { return xt::xtensor<double, 1>{a, b}; };
  Variables<double> variables;
  const auto w = variables.add("w", 0 * make(1, 2));
  const auto table = variables.add("table", xt::xtensor<double, 2>(xt::zeros<double>({3, 2})) + 0.0);
  SyncReplicas trainer{Sgd{1.0}, variables, {.replicas_to_aggregate = 2}};
  trainer.run([&](auto& replica) {
    {
      const xt::xtensor<double, 1> g = replica.index() == 0 ? make(1, 2) : make(3, 4);
      replica.set_gradient(w, 2 * g + 1);
      xt::xtensor<double, 2> rows{{g(0), g(1)}};
      replica.set_rows(table, std::vector{1}, 2 * rows + 1);
    }
    replica.apply_gradients();
  });
  CHECK(variables.value(w)(0) == -5);
  CHECK(variables.value(w)(1) == -7);
  CHECK(variables.value(table)(1, 0) == -5);
  CHECK(variables.value(table)(1, 1) == -7);
  CHECK(variables.value(table)(0, 0) == 0);
}
