// SPDX-License-Identifier: MIT
// What is special about Eigen: expressions, strides, storage orders, lifetimes. The common battery:
// typed_test.cpp.
#include "support/allocations.hpp"
#include "support/catch.hpp"
#include <lockstep/optimizers/local.hpp>
#include <lockstep/optimizers/sgd.hpp>

#include <Eigen/Core>

#include <array>
#include <list>
#include <type_traits>
#include <vector>

using namespace lockstep;
using Catch::Matchers::ContainsSubstring;

namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class E>
concept KnownToLockstep = requires {
  typename tensor_of_t<E>;
};

template <class E>
using plain_of = tensor_of_t<decltype(std::declval<E>())>;

struct OwnVector : Eigen::VectorXf {
  using Eigen::VectorXf::VectorXf;
};

const Eigen::MatrixXf m;
const Eigen::VectorXf v;
static_assert(std::is_same_v<tensor_of_t<decltype(m + m)>, Eigen::MatrixXf>);
static_assert(std::is_same_v<tensor_of_t<decltype(m * m)>, Eigen::MatrixXf>);
static_assert(std::is_same_v<tensor_of_t<decltype(v.head(2))>, Eigen::VectorXf>);
static_assert(std::is_same_v<tensor_of_t<decltype(v.segment(1, 2))>, Eigen::VectorXf>);
static_assert(std::is_same_v<tensor_of_t<OwnVector>, Eigen::VectorXf>);
static_assert(std::is_same_v<tensor_of_t<Eigen::Map<const Eigen::MatrixXf>>, Eigen::MatrixXf>);
static_assert(std::is_same_v<tensor_of_t<Eigen::Ref<const Eigen::VectorXf>>, Eigen::VectorXf>);
static_assert(std::is_same_v<tensor_of_t<decltype(m.array() * 2)>, Eigen::ArrayXXf>);
static_assert(std::is_same_v<tensor_of_t<const RowMajor&>, RowMajor>);
static_assert(TensorExpression<Eigen::MatrixXf, float> && !TensorExpression<Eigen::MatrixXf, double>);
static_assert(TensorExpression<decltype(v.tail(1)), float>);
static_assert(!KnownToLockstep<int> && !KnownToLockstep<Eigen::MatrixXf*> &&
              !KnownToLockstep<std::list<float>>);
static_assert(!TensorTraits<Eigen::MatrixXf, float>::contiguous_rows &&
              TensorTraits<RowMajor, float>::contiguous_rows &&
              TensorTraits<Eigen::VectorXf, float>::contiguous_rows &&
              TensorTraits<Eigen::RowVectorXf, float>::contiguous_rows);

}  // namespace

TEST_CASE("eigen: products and reductions are evaluated once into the gradient", "[tensor][eigen]") {
  Variables<float> variables;
  const Eigen::MatrixXf a = Eigen::MatrixXf::Random(5, 3), b = Eigen::MatrixXf::Random(3, 4);
  const auto w = variables.add("w", Eigen::MatrixXf::Zero(5, 4));
  const auto bias = variables.add("bias", Eigen::VectorXf::Zero(5));
  Local local{Sgd{1.0}, variables};
  local.set_gradient(w, a * b);
  local.set_gradient(bias, (a * b).rowwise().sum());
  local.apply_gradients();
  CHECK(local.value(w).isApprox(-(a * b)));
  CHECK(local.value(bias).isApprox(-(a * b).rowwise().sum()));
  int evaluations = 0;
  local.set_gradient(
      w, Eigen::MatrixXf::NullaryExpr(5, 4, [&](Index, Index) { return static_cast<float>(++evaluations); }));
  CHECK(evaluations == 20);
}

TEST_CASE("eigen: the value and the gradient of the step may be read by the expression", "[tensor][eigen]") {
  Variables<float> variables;
  const Eigen::MatrixXf start = Eigen::MatrixXf::Random(4, 4);
  const auto w = variables.add("w", start);
  Local local{Sgd{1.0}, variables};
  local.set_gradient(w, 2 * local.value(w));
  local.set_gradient(w, local.gradient(w) * local.gradient(w));  // a product of what it is written to
  local.set_gradient(w, local.gradient(w) + start);
  local.apply_gradients();
  CHECK(local.value(w).isApprox(-4 * start * start));
}

TEST_CASE("eigen: blocks, strides, transposes and other storage orders", "[tensor][eigen]") {
  std::vector<float> memory(200);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const Eigen::Map<const Eigen::MatrixXf> whole(memory.data(), 10, 20);
  const Eigen::Map<const Eigen::MatrixXf, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>> strided(
      memory.data(), 3, 4, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(40, 2));
  const auto check = [](const auto& expression) {
    const Eigen::MatrixXf expected = expression;
    Variables<float> variables;
    const auto by_columns = variables.add("columns", Eigen::MatrixXf(Eigen::MatrixXf::Zero(3, 4)));
    const auto by_rows = variables.add("rows", RowMajor(RowMajor::Zero(3, 4)));
    const auto added = variables.add("added", expression);
    CHECK(variables.value(added) == expected);
    Local local{Sgd{1.0}, variables};
    local.set_gradient(by_columns, expression);
    local.set_gradient(by_rows, expression);
    local.apply_gradients();
    CHECK(local.value(by_columns) == -expected);
    CHECK(local.value(by_rows) == -expected);
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 4; ++j) {
        CHECK(local.value(by_rows).data()[4 * i + j] == -expected(i, j));
        CHECK(local.value(by_columns).data()[3 * j + i] == -expected(i, j));
      }
  };
  check(whole.block(2, 3, 3, 4));
  check(whole.block(2, 3, 4, 3).transpose());
  check(whole.topLeftCorner<3, 4>());
  check(strided);
  check(whole.block(2, 3, 3, 4).reverse());
  check(whole(Eigen::seq(0, 4, 2), Eigen::seq(1, 7, 2)));
  for (std::size_t i = 0; i < memory.size(); ++i) CHECK(memory[i] == static_cast<float>(i));
}

TEST_CASE("eigen: a transposed gradient for a square or a vector is its transpose, for others an error",
          "[tensor][eigen]") {
  Variables<float> variables;
  const auto w = variables.add("w", Eigen::MatrixXf::Zero(2, 3));
  const auto column = variables.add("column", Eigen::VectorXf::Zero(3));
  Local local{Sgd{1.0}, variables};
  CHECK_THROWS_WITH(local.set_gradient(w, Eigen::MatrixXf::Zero(3, 2)),
                    ContainsSubstring("(2, 3)") && ContainsSubstring("(3, 2)"));
  CHECK_THROWS_WITH(local.set_gradient(column, Eigen::RowVectorXf::Zero(3)),
                    ContainsSubstring("(3, 1)") && ContainsSubstring("(1, 3)"));
  CHECK_THROWS_AS(local.set_gradient(column, Eigen::VectorXf::Zero(4)), ShapeMismatch);
  CHECK_THROWS_AS(local.set_gradient(column, Eigen::VectorXf::Zero(0)), ShapeMismatch);
  CHECK_THROWS_AS(local.apply_gradients(), NoGradients);  // a refused gradient is no gradient
}

TEST_CASE("eigen: parts of a vector are gradients and rows too", "[tensor][eigen]") {
  Variables<float> variables;
  const Eigen::VectorXf g = Eigen::VectorXf::LinSpaced(10, 1, 10);
  const auto w = variables.add("w", g.head(4));
  const auto table = variables.add("table", Eigen::VectorXf::Zero(70));
  Local local{Sgd{1.0}, variables};
  local.set_gradient(w, g.segment(2, 4));
  local.set_rows(table, std::vector{5, 69}, g.tail(2));
  local.apply_gradients();
  CHECK(local.value(w) == Eigen::VectorXf::Constant(4, -2));
  CHECK(local.value(table)[5] == -9);
  CHECK(local.value(table)[69] == -10);
}

TEST_CASE("eigen: rows come from matrices of either order, blocks and expressions", "[tensor][eigen]") {
  const Eigen::MatrixXf m43 = Eigen::MatrixXf::Random(4, 3);
  const RowMajor by_rows = m43;
  const std::vector<int> indices{7, 0, 65, 7};
  RowMajor expected = RowMajor::Zero(66, 3);
  for (int i = 0; i < 4; ++i) expected.row(indices[static_cast<std::size_t>(i)]) -= m43.row(i);
  const auto check = [&](const auto& rows) {
    Variables<float> variables;
    const auto w = variables.add("w", RowMajor(RowMajor::Zero(66, 3)));
    Local local{Sgd{1.0}, variables};
    local.set_rows(w, indices, rows);
    local.apply_gradients();
    CHECK(local.value(w).isApprox(expected));
  };
  Eigen::MatrixXf large = Eigen::MatrixXf::Random(9, 9);
  large.block(2, 3, 4, 3) = m43;
  check(m43);
  check(by_rows);
  check(large.block(2, 3, 4, 3));
  check(m43.transpose().transpose());
  check(0.5F * m43 + 0.5F * m43);
  check(m43.array());
  check(m43.cast<double>());
  check(RowMajor(m43 * Eigen::MatrixXf::Identity(3, 3)));
  check(m43 * Eigen::MatrixXf::Identity(3, 3));
}

TEST_CASE("eigen: rows of another shape are refused with both shapes, and nothing is set",
          "[tensor][eigen]") {
  Variables<float> variables;
  const auto w = variables.add("w", RowMajor(RowMajor::Zero(66, 3)));
  Local local{Sgd{1.0}, variables};
  const std::vector<int> two{1, 2};
  CHECK_THROWS_WITH(local.set_rows(w, two, RowMajor(RowMajor::Zero(3, 2))),
                    ContainsSubstring("(2, 3)") && ContainsSubstring("(3, 2)"));
  CHECK_THROWS_AS(local.set_rows(w, two, RowMajor(RowMajor::Zero(2, 2))), ShapeMismatch);
  CHECK_THROWS_AS(local.set_rows(w, two, RowMajor(RowMajor::Zero(1, 3))), ShapeMismatch);
  CHECK_THROWS_AS(local.set_rows(w, std::vector{1, 66}, RowMajor(RowMajor::Zero(2, 3))), InvalidArgument);
  CHECK_THROWS_WITH(local.set_rows(w, std::vector{-1, 0}, RowMajor(RowMajor::Zero(2, 3))),
                    ContainsSubstring("[0, 66)") && ContainsSubstring("-1"));
  CHECK_THROWS_AS(local.apply_gradients(), NoGradients);
}

TEST_CASE("eigen: fixed sizes need no memory of their own, and their views are fixed too",
          "[tensor][eigen]") {
  Variables<double> variables;
  const auto w = variables.add("w", Eigen::Matrix<double, 2, 3>(Eigen::Matrix<double, 2, 3>::Identity()));
  const auto a = variables.add("a", Eigen::Array3d(1, 2, 3));
  Local local{Sgd{1.0}, variables};
  static_assert(decltype(local.value(w))::RowsAtCompileTime == 2 &&
                decltype(local.gradient(w))::ColsAtCompileTime == 3);
  local.set_gradient(w, Eigen::Matrix2d::Identity() * Eigen::Matrix<double, 2, 3>::Ones());
  local.gradient(a) = local.value(a) * local.value(a);
  local.apply_gradients();
  CHECK(local.value(w)(0, 1) == -1);
  CHECK((local.value(a) == Eigen::Array3d(0, -2, -6)).all());
  CHECK_THROWS_AS(local.set_gradient(w, Eigen::MatrixXd::Zero(3, 2)), ShapeMismatch);
}

TEST_CASE("eigen: temporaries may die before the step", "[tensor][eigen]") {
  Variables<float> variables;
  const auto make = [](float value) { return Eigen::VectorXf(Eigen::VectorXf::Constant(1000, value)); };
  const auto w = variables.add("w", make(1) + make(2));  // an expression over two temporaries
  const auto rows = variables.add("rows", RowMajor(RowMajor::Zero(5, 2)));
  Local local{Sgd{1.0}, variables};
  {
    const Eigen::VectorXf gone = make(4);
    local.set_gradient(w, gone + make(1));
    local.set_rows(rows, std::vector<int>{4}, RowMajor(RowMajor::Ones(1, 2)));
  }
  local.apply_gradients();
  CHECK(local.value(w) == Eigen::VectorXf::Constant(1000, -2));
  CHECK(local.value(rows)(4, 1) == -1);
}

TEST_CASE("eigen: gradients of another scalar are converted once", "[tensor][eigen]") {
  Variables<float> variables;
  const auto w = variables.add("w", Eigen::VectorXf::Zero(20));
  Local local{Sgd{1.0}, variables};
  local.set_gradient(w, Eigen::VectorXd::Constant(20, 0.1) * 3);
  local.apply_gradients();
  CHECK(local.value(w)[19] == -static_cast<float>(0.1 * 3));
  local.set_gradient(w, Eigen::VectorXi::Constant(20, 2));
  local.apply_gradients();
  CHECK(local.value(w)[0] == -static_cast<float>(0.1 * 3) - 2);
}

TEST_CASE("eigen: simple expressions are set without an allocation", "[tensor][eigen]") {
  Variables<float> variables;
  const auto w = variables.add("w", Eigen::MatrixXf::Zero(20, 30));
  const auto rows = variables.add("rows", RowMajor(RowMajor::Zero(50, 8)));
  Local local{Sgd{1.0}, variables};
  const Eigen::MatrixXf g = Eigen::MatrixXf::Random(20, 30);
  const std::array<int, 2> indices{3, 4};
  const RowMajor values = RowMajor::Ones(2, 8);
  local.set_gradient(w, g);
  local.set_rows(rows, indices, values);
  local.apply_gradients();  // the first step reserves
  const auto before = lockstep::test::allocations();
  local.set_gradient(w, 2 * g - local.value(w));
  local.set_rows(rows, indices, values);
  local.apply_gradients();
  CHECK(lockstep::test::allocations() == before);
}
