// SPDX-License-Identifier: MIT
/// @file
/// Names of reductions.
#include "support/catch.hpp"
#include <lockstep/reduction.hpp>

#include <string>

using Catch::Matchers::ContainsSubstring;

TEST_CASE("reduction: names in any case, and back", "[reduction]") {
  using lockstep::parse_reduction;
  using lockstep::Reduction;
  CHECK(parse_reduction("MEAN") == Reduction::mean);
  CHECK(parse_reduction("Sum") == Reduction::sum);
  for (const Reduction reduction : {Reduction::mean, Reduction::sum})
    CHECK(parse_reduction(to_string(reduction)) == reduction);
  for (const char* name : {"", "MEA", "MEANS", "Invalid"})
    CHECK_THROWS_WITH(parse_reduction(name), ContainsSubstring("\"" + std::string(name) + "\""));
}
