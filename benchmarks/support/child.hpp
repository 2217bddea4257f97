// SPDX-License-Identifier: MIT
/// @file
/// A process that answers one line with one line, so that rivals in other processes can take turns with us.
#pragma once

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <functional>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace lockstep::bench {

/// One end of a connection that carries lines.
class Lines {
 public:
  /// @param descriptor is closed at the end. No program that is started meanwhile inherits it, or the other
  /// side would never see that end.
  explicit Lines(int descriptor)
      : in_(fdopen(fcntl(descriptor, F_DUPFD_CLOEXEC, 0), "r")), out_(fdopen(descriptor, "w")) {
    if (in_ == nullptr || out_ == nullptr) throw std::runtime_error("child process: no streams");
  }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  ~Lines() {
    std::fclose(in_);
    std::fclose(out_);
  }
  void write(const std::string& line) {
    std::fputs((line + '\n').c_str(), out_);
    std::fflush(out_);
  }
  /// Without the newline; empty when the other side has ended.
  std::string read() {
    std::string line;
    for (int c = std::fgetc(in_); c != EOF && c != '\n'; c = std::fgetc(in_)) line += static_cast<char>(c);
    return line;
  }

 private:
  std::FILE* in_;
  std::FILE* out_;
};

/// A child process. It sees the end of its input when this object goes.
class Child {
 public:
  /// Runs a program: lines come on its standard input, answers from its standard output.
  explicit Child(const std::vector<std::string>& command)
      : Child([&](int descriptor) {
          dup2(descriptor, STDIN_FILENO);
          dup2(descriptor, STDOUT_FILENO);
          std::vector<char*> arguments;
          for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
          arguments.push_back(nullptr);
          execvp(arguments[0], arguments.data());
          std::perror(arguments[0]);
        }) {}
  /// Forks; the child calls `body(descriptor)` and ends. Before there are threads.
  explicit Child(const std::function<void(int)>& body) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw std::runtime_error("socketpair failed");
    process_ = fork();
    if (process_ < 0) throw std::runtime_error("fork failed");
    if (process_ == 0) {
      close(ends[0]);
      body(ends[1]);
      std::_Exit(1);
    }
    close(ends[1]);
    lines_ = new Lines(ends[0]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    delete lines_;
    waitpid(process_, nullptr, 0);
  }

  void tell(const std::string& line) { lines_->write(line); }
  std::string answer() {
    std::string line = lines_->read();
    if (line.empty()) throw std::runtime_error("the child process has ended");
    return line;
  }
  std::string ask(const std::string& line) {
    tell(line);
    return answer();
  }

 private:
  pid_t process_;
  Lines* lines_ = nullptr;
};

}  // namespace lockstep::bench
