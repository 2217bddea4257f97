// SPDX-License-Identifier: MIT
#include "second.hpp"

#include <all_headers.hpp>

int minor_version_in_second_unit() { return lockstep::version().minor; }
