// SPDX-License-Identifier: MIT
/// @file
/// Tokens per step and tokens before the first step.
#include "support/catch.hpp"
#include <lockstep/protocol/init_tokens.hpp>

#include <optional>
#include <string>

using Catch::Matchers::ContainsSubstring;
using lockstep::protocol::init_tokens;
using lockstep::protocol::tokens_per_step;

static_assert(tokens_per_step(2, 3) == 3);
static_assert(tokens_per_step(4, 2) == 4);
static_assert(tokens_per_step(50, std::nullopt) == 50);
static_assert(init_tokens(4, 2) == 4, "the default is R, not N and not the larger one");
static_assert(init_tokens(2, 5) == 2);
static_assert(init_tokens(4, 2, 2) == 2);
static_assert(init_tokens(2, 2, 0) == 0);
static_assert(init_tokens(2, 5, -2) == 0, "negative, but enough replicas without any token");

TEST_CASE("init_tokens: too few for the first update is an error that says how many are needed",
          "[protocol][init_tokens]") {
  CHECK_THROWS_AS(init_tokens(4, 2, 0), lockstep::InvalidArgument);
  CHECK_THROWS_AS(init_tokens(2, 3, -2), lockstep::InvalidArgument);
  CHECK_THROWS_AS(init_tokens(2, std::nullopt, -2), lockstep::InvalidArgument);
  CHECK_THROWS_WITH(init_tokens(4, 2, 1),
                    ContainsSubstring("num_tokens is 1") && ContainsSubstring("at least 2"));
}
