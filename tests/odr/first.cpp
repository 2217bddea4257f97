// SPDX-License-Identifier: MIT
#include "second.hpp"
#include <lockstep/lockstep.hpp>

int main() { return version_in_second_unit() == LOCKSTEP_VERSION_MINOR ? 0 : 1; }
