// SPDX-License-Identifier: MIT
// One battery over every tensor kind that needs no opt-in header. xtensor: typed_xtensor_test.cpp.
#include "unit/tensor/battery.hpp"

#include <Eigen/Core>

#include <numeric>
#include <tuple>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// @tparam M a plain Eigen type; rows and columns are those of the variable.
template <class M, int rows_, int columns, bool rows_are_contiguous>
struct EigenKind {
  using T = typename M::Scalar;
  static constexpr bool k_rows = rows_are_contiguous;
  static constexpr bool k_vector = M::IsVectorAtCompileTime;
  static constexpr Index k_row_count = k_vector ? rows_ * columns : rows_,
                         k_row_size = k_vector ? 1 : columns;
  static constexpr std::array<Index, 2> k_shape_text{rows_, columns};

  template <class F>
  static M make(F f) {
    M made(rows_, columns);
    for (Index i = 0; i < made.size(); ++i) made(i / columns, i % columns) = f(i);
    return made;
  }
  static auto other() {
    return Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>(
        Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>::Zero(rows_ + 1, columns));
  }
  static T element(const auto& view, Index i) { return view(i / columns, i % columns); }
  static auto twice(const auto& view) { return view + view; }
  static auto rows(int first, int second) {
    Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic> two(2, k_row_size);
    for (Index j = 0; j < k_row_size; ++j) {
      two(0, j) = static_cast<T>(first == 0 ? 0 : first < 0 ? first - j : first + j);
      two(1, j) = static_cast<T>(second == 0 ? 0 : second < 0 ? second - j : second + j);
    }
    return two;
  }
};

template <class T>
std::vector<T> two_rows(Index size, int first, int second) {
  std::vector<T> rows;
  for (const int start : {first, second})
    for (Index j = 0; j < size; ++j)
      rows.push_back(static_cast<T>(start == 0 ? 0 : start < 0 ? start - j : start + j));
  return rows;
}

template <class Range, Index size>
struct FlatKind {
  using T = std::remove_const_t<typename Range::value_type>;
  static constexpr bool k_rows = true;
  static constexpr Index k_row_count = size, k_row_size = 1;
  static constexpr std::array<Index, 1> k_shape_text{size};
  template <class F>
  static Range make(F f) {
    Range range{};
    if constexpr (requires { range.resize(std::size_t{}); }) range.resize(static_cast<std::size_t>(size));
    for (Index i = 0; i < size; ++i) range[static_cast<std::size_t>(i)] = f(i);
    return range;
  }
  static std::vector<T> other() { return std::vector<T>(static_cast<std::size_t>(size) + 1); }
  static T element(const auto& view, Index i) { return view[static_cast<std::size_t>(i)]; }
  static std::vector<T> twice(const auto& view) {
    std::vector<T> doubled(view.begin(), view.end());
    for (T& value : doubled) value *= 2;
    return doubled;
  }
  static std::vector<T> rows(int first, int second) { return two_rows<T>(1, first, second); }
};

/// An NdSpan over memory that lives as long as the tests.
template <class Scalar, Index... extents>
struct NdKind {
  using T = Scalar;
  static constexpr std::array<Index, sizeof...(extents)> k_shape_text{extents...};
  static constexpr Index k_size = (Index{1} * ... * extents);
  static constexpr Index k_row_count =
      sizeof...(extents) == 0 ? 1 : std::get<0>(std::tuple{extents..., Index{1}});
  static constexpr Index k_row_size = k_size / k_row_count;
  static constexpr bool k_rows = true;
  static std::vector<T>& memory(std::size_t size) {
    static std::vector<std::unique_ptr<std::vector<T>>> kept;
    return *kept.emplace_back(std::make_unique<std::vector<T>>(size));
  }
  template <class F>
  static NdSpan<const T> make(F f) {
    auto& values = memory(static_cast<std::size_t>(k_size));
    for (Index i = 0; i < k_size; ++i) values[static_cast<std::size_t>(i)] = f(i);
    return {values, {extents...}};
  }
  static NdSpan<const T> other() { return {memory(static_cast<std::size_t>(k_size)), {extents..., 1}}; }
  static T element(const auto& view, Index i) { return view[static_cast<std::size_t>(i)]; }
  static NdSpan<T> twice(const auto& view) {
    auto& doubled = memory(view.size());
    std::transform(view.begin(), view.end(), doubled.begin(), [](T value) { return 2 * value; });
    return {doubled, view.shape};
  }
  static std::vector<T> rows(int first, int second) { return two_rows<T>(k_row_size, first, second); }
};

using Eigen::Dynamic;
using Kinds =
    std::tuple<EigenKind<Eigen::MatrixXf, 5, 7, false>, EigenKind<Eigen::MatrixXf, 16, 16, false>,
               EigenKind<Eigen::VectorXd, 17, 1, true>, EigenKind<Eigen::RowVectorXf, 1, 33, true>,
               EigenKind<Eigen::Matrix<float, Dynamic, Dynamic, Eigen::RowMajor>, 66, 3, true>,
               EigenKind<Eigen::Matrix<double, Dynamic, Dynamic, Eigen::RowMajor>, 3, 1, true>,
               EigenKind<Eigen::Matrix<float, 4, 4>, 4, 4, false>,
               EigenKind<Eigen::Matrix<double, 3, 5, Eigen::RowMajor>, 3, 5, true>,
               EigenKind<Eigen::Matrix<float, 1, 1>, 1, 1, true>, FlatKind<std::vector<float>, 70>,
               FlatKind<std::vector<double>, 1>, FlatKind<std::array<float, 16>, 16>, NdKind<float>,
               NdKind<double, 5>, NdKind<float, 3, 4>, NdKind<double, 2, 3, 4>, NdKind<float, 65, 1, 2, 2>>;
using ArrayKinds = std::tuple<EigenKind<Eigen::ArrayXXf, 5, 7, false>, EigenKind<Eigen::ArrayXd, 17, 1, true>,
                              EigenKind<Eigen::Array<float, Dynamic, Dynamic, Eigen::RowMajor>, 66, 3, true>>;

}  // namespace

TEMPLATE_LIST_TEST_CASE("tensors: every kind is a variable, a value, a gradient and rows", "[tensor][typed]",
                        Kinds) {
  tensor_battery<TestType>();
}

TEMPLATE_LIST_TEST_CASE("tensors: arrays of Eigen are tensors too", "[tensor][typed]", ArrayKinds) {
  tensor_battery<TestType>();
}
