// SPDX-License-Identifier: MIT
#include "command_line.hpp"

#include <lockstep/config.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <sys/random.h>
#include <system_error>

namespace launcher {
namespace {

constexpr std::size_t k_longest_session_name = 100;
constexpr double k_longest_seconds = 1e9;
constexpr int k_most_restarts = 1'000'000;

int parse_count(std::string_view option, std::string_view text, int least, int most) {
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc{} || end != text.data() + text.size() || count < least || count > most)
    throw UsageError(std::string(option) + " needs a whole number from " + std::to_string(least) + " to " +
                     std::to_string(most) + ", not '" + std::string(text) + "'");
  return count;
}

Clock::duration parse_seconds(std::string_view option, std::string_view text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  // Written so that NaN fails it.
  const bool is_good = error == std::errc{} && end == text.data() + text.size() && seconds >= 0 &&
                       seconds <= k_longest_seconds;
  if (!is_good)
    throw UsageError(std::string(option) + " needs a number of seconds from 0 to 1e9, not '" +
                     std::string(text) + "'");
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Transports make file names of it.
std::string parse_session(std::string_view text) {
  const bool is_good = !text.empty() && text.size() <= k_longest_session_name && text.front() != '.' &&
                       std::all_of(text.begin(), text.end(), [](char c) {
                         return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') ||
                                c == '-' || c == '_' || c == '.';
                       });
  if (!is_good)
    throw UsageError("--session needs a name of 1 to " + std::to_string(k_longest_session_name) +
                     " letters, digits, '-', '_' and '.', the first not '.'; not '" + std::string(text) +
                     "'");
  return std::string(text);
}

/// Walks through the words of the command line.
class Words {
 public:
  explicit Words(std::span<const std::string> words) : words_(words) {}

  /// Takes the next option, if the next word is one: "--restart", "--restart=3", "-n", "-n4".
  bool take_option() {
    if (words_.empty() || words_.front().size() < 2 || words_.front().front() != '-') return false;
    const std::string_view word = words_.front();
    words_ = words_.subspan(1);
    const bool is_long = word.starts_with("--");
    const std::size_t end = is_long ? word.find('=') : 2;
    name_ = word.substr(0, end);
    has_attached_ = end < word.size();
    attached_ = has_attached_ ? word.substr(is_long ? end + 1 : end) : std::string_view{};
    return true;
  }

  std::string_view name() const { return name_; }

  /// The value of the option taken last: what is attached to it, or else the next word.
  std::string_view take_value() {
    if (has_attached_) return attached_;
    if (words_.empty() || words_.front() == "--") throw UsageError(std::string(name_) + " needs a value");
    const std::string_view value = words_.front();
    words_ = words_.subspan(1);
    return value;
  }

  void expect_no_value() const {
    if (has_attached_) throw UsageError(std::string(name_) + " takes no value");
  }

  std::vector<std::string> take_rest() { return {words_.begin(), words_.end()}; }

 private:
  std::span<const std::string> words_;
  std::string_view name_;
  bool has_attached_ = false;
  std::string_view attached_;
};

}  // namespace

Options parse(std::span<const std::string> arguments) {
  Options options;
  Words words(arguments);
  while (words.take_option()) {
    const std::string_view name = words.name();
    if (name == "-n" || name == "--replicas") {
      options.replicas = parse_count(name, words.take_value(), 1, lockstep::k_max_replicas);
    } else if (name == "--restart") {
      options.restart_limit = parse_count(name, words.take_value(), 0, k_most_restarts);
    } else if (name == "--session") {
      options.session = parse_session(words.take_value());
    } else if (name == "--timeout") {
      options.timeout = parse_seconds(name, words.take_value());
    } else if (name == "--grace") {
      options.grace = parse_seconds(name, words.take_value());
    } else {
      words.expect_no_value();
      if (name == "--") break;
      if (name == "--bind") {
        options.bind = true;
      } else if (name == "-h" || name == "--help") {
        options.task = Options::Task::show_help;
        return options;
      } else if (name == "--version") {
        options.task = Options::Task::show_version;
        return options;
      } else {
        throw UsageError("there is no option '" + std::string(name) + "'");
      }
    }
  }
  options.command = words.take_rest();
  if (options.replicas == 0) throw UsageError("the number of replicas is missing: -n N");
  if (options.command.empty()) throw UsageError("the command is missing: lockstep-run -n 4 -- ./trainer");
  return options;
}

const char* help_text() {
  return R"(usage: lockstep-run -n N [options] [--] COMMAND [ARGUMENT...]

Starts COMMAND N times on this machine, as the replicas of one training.

  -n, --replicas N    how many replicas
  --restart COUNT     start a replica that died again, up to COUNT times (default: 0)
  --bind              pin replica i to one core, round robin over those that are allowed
  --session NAME      the name of the session (default: a unique one)
  --timeout SECONDS   stop all replicas after that time
  --grace SECONDS     from asking replicas to stop to killing them (default: 10)
  -h, --help          show this text
  --version           show the version

Each replica finds in its environment LOCKSTEP_SESSION, LOCKSTEP_REPLICA (0 to N - 1), LOCKSTEP_REPLICAS (N),
LOCKSTEP_RESTART (how often this replica was restarted) and LOCKSTEP_ENDED (a file that tells who has ended).

The exit status is 0 if all replicas ended with 0, else that of the first that failed (128 + signal if a signal
ended it); 124 after --timeout, 125 if lockstep-run itself failed, 126 or 127 if COMMAND cannot be executed.
)";
}

std::string unique_session_name() {
  std::uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random))
    throw std::system_error(errno, std::generic_category(), "cannot make up a session name");
  char name[32];
  std::snprintf(name, sizeof name, "run-%016llx", static_cast<unsigned long long>(random));
  return name;
}

}  // namespace launcher
