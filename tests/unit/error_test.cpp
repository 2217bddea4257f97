// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include <lockstep/error.hpp>

#include <array>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

using namespace lockstep;

namespace {

/// What streams make of the same values.
template <class... Parts>
std::string streamed(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace

TEST_CASE("error texts: strings of every kind", "[error]") {
  const std::string string = "an 'owner'";
  const char* pointer = "a pointer";
  CHECK(detail::text("a literal, ", string, ", ", std::string_view("a view of more").substr(0, 6), ", ",
                     pointer, std::string(), "") == "a literal, an 'owner', a view, a pointer");
  CHECK(detail::text("a", ' ', 'b', '\'') == "a b'");
  CHECK(detail::text() == "");
}

TEST_CASE("error texts: numbers are written as streams write them", "[error]") {
  CHECK(detail::text(0, -7, std::numeric_limits<std::int64_t>::min(), " ",
                     std::numeric_limits<std::uint64_t>::max(), " ", std::int16_t{-3}, std::uint32_t{4}) ==
        streamed(0, -7, std::numeric_limits<std::int64_t>::min(), " ",
                 std::numeric_limits<std::uint64_t>::max(), " ", std::int16_t{-3}, std::uint32_t{4}));
  using Limits = std::numeric_limits<double>;
  for (const double number :
       {0.0, -0.0, 1.0, 0.1, 1.0 / 3, 123456.0, 1234567.0, 1e-5, 1e22, -1e300, Limits::max(),
        Limits::denorm_min(), Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()})
    CHECK(detail::text("got ", number) == streamed("got ", number));
}

TEST_CASE("error texts: an error is thrown as the type that was asked for", "[error]") {
  try {
    detail::throw_error<ShapeMismatch>("expected ", 2, ", got ", 2.5);
  } catch (const ShapeMismatch& error) {
    CHECK(std::string(error.what()) == "expected 2, got 2.5");
    return;
  }
  FAIL("nothing was thrown");
}

TEST_CASE("error texts: shapes", "[error]") {
  CHECK(detail::shape_text(std::vector<Index>{}) == "()");
  CHECK(detail::shape_text(std::array<Index, 1>{7}) == "(7)");
  CHECK(detail::shape_text(std::vector<Index>{2, -1, 30}) == "(2, -1, 30)");
}
