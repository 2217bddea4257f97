// SPDX-License-Identifier: MIT
/// @file
/// Replicas as processes: children that run a function, memory that they report in, and a folder for their
/// sessions.
#pragma once

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <system_error>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

namespace lockstep::test {

/// A value that children of this process share with it.
template <class T>
class Shared {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  Shared() {
    void* const memory =
        ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    value_ = new (memory) T();
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(value_, sizeof(T)); }
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

/// A child process that calls `body()` and ends with what it returns, or with 99 after an exception, whose
/// text goes to standard error. Killed when it is still there at the end.
class Process {
 public:
  template <class F>
  explicit Process(F&& body) : id_(::fork()) {
    if (id_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTERM}) ::signal(signal, SIG_DFL);
    int code = 99;
    try {
      code = std::forward<F>(body)();
    } catch (const std::exception& error) {
      std::cerr << "process " << ::getpid() << ": " << error.what() << std::endl;
    }
    ::_exit(code);
  }
  Process(Process&& other) noexcept : id_(std::exchange(other.id_, -1)), status_(other.status_) {}
  Process& operator=(Process&&) = delete;
  ~Process() {
    if (id_ <= 0) return;
    send(SIGKILL);
    (void)wait();
  }

  void send(int signal) const {
    if (id_ > 0) ::kill(id_, signal);
  }
  pid_t id() const { return id_; }
  /// Waits for its end. @return its code, or 128 + the signal that killed it.
  int wait() {
    if (id_ <= 0) return status_;
    int status = 0;
    while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = -1;
    return status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  /// Has ended; then `wait()` returns at once.
  bool has_ended() {
    if (id_ <= 0) return true;
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
  }

 private:
  pid_t id_;
  int status_ = 0;
};

/// A folder of its own for the sessions of one test, in memory; empty again at the end, or the test has left
/// something.
class SessionFolder {
 public:
  SessionFolder() {
    // In containers the memory file system may have only 64 MiB.
    std::error_code error;
    const auto space = std::filesystem::space("/dev/shm", error);
    std::string pattern = !error && space.available > (1U << 29) ? "/dev/shm/lockstep-test-XXXXXX"
                                                                 : "/tmp/lockstep-test-XXXXXX";
    if (!::mkdtemp(pattern.data())) throw std::bad_alloc();
    path_ = pattern;
  }
  SessionFolder(const SessionFolder&) = delete;
  SessionFolder& operator=(const SessionFolder&) = delete;
  ~SessionFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.push_back(entry.path().filename().string());
    return names;
  }

 private:
  std::string path_;
};

}  // namespace lockstep::test
