// SPDX-License-Identifier: MIT
#if __has_include(<xtensor/xtensor.hpp>) || __has_include(<xtensor/containers/xtensor.hpp>)

#include <lockstep/gradients/variables.hpp>
#include <lockstep/tensor/xtensor.hpp>

#include <Eigen/Core>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <vector>

#if __has_include(<xtensor/views/xview.hpp>)
#include <xtensor/generators/xbuilder.hpp>
#include <xtensor/misc/xmanipulation.hpp>
#include <xtensor/views/xview.hpp>
#else
#include <xtensor/xbuilder.hpp>
#include <xtensor/xmanipulation.hpp>
#include <xtensor/xview.hpp>
#endif

#include "support/allocations.hpp"
#include "support/catch.hpp"

using namespace lockstep;

namespace {

using Matrix = xt::xtensor<float, 2>;
using Traits = TensorTraits<Matrix, float>;
using Array = xt::xarray<float>;
using ArrayTraits = TensorTraits<Array, float>;

template <class E>
concept HasTensorTraits = requires {
  typename tensor_of_t<E>;
};

static_assert(std::is_same_v<tensor_of_t<Matrix>, Matrix>);
static_assert(std::is_same_v<tensor_of_t<const Matrix&>, Matrix>);
static_assert(std::is_same_v<tensor_of_t<Array>, Array>);
static_assert(
    std::is_same_v<tensor_of_t<decltype(std::declval<Matrix&>() + std::declval<Matrix&>())>, Matrix>);
static_assert(std::is_same_v<tensor_of_t<decltype(std::declval<Matrix&>() + std::declval<Array&>())>, Array>);
static_assert(std::is_same_v<tensor_of_t<xt::xtensor<float, 2, xt::layout_type::column_major>>, Matrix>);
static_assert(std::is_same_v<tensor_of_t<Traits::View>, Matrix> &&
              std::is_same_v<tensor_of_t<Traits::ConstView>, Matrix>);
static_assert(TensorExpression<Matrix, float> && !TensorExpression<Matrix, double>);
static_assert(!HasTensorTraits<int>);
static_assert(std::is_same_v<typename Traits::ConstView::reference, const float&>);

/// Outside of CHECK, because xtensor's operators take Catch2's expressions for scalars.
bool same_values(const auto& a, const auto& b) { return a == b; }

}  // namespace

TEST_CASE("xtensor: variables of one to five dimensions keep shape and row-major order",
          "[tensor][xtensor]") {
  Variables<float> variables;
  const auto vector = variables.add("vector", xt::xtensor<float, 1>{1, 2, 3});
  const auto matrix = variables.add("matrix", Matrix{{1, 2, 3}, {4, 5, 6}});
  Array cube = xt::arange<float>(120).reshape({1, 2, 3, 4, 5});
  const auto array = variables.add("array", cube);

  CHECK(variables.infos()[0].shape == std::vector<Index>{3});
  CHECK(variables.infos()[1].shape == std::vector<Index>{2, 3});
  CHECK(variables.infos()[2].shape == std::vector<Index>{1, 2, 3, 4, 5});
  CHECK(same_values(variables.value(vector), xt::xtensor<float, 1>{1, 2, 3}));
  CHECK(same_values(variables.value(matrix), Matrix{{1, 2, 3}, {4, 5, 6}}));
  CHECK(same_values(variables.value(array), cube));
  CHECK(variables.value(matrix).data() == variables.flat().data() + variables.infos()[1].offset);
  CHECK(variables.flat()[static_cast<std::size_t>(variables.infos()[1].offset) + 3] == 4);
}

TEST_CASE("xtensor: expressions and other layouts are evaluated into row-major memory", "[tensor][xtensor]") {
  Variables<float> variables;
  const Matrix a{{1, 2, 3}, {4, 5, 6}};
  const xt::xtensor<float, 2, xt::layout_type::column_major> by_columns = a;
  CHECK(same_values(variables.value(variables.add("sum", a + a)), Matrix{{2, 4, 6}, {8, 10, 12}}));
  CHECK(same_values(variables.value(variables.add("columns", by_columns)), a));
  CHECK(same_values(variables.value(variables.add("transposed", xt::transpose(a))),
                    Matrix{{1, 4}, {2, 5}, {3, 6}}));
  CHECK(same_values(variables.value(variables.add("part", xt::view(a, xt::all(), xt::range(1, 3)))),
                    Matrix{{2, 3}, {5, 6}}));
  CHECK(same_values(variables.value(variables.add("ones", xt::ones<float>({2, 2}))), Matrix{{1, 1}, {1, 1}}));
}

TEST_CASE("xtensor: assigning one view to another copies elements", "[tensor][xtensor]") {
  alignas(k_alignment) std::array<float, 16> from{1, 2, 3, 4}, to{};
  const Traits::Shape shape{2, 2};
  const auto source = Traits::view(from.data(), shape);
  Traits::assign(to.data(), shape, source);
  CHECK(to == from);

  to = {};
  ArrayTraits::assign(to.data(), shape, ArrayTraits::view(from.data(), shape));
  CHECK(to == from);
}

TEST_CASE("xtensor: views outlive the pointer variable they were made from", "[tensor][xtensor]") {
  alignas(k_alignment) std::array<float, 16> memory{1, 2, 3, 4};
  const auto make = [&] {
    float* local = memory.data();
    return Traits::view(local, Traits::Shape{2, 2});
  };
  auto view = make();
  view(1, 1) = 9;
  CHECK(memory[3] == 9);
  CHECK(view.data() == memory.data());
}

TEST_CASE("xtensor: another shape is refused with both shapes", "[tensor][xtensor]") {
  Variables<float> variables;
  const auto matrix = variables.add("kernel", Matrix{{1, 2, 3}, {4, 5, 6}});
  CHECK_THROWS_AS(variables.assign(matrix, Matrix{{1, 2}, {3, 4}}), ShapeMismatch);
  CHECK_THROWS_WITH(variables.assign(matrix, Matrix{{1, 2}, {3, 4}}),
                    Catch::Matchers::ContainsSubstring("'kernel': expected shape (2, 3), got (2, 2)"));
  CHECK_THROWS_WITH(variables.assign(matrix, xt::xtensor<float, 1>{1, 2, 3}),
                    Catch::Matchers::ContainsSubstring("expected shape (2, 3), got (3)"));
  CHECK_THROWS_AS(variables.assign(matrix, xt::xtensor<float, 3>::from_shape({1, 2, 3})), ShapeMismatch);
  CHECK(same_values(variables.value(matrix), Matrix{{1, 2, 3}, {4, 5, 6}}));
}

TEST_CASE("xtensor: an array of unknown dimensions fits where its shape does", "[tensor][xtensor]") {
  Variables<float> variables;
  const auto matrix = variables.add("kernel", Matrix{{1, 2}, {3, 4}});
  variables.assign(matrix, Array{{5, 6}, {7, 8}});
  CHECK(same_values(variables.value(matrix), Matrix{{5, 6}, {7, 8}}));
  CHECK_THROWS_AS(variables.assign(matrix, Array{5, 6, 7, 8}), ShapeMismatch);
}

TEST_CASE("xtensor: expressions of another scalar are rounded to the variable's", "[tensor][xtensor]") {
  Variables<float> variables;
  const Matrix a{{1, 2}, {3, 4}};
  const auto matrix = variables.add("kernel", a);
  variables.assign(matrix, 0.1 * a);  // double, as xtensor's rules say
  CHECK(variables.value(matrix)(1, 1) == static_cast<float>(0.1 * 4.0));
}

TEMPLATE_TEST_CASE("xtensor: gradients in a narrower type", "[tensor][xtensor]", Eigen::half,
                   Eigen::bfloat16) {
  alignas(k_alignment) std::array<TestType, 32> memory;
  const Traits::Shape shape{2, 2};
  Traits::assign(memory.data(), shape, Matrix{{1, 0.5F}, {-2, 0.1F}});
  CHECK(static_cast<float>(memory[1]) == 0.5F);
  CHECK(static_cast<float>(memory[2]) == -2);
  CHECK(memory[3] == static_cast<TestType>(0.1F));
  auto view = Traits::gradient_view(memory.data(), shape);
  view(0, 0) = static_cast<TestType>(3.0F);
  CHECK(static_cast<float>(memory[0]) == 3);
}

TEST_CASE("xtensor: checking a shape and assigning allocate nothing", "[tensor][xtensor]") {
  alignas(k_alignment) std::array<float, 32> memory{};
  const Matrix a{{1, 2, 3}, {4, 5, 6}}, b{{1, 1, 1}, {2, 2, 2}};
  const Array c = a, d = b;
  const Traits::Shape shape{2, 3};
  const auto expression = a * b + a;
  const auto dynamic_expression = c * d + c;
  const auto transposed = xt::transpose(a);
  const Traits::Shape transposed_shape{3, 2};

  const auto before = lockstep::test::allocations();
  detail::expect_shape(shape, Traits::shape_of(expression), "kernel", "gradient");
  Traits::assign(memory.data(), shape, expression);
  Traits::assign(memory.data(), shape, Traits::view(memory.data(), shape));
  Traits::assign(memory.data(), transposed_shape, transposed);
  detail::expect_shape(shape, ArrayTraits::shape_of(dynamic_expression), "kernel", "gradient");
  ArrayTraits::assign(memory.data(), shape, dynamic_expression);
  CHECK(lockstep::test::allocations() == before);
  CHECK(memory[5] == 18);
}

#endif
