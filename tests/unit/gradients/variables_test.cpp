// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/gradients/variables.hpp>

#include <array>
#include <optional>
#include <type_traits>
#include <utility>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

static_assert(!std::is_copy_constructible_v<Variables<>> && !std::is_copy_assignable_v<Variables<>>);
static_assert(std::is_same_v<Variables<double>::GradientScalar, double>);
static_assert(std::is_same_v<Variables<float, Eigen::half>::GradientScalar, Eigen::half>);

TEMPLATE_TEST_CASE("variables: earlier values survive every later add", "[gradients][variables]", float,
                   double) {
  using Vector = Eigen::Matrix<TestType, Eigen::Dynamic, 1>;
  Variables<TestType> variables;
  std::vector<Handle<Vector, TestType>> handles;
  for (const Index size : k_sizes)
    handles.push_back(
        variables.add("v" + std::to_string(size),
                      Vector::LinSpaced(size, static_cast<TestType>(size), static_cast<TestType>(2 * size))));
  std::size_t i = 0;
  for (const Index size : k_sizes) {
    const auto value = variables.value(handles[i]);
    CHECK(value.size() == size);
    CHECK(value == Vector::LinSpaced(size, static_cast<TestType>(size), static_cast<TestType>(2 * size)));
    CHECK(reinterpret_cast<std::uintptr_t>(value.data()) % k_alignment == 0);
    CHECK(variables.infos()[i].size == size);
    ++i;
  }
  const Layout& layout = variables.layout();
  bool zero = true;
  for (const VariableInfo& info : layout.infos())
    for (Index at = info.offset + info.size; at < layout.end_of(info.id); ++at)
      zero = zero && variables.flat()[static_cast<std::size_t>(at)] == 0;
  CHECK(zero);
  CHECK(static_cast<Index>(variables.flat().size()) == layout.size());
}

TEST_CASE("variables: assign overwrites the values and checks the shape", "[gradients][variables]") {
  Variables<float> variables;
  const auto w = variables.add("kernel", Eigen::MatrixXf::Zero(2, 3));
  Eigen::MatrixXf value(2, 3);
  value << 1, 2, 3, 4, 5, 6;
  variables.assign(w, value);
  CHECK(variables.value(w) == value);
  variables.assign(w, 2 * variables.value(w));
  CHECK(variables.value(w) == 2 * value);
  CHECK_THROWS_WITH(variables.assign(w, Eigen::MatrixXf::Zero(3, 2)), ContainsSubstring("'kernel'") &&
                                                                          ContainsSubstring("(2, 3)") &&
                                                                          ContainsSubstring("(3, 2)"));
  CHECK(variables.value(w) == 2 * value);
}

TEST_CASE("variables: a refused add changes nothing", "[gradients][variables]") {
  Variables<float> variables;
  const auto w = variables.add("w", std::array{1.0F, 2.0F});
  CHECK_THROWS_AS(variables.add("w", std::array{3.0F}), InvalidArgument);
  CHECK_THROWS_AS(variables.add("empty", Eigen::VectorXf(0)), InvalidArgument);
  CHECK(variables.infos().size() == 1);
  CHECK(variables.value(w)[1] == 2);
}

TEST_CASE("variables: handles of another set are refused", "[gradients][variables]") {
  Variables<float> variables, others;
  const auto w = variables.add("w", Eigen::VectorXf::Ones(3));
  const auto other = others.add("w", Eigen::VectorXf::Zero(3));
  CHECK_THROWS_WITH(variables.value(other), ContainsSubstring("another set"));
  CHECK_THROWS_AS(variables.assign(other, Eigen::VectorXf::Zero(3)), UnknownVariable);
  CHECK_THROWS_WITH(variables.value(Handle<Eigen::VectorXf, float>{}),
                    ContainsSubstring("never returned by add()"));
  CHECK(variables.value(w)[0] == 1);
}

TEST_CASE("variables: a bound set takes no additions, values or second trainer", "[gradients][variables]") {
  Variables<float> variables;
  CHECK_THROWS_AS(Binding(variables), InvalidArgument);  // nothing to train
  const auto w = variables.add("w", Eigen::VectorXf::Ones(3));
  {
    std::optional<Binding<float, float>> first(std::in_place, variables);
    CHECK_THROWS_AS(Binding(variables), UsageError);
    CHECK_THROWS_WITH(variables.add("late", Eigen::VectorXf::Ones(1)), ContainsSubstring("'late'"));
    CHECK_THROWS_AS(variables.assign(w, Eigen::VectorXf::Zero(3)), UsageError);
    const Binding second(std::move(*first));
    first.reset();  // gives nothing back: it was moved from
    CHECK_THROWS_AS(Binding(variables), UsageError);
    CHECK(second->value(w)[0] == 1);
    CHECK(&*second == &variables);
  }
  CHECK_NOTHROW(Binding(variables));
  CHECK_NOTHROW(variables.assign(w, Eigen::VectorXf::Zero(3)));
  CHECK_NOTHROW(variables.add("late", Eigen::VectorXf::Ones(1)));
}
