// SPDX-License-Identifier: MIT
#include "kill/fault_points.hpp"

#include <csignal>
#include <cstring>
#include <unistd.h>

namespace lockstep::test {
namespace {

FaultLog* armed = nullptr;
std::int64_t kill_at = 0;
const char* begin_with = "";

}  // namespace

void arm(FaultLog& log, std::int64_t at, const char* after) {
  armed = &log;
  kill_at = at;
  begin_with = after;
}

}  // namespace lockstep::test

void lockstep_fault_point(const char* name) {
  using namespace lockstep::test;
  if (!armed) return;
  if (*begin_with != '\0') {
    if (std::strncmp(name, begin_with, std::strlen(begin_with)) != 0) return;
    begin_with = "";
  }
  std::strncpy(armed->last, name, sizeof(armed->last) - 1);
  if (armed->passed.fetch_add(1) + 1 != kill_at) return;
  ::kill(::getpid(), SIGKILL);
  ::pause();
}
