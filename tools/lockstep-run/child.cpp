// SPDX-License-Identifier: MIT
#include "child.hpp"

#include "affinity.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

namespace launcher {
namespace {

constexpr int k_not_executed = 127;  // nobody reads this exit status

/// Turns the forked child into the replica; returns only if that fails, with errno set.
void execute(const Launch& launch, const Guard& guard, const Signals& signals, pid_t parent, int out,
             int err) {
  // The death signal first: whoever dies before is noticed by the comparison, whoever dies later by the
  // signal.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
  if (getppid() != parent) _exit(k_not_executed);
  if (setpgid(0, 0) != 0) return;
  guard.watch(getpid());

  const FileDescriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing.is_open() || dup2(nothing.number(), 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) return;
  if (launch.core && !pin_to_core(*launch.core)) return;
  for (const auto& [name, value] : launch.environment)
    if (setenv(name.c_str(), value.c_str(), 1) != 0) return;

  std::vector<std::string> words = launch.command;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  signals.restore();
  execvp(arguments.front(), arguments.data());
}

/// Reads the errno of a child that could not execute its program; 0 if it does execute it.
int failure_of_start(int pipe) {
  int failure = 0;
  ssize_t size = 0;
  do {
    size = read(pipe, &failure, sizeof failure);
  } while (size < 0 && errno == EINTR);
  return size == static_cast<ssize_t>(sizeof failure) ? failure : 0;
}

void set_nonblocking(const FileDescriptor& descriptor) {
  fcntl(descriptor.number(), F_SETFL, fcntl(descriptor.number(), F_GETFL) | O_NONBLOCK);
}

}  // namespace

Child start(const Launch& launch, const Guard& guard, const Signals& signals) {
  Pipe out = Pipe::open();
  Pipe err = Pipe::open();
  Pipe failure = Pipe::open();  // closes when the program is executed
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category());
  if (pid == 0) {
    execute(launch, guard, signals, parent, out.write_end.number(), err.write_end.number());
    const int reason = errno;
    [[maybe_unused]] const ssize_t size = write(failure.write_end.number(), &reason, sizeof reason);
    _exit(k_not_executed);
  }
  failure.write_end.close();
  if (const int reason = failure_of_start(failure.read_end.number()); reason != 0) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    guard.forget(pid);
    throw std::system_error(reason, std::generic_category());
  }
  set_nonblocking(out.read_end);
  set_nonblocking(err.read_end);
  return {pid, std::move(out.read_end), std::move(err.read_end)};
}

}  // namespace launcher
