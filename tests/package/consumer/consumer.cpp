// SPDX-License-Identifier: MIT
/// @file
/// A program of someone who uses lockstep: prints the version it was compiled with.
#include <lockstep/lockstep.hpp>

#include <iostream>

int main() {
  std::cout << LOCKSTEP_VERSION_MAJOR << '.' << LOCKSTEP_VERSION_MINOR << '.' << LOCKSTEP_VERSION_PATCH
            << '\n';
}
