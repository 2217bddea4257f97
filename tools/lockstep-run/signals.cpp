// SPDX-License-Identifier: MIT
#include "signals.hpp"

#include <sys/signalfd.h>
#include <system_error>
#include <unistd.h>

namespace launcher {

Signals::Signals() {
  struct sigaction child {};
  child.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &child, nullptr);  // if it is ignored, nobody learns how a child has ended

  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignored, &pipe_before_);

  sigset_t handled;
  sigemptyset(&handled);
  sigaddset(&handled, SIGCHLD);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaddset(&handled, signal);
  }
  sigprocmask(SIG_BLOCK, &handled, &mask_before_);
  descriptor_ = FileDescriptor(signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_.is_open()) throw std::system_error(errno, std::generic_category(), "signalfd");
}

std::optional<int> Signals::next() {
  signalfd_siginfo info{};
  if (read(descriptor(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return {};
  return static_cast<int>(info.ssi_signo);
}

void Signals::restore() const {
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

}  // namespace launcher
