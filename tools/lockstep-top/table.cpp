// SPDX-License-Identifier: MIT
#include "table.hpp"

#include <algorithm>
#include <cstdio>

namespace top {
namespace {

using lockstep::protocol::Place;
using lockstep::protocol::Round;

template <class... T>
std::string formatted(const char* format, T... values) {
  char line[256];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

long long number(std::int64_t value) { return value; }

std::string replica_line(int i, const Look& look, const Rates& rates) {
  const Place& place = look.round().places[static_cast<std::size_t>(i)];
  const Sitter& sitter = look.sitters[static_cast<std::size_t>(i)];
  const Rates::OfReplica& rate = rates.replicas[static_cast<std::size_t>(i)];
  const std::string process = sitter.process == 0 ? "-" : std::to_string(sitter.process);
  return formatted("%7d %8s %11u %9lld  %-9s %6.0f%% %4.0f%% %9lld %7lld %10lld %8lld%s", i, process.c_str(),
                   static_cast<unsigned>(place.incarnation), number(place.local_step),
                   to_string(activity_of(look.round(), i, sitter)), 100 * rate.waiting, 100 * rate.last,
                   number(place.counters.accepted), number(place.counters.stale),
                   number(place.counters.not_needed), number(place.counters.skipped),
                   i == rates.slowest ? "  < slowest" : "");
}

}  // namespace

std::vector<std::string> view_lines(const std::string& session, const Look& look, const Rates& rates) {
  const Round& round = look.round();
  const auto window = look.control.updater.window;
  std::string progress =
      formatted("step %lld, %.1f updates/s, %d of %d contributions", number(window.global_step),
                rates.updates_per_second, static_cast<int>(round.count), static_cast<int>(round.required));
  if (window.pending > 0) progress += formatted(", %lld pending in the window", number(window.pending));
  std::vector<std::string> lines{
      "session " + session + ": " + condition_of(look),
      formatted("%d of %d replicas, R = %d, departure %s", round.active(), static_cast<int>(round.total),
                static_cast<int>(round.required_setting), to_string(round.departure)) +
          (look.rule.empty() ? "" : ", rule " + look.rule),
      progress, "",
      "replica  process incarnation      step  state     waiting  last  accepted   stale not needed  "
      "skipped"};
  for (int i = 0; i < round.total; ++i) lines.push_back(replica_line(i, look, rates));
  return lines;
}

Entry entry_of(const std::string& session, const Look& look) {
  const Round& round = look.round();
  return {.name = session,
          .replicas = std::to_string(round.active()) + " of " + std::to_string(round.total),
          .step = std::to_string(look.control.updater.window.global_step),
          .condition = condition_of(look)};
}

std::vector<std::string> list_lines(const std::vector<Entry>& entries) {
  std::size_t width = 7;
  for (const Entry& entry : entries) width = std::max(width, entry.name.size());
  const auto line = [&](const Entry& entry) {
    return entry.name + std::string(width - entry.name.size(), ' ') +
           formatted("  %10s %9s  ", entry.replicas.c_str(), entry.step.c_str()) + entry.condition;
  };
  std::vector<std::string> lines{line({"session", "replicas", "step", "state"})};
  for (const Entry& entry : entries) lines.push_back(line(entry));
  return lines;
}

std::string printable(std::string text) {
  unsigned char before = 0;
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_c1 = before == 0xC2 && byte >= 0x80 && byte < 0xA0;  // in UTF-8: U+0080 to U+009F
    if (byte < 0x20 || byte == 0x7F || is_c1) c = '?';
    before = byte;
  }
  return text;
}

std::vector<std::string> fitted(std::vector<std::string> lines, std::size_t rows, std::size_t columns) {
  if (rows > 0 && lines.size() > rows) {
    const std::size_t missing = lines.size() - rows + 1;
    lines.resize(rows - 1);
    lines.push_back("... and " + std::to_string(missing) + " more");
  }
  if (columns > 0)
    for (std::string& line : lines) line.resize(std::min(line.size(), columns));
  return lines;
}

}  // namespace top
