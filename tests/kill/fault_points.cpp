// SPDX-License-Identifier: MIT
#include "kill/fault_points.hpp"

#include <csignal>
#include <cstring>
#include <unistd.h>
#include <utility>

namespace lockstep::test {
namespace {

FaultLog* armed = nullptr;
std::int64_t kill_at = 0;
std::int64_t stop_at = 0;
const char* begin_with = "";
thread_local std::function<void(const char*)> at_point;

}  // namespace

void arm(FaultLog& log, std::int64_t at, const char* after) {
  armed = &log;
  kill_at = at;
  begin_with = after;
}

void stop_from(FaultLog& log, std::int64_t at) {
  armed = &log;
  stop_at = at;
}

void call_at_points(std::function<void(const char*)> f) { at_point = std::move(f); }

}  // namespace lockstep::test

void lockstep_fault_point(const char* name) {
  using namespace lockstep::test;
  if (at_point) at_point(name);
  if (!armed || std::strncmp(name, "later line", 10) == 0) return;
  if (*begin_with != '\0') {
    if (std::strncmp(name, begin_with, std::strlen(begin_with)) != 0) return;
    begin_with = "";
  }
  std::strncpy(armed->last, name, sizeof(armed->last) - 1);
  const std::int64_t number = armed->passed.fetch_add(1) + 1;
  if (stop_at > 0 && number >= stop_at) ::raise(SIGTRAP);
  if (number != kill_at) return;
  ::kill(::getpid(), SIGKILL);
  ::pause();
}
