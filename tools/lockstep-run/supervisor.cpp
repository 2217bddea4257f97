// SPDX-License-Identifier: MIT
#include "supervisor.hpp"

#include "affinity.hpp"
#include "descendants.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

namespace launcher {
namespace {

/// How often a group is looked at whose first process has ended while others may still clean up.
constexpr std::chrono::milliseconds k_group_check{50};

/// A pipe holds no more, so a process that has ended has left no more behind.
constexpr std::size_t k_largest_pipe = std::size_t{1} << 20;  // bytes
constexpr std::size_t k_read_size = std::size_t{1} << 16;     // bytes

Ending ending_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return {Ending::Kind::exited, info.si_status};
  return {Ending::Kind::signaled, info.si_status};
}

}  // namespace

Supervisor::Supervisor(const Options& options)
    : options_(options),
      session_(options.session.empty() ? unique_session_name() : options.session),
      ended_file_(session_, static_cast<std::size_t>(options.replicas)),
      cores_(options.bind ? allowed_cores() : std::vector<int>{}),
      children_before_(children()),
      guard_(std::in_place),
      shutdown_(Clock::now(), options.grace, options.timeout),
      restart_policy_{options.restart_limit},
      replicas_(static_cast<std::size_t>(options.replicas)) {
  adopt_orphans();
}

int Supervisor::run() {
  say("session " + session_ + ", " + std::to_string(replicas_.size()) + " replica(s)");
  start_replicas();
  while (!has_ended()) {
    wait_for_events();
    start_replicas();
  }
  finish();

  std::vector<ReplicaRecord> records;
  for (const Replica& replica : replicas_) records.push_back(replica.record);
  for (const std::string& line : summary_lines(records)) say(line);
  const int status = exit_status(records, shutdown_.has_timed_out());
  say("exit status " + std::to_string(status));
  flush_output();
  return status;
}

void Supervisor::start_replicas() {
  for (std::size_t i = 0; i < replicas_.size(); ++i)
    if (replicas_[i].is_to_start && !shutdown_.is_stopping() && Clock::now() >= replicas_[i].start_at)
      start_replica(i);
}

void Supervisor::start_replica(std::size_t i) {
  Replica& replica = replicas_[i];
  replica.is_to_start = false;
  Launch launch{.command = options_.command,
                .environment = {{"LOCKSTEP_SESSION", session_},
                                {"LOCKSTEP_REPLICA", std::to_string(i)},
                                {"LOCKSTEP_REPLICAS", std::to_string(replicas_.size())},
                                {"LOCKSTEP_RESTART", std::to_string(replica.record.endings.size())},
                                {"LOCKSTEP_ENDED", ended_file_.path()}},
                .core = {}};
  if (!cores_.empty()) launch.core = cores_[i % cores_.size()];
  const Clock::time_point now = Clock::now();
  if (replica.record.endings.empty()) replica.record.first_start = now;
  try {
    Child child = start(launch, *guard_, signals_);
    replica.pid = replica.group = child.pid;
    replica.retries = 0;
    std::string prefix("[");
    prefix.append(std::to_string(i)).append("] ");
    streams_.push_back({i, prefix, STDOUT_FILENO, std::move(child.out), LineSplitter{}});
    streams_.push_back({i, prefix, STDERR_FILENO, std::move(child.err), LineSplitter{}});
  } catch (const std::system_error& error) {
    could_not_start(i, error);
  }
}

void Supervisor::could_not_start(std::size_t i, const std::system_error& error) {
  Replica& replica = replicas_[i];
  const Clock::time_point now = Clock::now();
  const Ending ending{Ending::Kind::not_started, error.code().value()};
  const std::string sentence = "cannot start '" + options_.command.front() + "' as replica " +
                               std::to_string(i) + ": " + error.code().message();
  const int restart = static_cast<int>(replica.record.endings.size());
  if (const auto delay = RestartPolicy::retry_after(ending, restart, replica.retries)) {
    replica.is_to_start = true;
    replica.start_at = now + *delay;
    ++replica.retries;
    say(sentence + ", tried again in " + std::to_string(delay->count()) + " ms (" +
        std::to_string(replica.retries) + " of " + std::to_string(RestartPolicy::k_retries) + ")");
    return;
  }
  replica.record.endings.push_back(ending);
  replica.record.last_end = now;
  ended_file_.note(i, ending);
  say(sentence);
  // What one replica cannot execute, the others cannot either; but if they run already, they go on.
  if (restart == 0) send(shutdown_.request_stop(now));
}

void Supervisor::wait_for_events() {
  std::vector<pollfd> polled{{signals_.descriptor(), POLLIN, 0}};
  if (!output_.is_empty()) polled.push_back({output_.descriptor(), POLLOUT, 0});
  const std::size_t first_stream = polled.size();
  if (!output_.is_full())  // else replicas wait until it has been read
    for (const Stream& stream : streams_) polled.push_back({stream.source.number(), POLLIN, 0});
  if (poll(polled.data(), polled.size(), poll_timeout()) < 0 && errno != EINTR)
    throw std::system_error(errno, std::generic_category(), "poll");

  auto stream = streams_.begin();
  for (std::size_t i = first_stream; i < polled.size(); ++i) {
    const bool has_ended = polled[i].revents != 0 && read_some(*stream) == Reading::ended;
    stream = has_ended ? streams_.erase(stream) : std::next(stream);
  }
  if (first_stream == 2 && polled[1].revents != 0) write_output();
  if (polled[0].revents != 0) handle_signals();
  handle_time();
  forget_empty_groups();
}

int Supervisor::poll_timeout() const {
  const Clock::time_point now = Clock::now();
  std::optional<Clock::time_point> until = shutdown_.next_deadline();
  const auto not_after = [&](Clock::time_point time) { until = std::min(until.value_or(time), time); };
  if (is_anyone_lingering()) not_after(now + k_group_check);
  for (const Replica& replica : replicas_)
    if (replica.is_to_start && !shutdown_.is_stopping()) not_after(replica.start_at);
  if (!until) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - now);
  constexpr std::chrono::milliseconds longest = std::chrono::hours(1);
  return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), longest).count());
}

void Supervisor::handle_signals() {
  while (const std::optional<int> signal = signals_.next()) handle_signal(*signal);
}

void Supervisor::handle_signal(int signal) {
  if (signal == SIGCHLD) return reap();
  const bool was_stopping = shutdown_.is_stopping();
  const int passed_on = shutdown_.on_signal(signal, Clock::now());
  if (!was_stopping && shutdown_.is_stopping())
    say(signal_name(signal) + ": the replicas are asked to end; SIGINT or SIGTERM again kills them");
  send(passed_on);
  if (passed_on == SIGTSTP) kill(getpid(), SIGSTOP);  // until SIGCONT, which is passed on as well
}

void Supervisor::handle_time() {
  const bool was_stopping = shutdown_.is_stopping();
  const int to_send = shutdown_.on_time(Clock::now());
  if (!was_stopping && shutdown_.is_stopping()) say("--timeout is reached: the replicas are asked to end");
  send(to_send);
}

/// Sends a signal to the processes of all replicas.
void Supervisor::send(int signal) {
  if (signal == 0) return;
  if (signal == SIGKILL) say("the replicas are killed");
  for (Replica& replica : replicas_) {
    if (replica.group == 0) continue;
    // A process that has left the group that was made for it is reached all the same.
    if (kill(-replica.group, signal) != 0 && replica.pid != 0) kill(replica.pid, signal);
    if (signal == SIGKILL && replica.pid == 0) kill_group(replica);
  }
}

/// Handles each child that has ended. The processes that replicas have left are among them: see
/// adopt_orphans().
void Supervisor::reap() {
  siginfo_t info{};
  // A child that was not reaped keeps its number, so the group is certainly its own until then.
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    const pid_t pid = info.si_pid;
    const auto replica =
        std::find_if(replicas_.begin(), replicas_.end(), [&](const Replica& r) { return r.pid == pid; });
    const auto i = static_cast<std::size_t>(replica - replicas_.begin());
    if (replica != replicas_.end()) before_reaping(i);
    waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED);
    if (replica != replicas_.end()) after_reaping(i, ending_of(info));
    if (pid == guard_->pid()) {
      guard_.emplace();
      for (const Replica& watched : replicas_)
        if (watched.group != 0) guard_->watch(watched.group);
    }
    info = {};
  }
}

void Supervisor::before_reaping(std::size_t i) {
  for (auto stream = streams_.begin(); stream != streams_.end();) {
    const auto next = std::next(stream);
    if (stream->replica == i) drain(*stream);
    if (!stream->source.is_open()) streams_.erase(stream);
    stream = next;
  }
  // When the replicas are asked to end, others of the group may still be busy with it: a shell may end at
  // once, while the trainer that it has started saves its work.
  if (!shutdown_.is_stopping() || shutdown_.is_killing()) kill_group(replicas_[i]);
}

void Supervisor::after_reaping(std::size_t i, const Ending& ending) {
  Replica& replica = replicas_[i];
  replica.pid = 0;
  const int restarts = static_cast<int>(replica.record.endings.size());
  replica.record.endings.push_back(ending);
  replica.record.last_end = Clock::now();
  replica.is_to_start = !shutdown_.is_stopping() && restart_policy_.restarts(ending, restarts);
  if (!replica.is_to_start) ended_file_.note(i, ending);
  if (ending.is_success()) return;
  std::string sentence = "replica " + std::to_string(i) + " ended with " + to_string(ending);
  if (replica.is_to_start)
    sentence += ", restart " + std::to_string(restarts + 1) + " of " + std::to_string(restart_policy_.limit);
  say(sentence);
}

void Supervisor::forget_empty_groups() {
  for (Replica& replica : replicas_) {
    if (replica.pid != 0 || replica.group == 0 || kill(-replica.group, 0) == 0 || errno != ESRCH) continue;
    guard_->forget(replica.group);
    replica.group = 0;
  }
}

void Supervisor::kill_group(Replica& replica) {
  kill(-replica.group, SIGKILL);
  guard_->forget(replica.group);
  replica.group = 0;
}

Supervisor::Reading Supervisor::read_some(Stream& stream) {
  std::array<char, k_read_size> bytes;
  const ssize_t size = read(stream.source.number(), bytes.data(), bytes.size());
  const auto add_line = [&](std::string_view line) { output_.add_line(stream.target, stream.prefix, line); };
  if (size > 0) {
    stream.lines.feed({bytes.data(), static_cast<std::size_t>(size)}, add_line);
    return Reading::again;
  }
  if (size < 0 && errno == EINTR) return Reading::again;
  if (size < 0 && errno == EAGAIN) return Reading::nothing_there;
  stream.lines.finish(add_line);
  return Reading::ended;
}

/// Reads what is in the pipe, and closes it at its end.
void Supervisor::drain(Stream& stream) {
  Reading reading = Reading::again;
  for (std::size_t bytes = 0; bytes < k_largest_pipe && reading == Reading::again; bytes += k_read_size)
    reading = read_some(stream);
  if (reading == Reading::ended) stream.source.close();
}

void Supervisor::write_output() {
  if (output_.write_some()) return;
  const Clock::time_point now = Clock::now();
  if (!shutdown_.is_stopping()) say("the output cannot be written any more, the replicas are asked to end");
  send(shutdown_.request_stop(now));
}

/// Writes what waits. A reader that never reads is left by a further SIGINT or SIGTERM.
void Supervisor::flush_output() {
  while (!output_.is_empty()) {
    std::array<pollfd, 2> polled{{{signals_.descriptor(), POLLIN, 0}, {output_.descriptor(), POLLOUT, 0}}};
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled[1].revents != 0) output_.write_some();
    if (polled[0].revents == 0) continue;
    while (const std::optional<int> signal = signals_.next())
      if (Shutdown::is_stop_signal(*signal)) output_.clear();
  }
}

void Supervisor::say(const std::string& sentence) {
  output_.add_line(STDERR_FILENO, "lockstep-run: ", sentence);
}

/// Ends whatever the replicas have left behind, and takes the last of their output.
void Supervisor::finish() {
  guard_.reset();
  kill_children(children_before_);
  for (Stream& stream : streams_) {
    drain(stream);
    // One that is still open has no more lines now, but maybe the beginning of one.
    stream.lines.finish([&](std::string_view line) { output_.add_line(stream.target, stream.prefix, line); });
  }
  streams_.clear();
}

bool Supervisor::has_ended() const {
  return std::all_of(replicas_.begin(), replicas_.end(), [&](const Replica& replica) {
    return replica.group == 0 && (!replica.is_to_start || shutdown_.is_stopping());
  });
}

bool Supervisor::is_anyone_lingering() const {
  return std::any_of(replicas_.begin(), replicas_.end(),
                     [](const Replica& replica) { return replica.pid == 0 && replica.group != 0; });
}

}  // namespace launcher
