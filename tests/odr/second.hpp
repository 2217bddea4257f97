// SPDX-License-Identifier: MIT
#pragma once

int version_in_second_unit();
