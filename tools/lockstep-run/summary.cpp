// SPDX-License-Identifier: MIT
#include "summary.hpp"

#include <algorithm>
#include <cstdio>

namespace launcher {

int exit_status(std::span<const ReplicaRecord> replicas, bool has_timed_out) {
  if (has_timed_out) return k_timeout_status;
  const ReplicaRecord* first = nullptr;
  for (const ReplicaRecord& replica : replicas)
    if (replica.has_failed() && (first == nullptr || replica.last_end < first->last_end)) first = &replica;
  return first == nullptr ? 0 : first->endings.back().exit_status();
}

std::string describe(std::span<const Ending> endings) {
  if (endings.empty()) return "not started";
  std::string text;
  for (auto it = endings.begin(); it != endings.end();) {
    const auto next = std::find_if(it, endings.end(), [&](const Ending& other) { return other != *it; });
    if (!text.empty()) text += ", ";
    text += to_string(*it);
    if (next - it > 1) text += " x " + std::to_string(next - it);
    it = next;
  }
  return text;
}

std::vector<std::string> summary_lines(std::span<const ReplicaRecord> replicas) {
  std::vector<std::string> lines{"replica  runs    seconds  ended with"};
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    const ReplicaRecord& replica = replicas[i];
    const std::chrono::duration<double> seconds = replica.last_end - replica.first_start;
    char numbers[64];
    std::snprintf(numbers, sizeof numbers, "%7zu %5zu %10.3f  ", i, replica.endings.size(), seconds.count());
    lines.push_back(numbers + describe(replica.endings));
  }
  return lines;
}

}  // namespace launcher
