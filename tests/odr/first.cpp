// SPDX-License-Identifier: MIT
#include "second.hpp"

#include <all_headers.hpp>

static_assert(lockstep::version().major == LOCKSTEP_VERSION_MAJOR);
static_assert(lockstep::version().minor == LOCKSTEP_VERSION_MINOR);
static_assert(lockstep::version().patch == LOCKSTEP_VERSION_PATCH);

int main() { return minor_version_in_second_unit() == LOCKSTEP_VERSION_MINOR ? 0 : 1; }
