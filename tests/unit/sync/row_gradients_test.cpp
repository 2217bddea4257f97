// SPDX-License-Identifier: MIT
// Rows of gradients that are written where they stay.
#include "unit/gradients/pile.hpp"
#include "unit/sync/two_ways.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

template <class T>
using RowMajorOf = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T, class G = T>
struct Embedding {
  Variables<T, G> variables;
  Handle<Eigen::Matrix<T, Eigen::Dynamic, 1>, T> vector =
      variables.add("vector", Eigen::Matrix<T, Eigen::Dynamic, 1>::Ones(131));
  Handle<RowMajorOf<T>, T> table = variables.add("table", RowMajorOf<T>(RowMajorOf<T>::Ones(4200, 5)));
};

/// Some of the rows below `rows`, in no order; in some steps none, in some all.
std::vector<int> rows_of(Index rows, std::uint64_t key) {
  Numbers numbers(key * 7919 + 1);
  const Index every = key % 5 == 0 ? rows + 1 : 1 + static_cast<Index>(key % 5 - 1) * 7;
  std::vector<int> chosen;
  for (Index row = key % 5 == 0 ? rows : numbers.below(every); row < rows; row += 1 + numbers.below(every))
    chosen.push_back(static_cast<int>(row));
  for (std::size_t i = chosen.size(); i > 1; --i)
    std::swap(chosen[i - 1], chosen[static_cast<std::size_t>(numbers.below(static_cast<Index>(i)))]);
  return chosen;
}

/// Gives one variable rows, as a matrix or in place.
template <class G, class O, class H>
void give(O& optimizer, const H& handle, Index count, Index width, std::uint64_t key, bool in_place) {
  const std::vector<int> rows = rows_of(count, key);
  Numbers numbers(key + 17);
  const auto values = RowMajorOf<float>(RowMajorOf<float>::NullaryExpr(
      static_cast<Index>(rows.size()), width, [&] { return static_cast<float>(numbers.real()); }));
  if (!in_place) return optimizer.set_rows(handle, rows, values);
  const auto gradients = optimizer.row_gradients(handle, rows);
  for (std::size_t i = rows.size(); i-- > 0;)
    gradients[rows[i]] = values.row(static_cast<Index>(i)).template cast<G>();
}

}  // namespace

TEST_CASE("row gradients: every optimizer ends with the bits of set_rows", "[sync][rows][thread]") {
  const Watchdog watchdog;
  check_two_ways<Embedding>([](auto& optimizer, const auto& model, std::uint64_t key, bool in_place) {
    using G = typename std::remove_reference_t<decltype(optimizer)>::GradientScalar;
    if (key / 10 % 4 != 3) give<G>(optimizer, model.vector, 131, 1, key, in_place);
    give<G>(optimizer, model.table, 4200, 5, key + 1, in_place);
  });
}

TEST_CASE("row gradients: set_rows adds to them, and they stay what they were", "[sync][rows]") {
  Embedding<double> model;
  Local local{Sgd{.learning_rate = 1}, model.variables};
  const auto rows = local.row_gradients(model.table, std::vector{4000, 3});
  rows[3].setConstant(1);
  local.set_rows(model.table, std::vector{3, 70}, RowMajorOf<double>(RowMajorOf<double>::Constant(2, 5, 10)));
  rows[4000].setConstant(100);  // not before everything has moved to other places
  CHECK(rows[3](4) == 11);
  CHECK(local.apply_gradients().status == Status::accepted);
  const auto table = local.value(model.table);
  CHECK(table(3, 4) == -10);
  CHECK(table(70, 0) == -9);
  CHECK(table(4000, 2) == -99);
  CHECK(table.sum() == 5 * (4197 - 10 - 9 - 99));
}

TEST_CASE("row gradients: what was not asked for is refused, also after the step", "[sync][rows]") {
  Embedding<double> model;
  Local local{Sgd{}, model.variables};
  const auto rows = local.row_gradients(model.table, std::vector<std::int64_t>{1, 64});
  for (const Index row : {Index{0}, Index{-1}, Index{65}, Index{4200}, Index{1} << 40})
    CHECK_THROWS_WITH(rows[row], ContainsSubstring("'table'") && ContainsSubstring(std::to_string(row)) &&
                                     ContainsSubstring("not among those asked for"));
  rows[1].setZero();
  rows[64].setZero();
  CHECK(rows[64].size() == 5);
  local.apply_gradients();
  CHECK_THROWS_AS(rows[1], InvalidArgument);
  CHECK(local.row_gradients(model.vector, std::vector<int>{130})[130].size() == 1);
}

TEST_CASE("row gradients: they are NaN in debug builds until they are written", "[sync][rows]") {
  Embedding<float> model;
  Local local{Sgd{}, model.variables};
  const auto rows = local.row_gradients(model.table, std::vector{5, 2});
#ifdef NDEBUG
  (void)rows;
#else
  CHECK(rows[2].array().isNaN().all());
  CHECK(rows[5].array().isNaN().all());
#endif
}

TEST_CASE("row gradients: an update per variable takes them", "[sync][rows][variable_replicas][thread]") {
  const Watchdog watchdog;
  const auto train = [](bool in_place) {
    return trained<Embedding<float>>(
        [](auto& v) {
          return VariableReplicas{Sgd{0.1}, v,
                                  VariableOptions{.replicas_to_aggregate = 2, .sparse = {"vector", "table"}}};
        },
        [&](auto& replica, const auto& model, std::uint64_t key) {
          give<float>(replica, model.vector, 131, 1, key + 1, in_place);
          give<float>(replica, model.table, 4200, 5, key + 1, in_place);
          replica.apply_gradients();
        });
  };
  const std::vector<float> copied = train(false);
  CHECK(copied != bits_of(Embedding<float>()));
  CHECK(train(true) == copied);
}
