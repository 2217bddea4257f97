// SPDX-License-Identifier: MIT
/// @file
/// lockstep-run: starts N replicas of a program on this machine and looks after them. See
/// docs/lockstep-run.md.
#include "command_line.hpp"
#include "summary.hpp"
#include "supervisor.hpp"
#include <lockstep/config.hpp>

#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <unistd.h>

namespace {

/// A pipe must not take the number of a standard stream that is closed.
void open_standard_streams() {
  for (int number = 0; number <= 2; ++number)
    if (fcntl(number, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) _exit(launcher::k_own_failure);
}

int run(const launcher::Options& options) {
  switch (options.task) {
    case launcher::Options::Task::show_help:
      std::fputs(launcher::help_text(), stdout);
      return 0;
    case launcher::Options::Task::show_version:
      std::printf("lockstep-run %d.%d.%d\n", LOCKSTEP_VERSION_MAJOR, LOCKSTEP_VERSION_MINOR,
                  LOCKSTEP_VERSION_PATCH);
      return 0;
    case launcher::Options::Task::run:
      break;
  }
  return launcher::Supervisor(options).run();
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  try {
    const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
    return run(launcher::parse(arguments));
  } catch (const launcher::UsageError& error) {
    std::fprintf(stderr, "lockstep-run: %s\nTry lockstep-run --help.\n", error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep-run: %s\n", error.what());
  }
  return launcher::k_own_failure;
}
