// SPDX-License-Identifier: MIT
#pragma once

int minor_version_in_second_unit();
