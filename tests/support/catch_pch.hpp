// SPDX-License-Identifier: MIT
// What large suites precompile. No include guard: g++ objects to one in the file that it precompiles.
#include "support/catch.hpp"
#include <lockstep/lockstep.hpp>
