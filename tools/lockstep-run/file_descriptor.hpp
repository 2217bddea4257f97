// SPDX-License-Identifier: MIT
/// @file
/// Owns a file descriptor.
#pragma once

#include <fcntl.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace launcher {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~FileDescriptor() { close(); }

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  void close() {
    if (is_open()) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

/// Both ends are closed in programs that this process executes.
struct Pipe {
  FileDescriptor read_end, write_end;

  /// @throws std::system_error
  static Pipe open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  }
};

}  // namespace launcher
