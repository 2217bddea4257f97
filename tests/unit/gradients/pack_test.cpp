// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include <lockstep/gradients/pack.hpp>
#include <lockstep/optimizers/rule.hpp>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

using namespace lockstep;

namespace {

template <class T>
using Register = Pack<T, detail::BestPacket<T>>;
template <class T>
constexpr std::size_t k_width = sizeof(Register<T>) / sizeof(T);

/// Values of every kind, a multiple of every register width.
template <class T>
std::vector<T> values() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> all{T(0),
                     -T(0),
                     T(1),
                     T(-1),
                     Limits::min(),
                     -Limits::min(),
                     Limits::max(),
                     T(-3.25),
                     T(1e-3),
                     Limits::denorm_min(),
                     T(2),
                     T(0.1),
                     Limits::infinity(),
                     Limits::epsilon(),
                     T(7) / T(3),
                     T(-1) / T(3)};
  for (int i = 1; all.size() < 256; ++i)
    all.push_back(static_cast<T>(std::ldexp(1.0 + i / 300.0, i % 40 - 20)));
  return all;
}

/// The same operation by registers and by elements, compared with `expected` bit for bit.
template <class T, class Operation, class Expected>
bool agrees(Operation operation, Expected expected) {
  const std::vector<T> a = values<T>();
  std::vector<T> b(a.rbegin(), a.rend()), by_register(a.size()), by_element(a.size()), wanted(a.size());
  for (std::size_t i = 0; i < a.size(); i += k_width<T>)
    operation(Register<T>::load(&a[i]), Register<T>::load(&b[i])).store(&by_register[i]);
  for (std::size_t i = 0; i < a.size(); ++i) {
    operation(Pack<T>::load(&a[i]), Pack<T>::load(&b[i])).store(&by_element[i]);
    wanted[i] = expected(a[i], b[i]);
  }
  const auto same = [](const std::vector<T>& x, const std::vector<T>& y) {
    for (std::size_t i = 0; i < x.size(); ++i)  // any NaN is as good as another
      if (std::memcmp(&x[i], &y[i], sizeof(T)) != 0 && !(std::isnan(x[i]) && std::isnan(y[i]))) return false;
    return true;
  };
  return same(by_register, wanted) && same(by_element, wanted);
}

}  // namespace

TEMPLATE_TEST_CASE("Pack: arithmetic is that of the scalar type", "[gradients][pack]", float, double) {
  using T = TestType;
  CHECK(agrees<T>([](auto a, auto b) { return a + b; }, [](T a, T b) { return a + b; }));
  CHECK(agrees<T>([](auto a, auto b) { return a - b; }, [](T a, T b) { return a - b; }));
  CHECK(agrees<T>([](auto a, auto b) { return a * b; }, [](T a, T b) { return a * b; }));
  CHECK(agrees<T>([](auto a, auto b) { return a / b; }, [](T a, T b) { return a / b; }));
  CHECK(agrees<T>([](auto a, auto) { return -a; }, [](T a, T) { return -a; }));
  CHECK(agrees<T>([](auto a, auto) { return square(a); }, [](T a, T) { return a * a; }));
  CHECK(agrees<T>([](auto a, auto) { return abs(a); }, [](T a, T) { return std::abs(a); }));
  CHECK(agrees<T>([](auto a, auto) { return sign(a); },
                  [](T a, T) { return static_cast<T>((a > 0) - (a < 0)); }));
}

TEMPLATE_TEST_CASE("Pack: the square root is correctly rounded", "[gradients][pack]", float, double) {
  using T = TestType;
  CHECK(agrees<T>([](auto a, auto) { return sqrt(abs(a)); }, [](T a, T) { return std::sqrt(std::abs(a)); }));
}

TEMPLATE_TEST_CASE("Pack: a product is rounded before it is added", "[gradients][pack]", float, double) {
  using T = TestType;
  CHECK(agrees<T>([](auto a, auto b) { return a * b + a; },
                  [](T a, T b) {
                    volatile T product = a * b;
                    return product + a;
                  }));
}

TEMPLATE_TEST_CASE("Pack: min and max of numbers", "[gradients][pack]", float, double) {
  using T = TestType;
  // Which zero wins is not promised: shift zeros away by a sum.
  CHECK(agrees<T>([](auto a, auto b) { return min(a, b) + T(1); },
                  [](T a, T b) { return std::min(a, b) + T(1); }));
  CHECK(agrees<T>([](auto a, auto b) { return max(a, b) + T(1); },
                  [](T a, T b) { return std::max(a, b) + T(1); }));
}

TEMPLATE_TEST_CASE("Pack: compound assignment equals the operation", "[gradients][pack]", float, double) {
  using T = TestType;
  CHECK(agrees<T>([](auto a, auto b) { return a += b; }, [](T a, T b) { return a + b; }));
  CHECK(agrees<T>([](auto a, auto b) { return a -= b; }, [](T a, T b) { return a - b; }));
  CHECK(agrees<T>([](auto a, auto b) { return a *= b; }, [](T a, T b) { return a * b; }));
  CHECK(agrees<T>([](auto a, auto b) { return a /= b; }, [](T a, T b) { return a / b; }));
}

TEMPLATE_TEST_CASE("Pack: scalars on either side are rounded to the scalar type first", "[gradients][pack]",
                   float, double) {
  using T = TestType;
  CHECK(agrees<T>([](auto a, auto) { return 0.1 * a; }, [](T a, T) { return static_cast<T>(0.1) * a; }));
  CHECK(agrees<T>([](auto a, auto) { return a - 0.1; }, [](T a, T) { return a - static_cast<T>(0.1); }));
  CHECK(agrees<T>([](auto a, auto) { return 1 - a; }, [](T a, T) { return T(1) - a; }));
}

TEMPLATE_TEST_CASE("Pack: starts at zero and fills all elements", "[gradients][pack]", float, double) {
  std::array<TestType, k_width<TestType>> found;
  Register<TestType>().store(found.data());
  for (const TestType value : found) CHECK(value == 0);
  Register<TestType>(3).store(found.data());
  for (const TestType value : found) CHECK(value == 3);
}
