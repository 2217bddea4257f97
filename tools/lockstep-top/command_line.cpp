// SPDX-License-Identifier: MIT
#include "command_line.hpp"

#include <lockstep/transport/segment.hpp>

#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <system_error>

namespace top {
namespace {

constexpr double k_shortest_seconds = 0.1, k_longest_seconds = 3600;

std::chrono::milliseconds parse_interval(std::string_view text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  // Written so that NaN fails it.
  const bool is_good = error == std::errc{} && end == text.data() + text.size() &&
                       seconds >= k_shortest_seconds && seconds <= k_longest_seconds;
  if (!is_good)
    throw UsageError("--interval needs a number of seconds from 0.1 to 3600, not '" + std::string(text) +
                     "'");
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

const std::string& checked_session(const std::string& name) {
  if (!lockstep::detail::Segment::is_name(name))
    throw UsageError("a session has the name of a file, without '/': '" + name + "'");
  return name;
}

}  // namespace

Options parse(std::span<const std::string> arguments) {
  Options options;
  for (auto word = arguments.begin(); word != arguments.end(); ++word) {
    const std::size_t equals = word->starts_with("--") ? word->find('=') : std::string::npos;
    const std::string name = word->substr(0, equals);
    const bool has_value = equals != std::string::npos;
    const auto take_value = [&]() -> std::string {
      if (has_value) return word->substr(equals + 1);
      if (word + 1 == arguments.end()) throw UsageError(name + " needs a value");
      return *++word;
    };
    if (name == "--directory") {
      options.directory = take_value();
    } else if (name == "--interval") {
      options.interval = parse_interval(take_value());
    } else if (name.size() < 2 || name.front() != '-') {
      if (!options.session.empty())
        throw UsageError("one session at a time, not '" + options.session + "' and '" + *word + "'");
      options.session = checked_session(*word);
    } else if (name != "--once" && name != "-h" && name != "--help" && name != "--version") {
      throw UsageError("there is no option '" + name + "'");
    } else if (has_value) {
      throw UsageError(name + " takes no value");
    } else if (name == "--once") {
      options.once = true;
    } else {
      options.task = name == "--version" ? Options::Task::show_version : Options::Task::show_help;
      return options;
    }
  }
  return options;
}

const char* help_text() {
  return R"(usage: lockstep-top [options] [SESSION]

Shows what the replicas of a session in shared memory do; without SESSION, which sessions there are. Only reads:
the training does not notice.

  --directory DIR     where the sessions are (default: /dev/shm)
  --interval SECONDS  time that rates and shares are of, and between two views (default: 1)
  --once              one view, also on a terminal
  -h, --help          show this text
  --version           show the version

On a terminal the view is renewed until the session ends; otherwise it is printed once. The exit status is 0, 1
if the session cannot be read, 2 if the command line has no meaning.
)";
}

}  // namespace top
