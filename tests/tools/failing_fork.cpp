// SPDX-License-Identifier: MIT
/// @file
/// Linked into a program: its fork() fails as at the limit of processes, once for each byte of the file that
/// LOCKSTEP_TEST_NO_FORK names. At a byte 's' somebody asks the program to end at the same time.
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

namespace {

/// Takes the last byte of the file; 0 if there is none.
char next_failure() {
  const char* const path = std::getenv("LOCKSTEP_TEST_NO_FORK");
  const int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return 0;
  char last = 0;
  const off_t size = lseek(file, 0, SEEK_END);
  if (size > 0 && (pread(file, &last, 1, size - 1) != 1 || ftruncate(file, size - 1) != 0)) std::abort();
  close(file);
  return last;
}

}  // namespace

/// In place of that of the C library; programs that are executed have their own again.
extern "C" pid_t fork() noexcept {
  const char failure = next_failure();
  if (failure == 0) return reinterpret_cast<pid_t (*)()>(dlsym(RTLD_NEXT, "fork"))();
  if (failure == 's') kill(getpid(), SIGTERM);
  errno = EAGAIN;
  return -1;
}
