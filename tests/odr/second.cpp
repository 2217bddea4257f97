// SPDX-License-Identifier: MIT
#include "second.hpp"

#include <lockstep/lockstep.hpp>

int version_in_second_unit() { return LOCKSTEP_VERSION_MINOR; }
