// SPDX-License-Identifier: MIT
/// @file
/// What every tensor kind must do, for typed tests. A kind says how one tensor is made and read:
/// `T`; `make(f)`, whose element number i in row-major order is `f(i)`; `other()`, of another shape;
/// `element(view, i)`; `twice(view)`, an expression; and, if `k_rows`, `rows(first, second)`: two rows, and
/// `k_row_size`, `k_row_count`.
#pragma once

#include "support/catch.hpp"
#include <lockstep/optimizers/local.hpp>
#include <lockstep/optimizers/optimizers.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::test {

template <class Kind>
void tensor_battery() {
  using T = typename Kind::T;
  const auto count_up = [](Index i) { return static_cast<T>(i + 1); };
  Variables<T> variables;
  const auto before = variables.add("before", std::array<T, 1>{T(5)});
  const auto w = variables.add("w", Kind::make(count_up));
  const auto behind = variables.add("behind", std::array<T, 1>{T(6)});
  const VariableInfo& info = variables.infos()[1];
  const Layout& layout = variables.layout();
  using M = typename std::remove_cvref_t<decltype(w)>;
  static_assert(std::regular<decltype(M::shape)>);

  // Size, place and row-major shape; what lies beside is not touched by anything below.
  Index size = 1;
  for (const Index extent : info.shape) size *= extent;
  REQUIRE(size == info.size);
  const auto surroundings_hold = [&] {
    for (Index i = info.offset + info.size; i < layout.end_of(1); ++i)
      if (variables.flat()[static_cast<std::size_t>(i)] != 0) return false;
    return variables.value(before)[0] == 5 && variables.value(behind)[0] == 6;
  };
  const auto all = [&](const auto& view, auto expected) {
    for (Index i = 0; i < size; ++i)
      if (Kind::element(view, i) != static_cast<T>(expected(i))) return false;
    return true;
  };
  CHECK(all(variables.value(w), count_up));
  CHECK(surroundings_hold());

  {
    Local<Sgd, T> local(Sgd{1.0}, variables);
    // The view is the variable itself, aligned, and the handle is a value.
    CHECK(local.value(w).data() == variables.flat().data() + info.offset);
    CHECK(reinterpret_cast<std::uintptr_t>(local.value(w).data()) % k_alignment == 0);
    const auto copy = w;
    CHECK(local.value(copy).data() == local.value(w).data());

    // A gradient from a tensor, from an expression, and written in place.
    local.set_gradient(w, Kind::make(count_up));
    local.apply_gradients();
    CHECK(all(local.value(w), [](Index) { return 0; }));
    local.set_gradient(w, Kind::make([](Index i) { return static_cast<T>(-i); }));
    local.apply_gradients();
    CHECK(all(local.value(w), [](Index i) { return i; }));
    local.set_gradient(w, Kind::twice(local.value(w)));
    local.apply_gradients();
    CHECK(all(local.value(w), [](Index i) { return -i; }));
    auto gradient = local.gradient(w);
    for (Index i = 0; i < size; ++i) gradient.data()[i] = T(-1);
    local.apply_gradients();
    CHECK(all(local.value(w), [](Index i) { return 1 - i; }));
    CHECK(surroundings_hold());

    // Setting again replaces; another shape is refused with the name and nothing is set.
    local.set_gradient(w, Kind::make([](Index) { return T(100); }));
    local.set_gradient(w, Kind::make([](Index) { return T(1); }));
    local.apply_gradients();
    CHECK(all(local.value(w), [](Index i) { return -i; }));
    CHECK_THROWS_AS(local.set_gradient(w, Kind::other()), ShapeMismatch);
    CHECK_THROWS_WITH(local.set_gradient(w, Kind::other()),
                      Catch::Matchers::ContainsSubstring("'w'") &&
                          Catch::Matchers::ContainsSubstring(detail::shape_text(Kind::k_shape_text)));
    CHECK_THROWS_AS(local.apply_gradients(), NoGradients);
    CHECK(surroundings_hold());

    if constexpr (Kind::k_rows) {
      const auto check_rows = [&](const auto& indices, Index first, Index second) {
        const auto expected = [&](Index i) {
          const Index row = i / Kind::k_row_size, column = i % Kind::k_row_size;
          return -i - (row == first ? 10 + column : 0) - (row == second ? 20 + column : 0);
        };
        local.set_rows(w, indices, Kind::rows(10, 20));
        local.apply_gradients();
        CHECK(all(local.value(w), expected));
        local.set_rows(w, indices, Kind::rows(-10, -20));
        local.set_rows(w, indices, Kind::rows(0, 0));
        local.apply_gradients();
        local.set_gradient(
            w, Kind::make([&](Index i) { return static_cast<T>(i) + Kind::element(local.value(w), i); }));
        local.apply_gradients();
        CHECK(all(local.value(w), [](Index i) { return -i; }));
      };
      constexpr Index last = Kind::k_row_count - 1;
      check_rows(std::vector<int>{0, static_cast<int>(last)}, 0, last);
      check_rows(std::vector<std::size_t>{static_cast<std::size_t>(last), 0}, last, 0);
      check_rows(std::array<std::uint8_t, 2>{0, 0}, 0, 0);
      const std::int64_t indices[] = {last, last};
      check_rows(std::span(indices), last, last);
      Eigen::VectorXi of_eigen(2);
      of_eigen << 0, static_cast<int>(last);
      check_rows(of_eigen, 0, last);
      CHECK_THROWS_AS(local.set_rows(w, std::vector<Index>{0, last + 1}, Kind::rows(1, 1)), InvalidArgument);
      CHECK_THROWS_AS(local.set_rows(w, std::vector<Index>{0, 0, 0}, Kind::rows(1, 1)), ShapeMismatch);
      CHECK(surroundings_hold());
    }
  }
  variables.assign(w, Kind::make(count_up));
  CHECK(all(variables.value(w), count_up));
  CHECK_THROWS_AS(variables.assign(w, Kind::other()), ShapeMismatch);
  CHECK(surroundings_hold());
}

}  // namespace lockstep::test
