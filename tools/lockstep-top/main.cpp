// SPDX-License-Identifier: MIT
/// @file
/// lockstep-top: shows what the replicas of a session in shared memory do. See docs/lockstep-top.md.
#include "command_line.hpp"
#include "table.hpp"
#include "watcher.hpp"
#include <lockstep/config.hpp>

#include <cstdio>
#include <exception>
#include <string>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

enum ExitStatus { k_good = 0, k_unreadable = 1, k_usage = 2 };

void print(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::printf("%s\n", top::printable(line).c_str());
}

/// Over what was printed before, without clearing the screen first: it would flicker.
void print_at_the_top(std::vector<std::string> lines) {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
    lines = top::fitted(std::move(lines), size.ws_row > 1 ? size.ws_row - 1U : 0U, size.ws_col);
  std::string screen = "\x1b[H";
  for (const std::string& line : lines) screen += top::printable(line) + "\x1b[K\n";
  std::printf("%s\x1b[J", screen.c_str());
  std::fflush(stdout);
}

int list(const top::Options& options) {
  std::vector<top::Entry> entries;
  for (const std::string& name : top::session_names(options.directory)) {
    try {
      const top::SessionFile file(top::path_of(options.directory, name));
      entries.push_back(top::entry_of(name, top::glance(file)));
    } catch (const top::Unreadable& error) {
      entries.push_back({.name = name, .replicas = "-", .step = "-", .condition = error.what()});
    }
  }
  if (entries.empty())
    std::printf("there is no session in %s\n", options.directory.c_str());
  else
    print(top::list_lines(entries));
  return k_good;
}

int show(const top::Options& options) {
  top::Watcher watcher(top::path_of(options.directory, options.session));
  const bool renews = !options.once && isatty(STDOUT_FILENO) == 1;
  if (renews) std::printf("\x1b[2J");
  do {
    const top::Rates rates = watcher.watch(options.interval);
    const std::vector<std::string> lines = top::view_lines(options.session, watcher.last(), rates);
    if (renews)
      print_at_the_top(lines);
    else
      print(lines);
  } while (renews && watcher.last().is_in_use);
  return k_good;
}

int run(const top::Options& options) {
  switch (options.task) {
    case top::Options::Task::show_help:
      std::fputs(top::help_text(), stdout);
      return k_good;
    case top::Options::Task::show_version:
      std::printf("lockstep-top %d.%d.%d\n", LOCKSTEP_VERSION_MAJOR, LOCKSTEP_VERSION_MINOR,
                  LOCKSTEP_VERSION_PATCH);
      return k_good;
    case top::Options::Task::show:
      break;
  }
  return options.session.empty() ? list(options) : show(options);
}

}  // namespace

int main(int argc, char** argv) {
  top::Options options;
  try {
    options = top::parse(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
    return run(options);
  } catch (const top::UsageError& error) {
    std::fprintf(stderr, "lockstep-top: %s\nTry lockstep-top --help.\n", error.what());
    return k_usage;
  } catch (const std::exception& error) {
    const std::string path =
        options.session.empty() ? "" : top::path_of(options.directory, options.session) + ": ";
    std::fprintf(stderr, "lockstep-top: %s\n", top::printable(path + error.what()).c_str());
  }
  return k_unreadable;
}
