// SPDX-License-Identifier: MIT
/// @file
/// What the words of lockstep-top's command line mean, and what is said of those without a meaning.
#include "lockstep-top/command_line.hpp"
#include "support/catch.hpp"

#include <string>
#include <vector>

using top::Options;
using Words = std::vector<std::string>;
using namespace std::chrono_literals;

namespace {

std::string error_of(const Words& words) {
  try {
    top::parse(words);
  } catch (const top::UsageError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("top command_line: all has defaults", "[tools][top]") {
  const Options options = top::parse(Words{});
  CHECK(options.task == Options::Task::show);
  CHECK(options.session.empty());
  CHECK(options.directory == "/dev/shm");
  CHECK_FALSE(options.once);
  CHECK(options.interval == 1s);
}

TEST_CASE("top command_line: options before and after the session", "[tools][top]") {
  const Options options = top::parse(Words{"--directory", "/mnt/a=b", "run-1", "--once", "--interval=0.25"});
  CHECK(options.session == "run-1");
  CHECK(options.directory == "/mnt/a=b");
  CHECK(options.once);
  CHECK(options.interval == 250ms);
  CHECK(top::parse(Words{"--directory=/mnt/a=b"}).directory == "/mnt/a=b");
}

TEST_CASE("top command_line: help and version", "[tools][top]") {
  CHECK(top::parse(Words{"-h"}).task == Options::Task::show_help);
  CHECK(top::parse(Words{"run", "--help"}).task == Options::Task::show_help);
  CHECK(top::parse(Words{"--version"}).task == Options::Task::show_version);
}

TEST_CASE("top command_line: what has no meaning is quoted", "[tools][top]") {
  CHECK(error_of({"--all"}) == "there is no option '--all'");
  CHECK(error_of({"-n"}) == "there is no option '-n'");
  CHECK(error_of({"--once=1"}) == "--once takes no value");
  CHECK(error_of({"--directory"}) == "--directory needs a value");
  CHECK(error_of({"a", "b"}) == "one session at a time, not 'a' and 'b'");
  for (const std::string& bad : {std::string("a/b"), std::string(), std::string(201, 'a')})
    CHECK(error_of({bad}) == "a session has the name of a file, without '/': '" + bad + "'");
  for (const char* bad : {"0", "-1", "0.09", "3601", "nan", "inf", "1s", ""})
    CHECK(error_of({"--interval", bad}) ==
          std::string("--interval needs a number of seconds from 0.1 to 3600, not '") + bad + "'");
}
