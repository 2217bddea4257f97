// SPDX-License-Identifier: MIT
#include "guard.hpp"

#include <cerrno>
#include <csignal>
#include <set>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

namespace launcher {
namespace {

/// What the guard does, in its own process. A message is the number of a group: to watch if positive, to
/// forget if negative. Each is written at once and is shorter than PIPE_BUF, so messages of several writers
/// do not mix.
[[noreturn]] void guard_until_end(int pipe) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  setsid();
  prctl(PR_SET_NAME, "lockstep-guard");
  // Hold nothing open that someone else may wait for.
  if (pipe != 0) dup2(pipe, 0);
  close_range(1, ~0U, 0);

  std::set<pid_t> groups;
  for (;;) {
    pid_t message = 0;
    const ssize_t size = read(0, &message, sizeof message);
    if (size < 0 && errno == EINTR) continue;
    if (size != static_cast<ssize_t>(sizeof message)) break;
    if (message > 0) {
      groups.insert(message);
    } else {
      groups.erase(-message);
    }
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

Guard::Guard() {
  Pipe pipe = Pipe::open();
  pid_ = fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ == 0) {
    pipe.write_end.close();  // else the guard itself would keep the pipe from closing
    guard_until_end(pipe.read_end.number());
  }
  pipe_ = std::move(pipe.write_end);
}

Guard::~Guard() {
  pipe_.close();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::tell(pid_t message) const {
  while (write(pipe_.number(), &message, sizeof message) < 0 && errno == EINTR) {
  }
}

}  // namespace launcher
