// SPDX-License-Identifier: MIT
#include "watcher.hpp"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <thread>

namespace top {
namespace {

constexpr int k_samples = 50;  // at least, in one interval
constexpr std::chrono::milliseconds k_longest_pause{100};
constexpr int k_gate_looks = 1000;  // a millisecond apart
constexpr std::string_view k_prefix = lockstep::detail::Segment::k_prefix;

/// By SIGSTOP or a debugger.
bool is_stopped(pid_t process) {
  if (process == 0) return false;
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(") ");  // the name may hold anything
  return name_end != std::string::npos && (line[name_end + 2] == 'T' || line[name_end + 2] == 't');
}

/// Whether a process takes part, and whether the file has gone. The last process that leaves takes no part
/// any more before the file goes, but stays at the gate until it has gone, so that is asked in between. Who
/// is stopped there is not waited for for ever.
void look_at_users(const SessionFile& file, Look& look) {
  for (int looks = 1;; ++looks) {
    look.is_in_use = file.is_in_use();
    const bool is_at_gate = file.is_at_gate();
    look.is_removed = file.is_removed();
    if (look.is_in_use || look.is_removed || !is_at_gate || looks == k_gate_looks) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

Rates Watcher::watch(std::chrono::milliseconds interval) {
  Meter meter(last_);
  const lockstep::Clock::time_point end = last_.time + interval;
  const auto pause = std::min<lockstep::Clock::duration>(interval / k_samples, k_longest_pause);
  while (lockstep::Clock::now() < end && file_.is_in_use()) {
    std::this_thread::sleep_for(pause);
    meter.sample(file_.state().round);
  }
  last_ = look();
  return meter.rates(last_);
}

Look Watcher::look() {
  Look look = glance(file_);
  find_processes(look.round());
  for (int i = 0; i < look.round().total; ++i) {
    Sitter sitter{.is_alive = file_.is_held(i)};
    if (sitter.is_alive) sitter.process = processes_[static_cast<std::size_t>(i)];
    sitter.is_stopped = is_stopped(sitter.process);
    look.sitters.push_back(sitter);
  }
  return look;
}

void Watcher::find_processes(const lockstep::protocol::Round& round) {
  std::vector<std::uint32_t> incarnations;
  for (int i = 0; i < round.total; ++i)
    incarnations.push_back(round.places[static_cast<std::size_t>(i)].incarnation);
  if (incarnations == incarnations_) return;
  processes_ = file_.processes(round.total);
  incarnations_ = incarnations;
}

Look glance(const SessionFile& file) {
  Look look;
  // Before the state: what is read of a session in use is not older than this.
  look_at_users(file, look);
  look.control = file.state();
  look.time = lockstep::Clock::now();
  const std::string rule = file.described("rule");
  look.rule = rule.substr(0, rule.find(", slots"));
  look.note = file.note();
  return look;
}

std::vector<std::string> session_names(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator file(directory, error), end; !error && file != end;
       file.increment(error)) {
    const std::string name = file->path().filename();
    if (name.starts_with(k_prefix) && name.size() > k_prefix.size())
      names.push_back(name.substr(k_prefix.size()));
  }
  if (error) throw Unreadable(directory + ": " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

std::string path_of(const std::string& directory, const std::string& session) {
  return lockstep::detail::Segment::path_of(directory, session);
}

}  // namespace top
