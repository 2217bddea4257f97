// SPDX-License-Identifier: MIT
/// @file
/// What the words of the command line mean, and what is said of those without a meaning.
#include "lockstep-run/command_line.hpp"

#include "support/catch.hpp"

#include <set>

using Catch::Matchers::ContainsSubstring;
using launcher::Options;
using Words = std::vector<std::string>;
using namespace std::chrono_literals;

namespace {

std::string error_of(const Words& words) {
  try {
    launcher::parse(words);
  } catch (const launcher::UsageError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("command_line: the rest has defaults", "[tools][command_line]") {
  const Options options = launcher::parse(Words{"-n", "4", "--", "./trainer", "--steps", "7"});
  CHECK(options.task == Options::Task::run);
  CHECK(options.replicas == 4);
  CHECK(options.restart_limit == 0);
  CHECK_FALSE(options.bind);
  CHECK(options.session.empty());
  CHECK_FALSE(options.timeout);
  CHECK(options.grace == 10s);
  CHECK(options.command == Words{"./trainer", "--steps", "7"});
}

TEST_CASE("command_line: every option", "[tools][command_line]") {
  const Options options = launcher::parse(Words{"--replicas=2", "--restart", "3", "--bind", "--session",
                                                "a-b_c.7", "--timeout", "1.5", "--grace=0", "--", "x"});
  CHECK(options.replicas == 2);
  CHECK(options.restart_limit == 3);
  CHECK(options.bind);
  CHECK(options.session == "a-b_c.7");
  CHECK(options.timeout == launcher::Clock::duration(1500ms));
  CHECK(options.grace == 0s);
}

TEST_CASE("command_line: options end at the command", "[tools][command_line]") {
  CHECK(launcher::parse(Words{"-n4", "x", "--bind", "--", "-n"}).command == Words{"x", "--bind", "--", "-n"});
  CHECK_FALSE(launcher::parse(Words{"-n4", "x", "--bind"}).bind);
  CHECK(launcher::parse(Words{"-n4", "--", "--bind"}).command == Words{"--bind"});
  CHECK(launcher::parse(Words{"-n4", "-"}).command == Words{"-"});
  CHECK(launcher::parse(Words{"-n4", ""}).command == Words{""});
}

TEST_CASE("command_line: help and version need nothing else", "[tools][command_line]") {
  CHECK(launcher::parse(Words{"--help"}).task == Options::Task::show_help);
  CHECK(launcher::parse(Words{"-n", "2", "-h"}).task == Options::Task::show_help);
  CHECK(launcher::parse(Words{"--version"}).task == Options::Task::show_version);
}

TEST_CASE("command_line: what is missing is named", "[tools][command_line]") {
  CHECK_THAT(error_of({}), ContainsSubstring("number of replicas is missing"));
  CHECK_THAT(error_of({"--", "x"}), ContainsSubstring("number of replicas is missing"));
  CHECK_THAT(error_of({"-n", "2"}), ContainsSubstring("command is missing"));
  CHECK_THAT(error_of({"-n", "2", "--"}), ContainsSubstring("command is missing"));
  CHECK(error_of({"-n"}) == "-n needs a value");
  CHECK(error_of({"-n", "--", "x"}) == "-n needs a value");
}

TEST_CASE("command_line: a wrong number of replicas is quoted with its limits", "[tools][command_line]") {
  for (const char* bad : {"0", "-1", "129", "two", "4x", "", "1.5", "99999999999999999999"})
    CHECK(error_of({"-n", bad, "x"}) ==
          std::string("-n needs a whole number from 1 to 128, not '") + bad + "'");
  CHECK(launcher::parse(Words{"-n", "128", "x"}).replicas == 128);
}

TEST_CASE("command_line: other values without a meaning", "[tools][command_line]") {
  CHECK_THAT(error_of({"--restart", "-1", "x"}), ContainsSubstring("--restart needs a whole number from 0"));
  for (const char* bad : {"-1", "nan", "inf", "1e10", "soon", "1s", ""}) {
    CHECK_THAT(error_of({"--timeout", bad, "x"}), ContainsSubstring("--timeout needs a number of seconds"));
    CHECK_THAT(error_of({"--grace", bad, "x"}), ContainsSubstring("--grace needs a number of seconds"));
  }
  for (const std::string& bad :
       {std::string(), std::string("a/b"), std::string(".hidden"), std::string("a b"), std::string(101, 'a')})
    CHECK_THAT(error_of({"--session", bad, "x"}), ContainsSubstring("--session needs a name"));
  CHECK(launcher::parse(Words{"-n2", "--session", std::string(100, 'a'), "x"}).session.size() == 100);
}

TEST_CASE("command_line: unknown options and values too many", "[tools][command_line]") {
  CHECK(error_of({"--restarts", "x"}) == "there is no option '--restarts'");
  CHECK(error_of({"-x"}) == "there is no option '-x'");
  CHECK(error_of({"--bind=1", "x"}) == "--bind takes no value");
}

TEST_CASE("command_line: session names differ and are valid", "[tools][command_line]") {
  std::set<std::string> names;
  for (int i = 0; i < 100; ++i) names.insert(launcher::unique_session_name());
  CHECK(names.size() == 100);
  CHECK(launcher::parse(Words{"-n2", "--session", *names.begin(), "x"}).session == *names.begin());
}
