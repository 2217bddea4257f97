// SPDX-License-Identifier: MIT
// The battery of typed_test.cpp over xtensor.
#if __has_include(<xtensor/xtensor.hpp>) || __has_include(<xtensor/containers/xtensor.hpp>)

#include "unit/tensor/battery.hpp"
#include <lockstep/tensor/xtensor.hpp>

#include <tuple>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// @tparam X xt::xtensor<T, N>, or xt::xarray<T>.
template <class X, Index... extents>
struct XtensorKind {
  using T = typename X::value_type;
  static constexpr std::array<Index, sizeof...(extents)> k_shape_text{extents...};
  static constexpr Index k_size = (Index{1} * ... * extents);
  static constexpr Index k_row_count = std::get<0>(std::tuple{extents...});
  static constexpr Index k_row_size = k_size / k_row_count;
  static constexpr bool k_rows = false;  // rows of xtensor variables come from plain memory: see below
  template <class F>
  static X make(F f) {
    X x = X::from_shape({static_cast<std::size_t>(extents)...});
    for (Index i = 0; i < k_size; ++i) x.data()[i] = f(i);
    return x;
  }
  static X other() {
    std::array<std::size_t, sizeof...(extents)> shape{static_cast<std::size_t>(extents)...};
    shape.front() += 1;
    X x = X::from_shape(typename X::shape_type(shape.begin(), shape.end()));
    x.fill(T(0));
    return x;
  }
  static T element(const auto& view, Index i) { return view.data()[i]; }
  static auto twice(const auto& view) { return view + view; }
};

using XtensorKinds = std::tuple<XtensorKind<xt::xarray<double>, 5>, XtensorKind<xt::xarray<float>, 3, 4>,
                                XtensorKind<xt::xarray<float>, 2, 3, 2, 5>>;

/// The same with a fixed number of dimensions, whose shape type is an array.
template <class T_, std::size_t N, Index... extents>
struct FixedKind : XtensorKind<xt::xarray<T_>, extents...> {
  using T = T_;
  using X = xt::xtensor<T, N>;
  template <class F>
  static X make(F f) {
    return X(XtensorKind<xt::xarray<T>, extents...>::make(f));
  }
  static X other() { return X(XtensorKind<xt::xarray<T>, extents...>::other()); }
};
using FixedKinds =
    std::tuple<FixedKind<float, 1, 17>, FixedKind<double, 2, 3, 4>, FixedKind<float, 3, 2, 3, 5>>;

}  // namespace

TEMPLATE_LIST_TEST_CASE("tensors: xarray passes the battery", "[tensor][typed][xtensor]", XtensorKinds) {
  tensor_battery<TestType>();
}

TEMPLATE_LIST_TEST_CASE("tensors: xtensor passes the battery", "[tensor][typed][xtensor]", FixedKinds) {
  tensor_battery<TestType>();
}

TEST_CASE("tensors: rows of an xtensor variable", "[tensor][typed][xtensor]") {
  Variables<float> variables;
  const auto w = variables.add("w", xt::xtensor<float, 2>::from_shape({70, 3}));
  Local local{Sgd{1.0}, variables};
  local.set_gradient(w, local.value(w));
  local.apply_gradients();
  const xt::xtensor<float, 2> rows{{1, 2, 3}, {10, 20, 30}};
  local.set_rows(w, std::vector<int>{64, 69}, rows);
  local.set_rows(w, std::vector<int>{69, 0}, 2 * rows);
  local.apply_gradients();
  const float* value = local.value(w).data();
  CHECK(value[64 * 3 + 2] == -3);
  CHECK(value[69 * 3 + 1] == -20 - 4);
  CHECK(value[0] == -20);
  CHECK(value[3] == 0);
  CHECK_THROWS_AS(local.set_rows(w, std::vector<int>{1}, rows), ShapeMismatch);
}

#endif
