// SPDX-License-Identifier: MIT
/// @file
/// Files of checkpoints: read at any place, written so that there is always a whole one.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <span>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// The system calls that write a file. Each returns a negative number and sets `errno` when it fails.
struct PosixFiles {
  static int create(const char* path) { return ::open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }
  static int open_folder(const char* path) { return ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }
  static ssize_t write(int file, const void* from, std::size_t bytes) { return ::write(file, from, bytes); }
  static int sync(int file) { return ::fsync(file); }
  static int close(int file) { return ::close(file); }
  static int rename(const char* from, const char* to) { return std::rename(from, to); }
  static int remove(const char* path) { return ::unlink(path); }
};

/// @throws SystemError with the reason that the system gives in `errno`.
[[noreturn]] inline void throw_errno(const std::filesystem::path& path, const std::string& what) {
  const int error = errno;
  throw SystemError(text(path.string(), ": ", what, ": ", reason(error)));
}

/// A file that takes the place of `target` at `commit()`, in one step: until then, and if that fails, the old
/// one is there. It is written under another name in the same folder, brought to the disk, renamed, and then
/// the folder is brought to the disk. A process that is killed meanwhile leaves the other name behind.
/// @tparam Files the system calls, see PosixFiles.
template <class Files = PosixFiles>
class AtomicFile {
 public:
  /// @throws SystemError, as all members do; also if `target` is something else than a file, since root could
  /// rename over a device or a pipe.
  explicit AtomicFile(const std::filesystem::path& target) : target_(target) {
    static std::atomic<unsigned> count{0};
    std::error_code ignored;  // what is not there, or cannot be asked for, is no device
    if (const auto found = std::filesystem::status(target_, ignored);
        std::filesystem::exists(found) && !std::filesystem::is_regular_file(found))
      throw SystemError(target_.string() + ": is no regular file, so it is not replaced");
    buffer_.reserve(k_buffer);
    do {
      temporary_ = target_;
      temporary_ += text('.', ::getpid(), '-', count++, ".tmp");
      file_ = Files::create(temporary_.c_str());
    } while (file_ < 0 && errno == EEXIST);
    if (file_ < 0) throw_errno(target_, "cannot create a file beside it");
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile() {
    if (file_ >= 0) Files::close(file_);
    if (!is_done_) Files::remove(temporary_.c_str());
  }

  void write(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > k_buffer) flush();
    if (bytes.size() > k_buffer)
      write_through(bytes);
    else
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }

  /// @throws SystemError; only if it says so is the new file in place.
  void commit() {
    flush();
    if (Files::sync(file_) < 0) throw_errno(target_, "cannot bring it to the disk");
    const int file = file_;
    file_ = -1;
    if (Files::close(file) < 0) throw_errno(target_, "cannot close the new file");
    if (Files::rename(temporary_.c_str(), target_.c_str()) < 0)
      throw_errno(target_, "cannot put the new file in its place");
    is_done_ = true;
    sync_folder();
  }

 private:
  static constexpr std::size_t k_buffer = std::size_t{1} << 16;

  void flush() {
    write_through(buffer_);
    buffer_.clear();
  }
  void write_through(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = Files::write(file_, bytes.data(), bytes.size());
      if (written == 0) errno = ENOSPC;
      if (written > 0)
        bytes = bytes.subspan(static_cast<std::size_t>(written));
      else if (errno != EINTR)
        throw_errno(target_, "cannot write the new file");
    }
  }
  /// Some file systems cannot, and say so by EINVAL or ENOTSUP: then the rename is all there is.
  void sync_folder() {
    const std::filesystem::path folder = target_.has_parent_path() ? target_.parent_path() : ".";
    const int opened = Files::open_folder(folder.c_str());
    if (opened < 0) throw_errno(target_, "the new file is in place, but its folder cannot be opened");
    const int result = Files::sync(opened), reason = errno;
    Files::close(opened);
    errno = reason;
    if (result < 0 && reason != EINVAL && reason != ENOTSUP)
      throw_errno(target_, "the new file is in place, but its folder cannot be brought to the disk");
  }

  std::filesystem::path target_, temporary_;
  int file_ = -1;
  bool is_done_ = false;
  std::vector<std::byte> buffer_;
};

/// A file to read from at any place.
class FileSource {
 public:
  static constexpr bool k_has_values = true;  // of tensors

  /// @throws SystemError if it cannot be opened or is no regular file.
  explicit FileSource(const std::filesystem::path& path)
      : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (file_ < 0) throw_errno(path_, "cannot open it");
    struct stat status {};
    if (::fstat(file_, &status) < 0 || !S_ISREG(status.st_mode)) {
      ::close(file_);
      throw SystemError(name() + ": is no regular file");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
  }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() { ::close(file_); }

  std::string name() const { return path_.string(); }
  std::uint64_t size() const { return size_; }
  /// Fills `to` with the bytes from `offset` on. @throws SystemError if that cannot be.
  void read(std::uint64_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
      const ssize_t count = ::pread(file_, to.data(), to.size(), static_cast<off_t>(offset));
      if (count == 0) throw SystemError(text(name(), ": it ended at byte ", offset, " while it was read"));
      if (count < 0 && errno != EINTR) throw_errno(path_, "cannot read it");
      if (count < 0) continue;
      offset += static_cast<std::uint64_t>(count);
      to = to.subspan(static_cast<std::size_t>(count));
    }
  }

 private:
  std::filesystem::path path_;
  int file_;
  std::uint64_t size_ = 0;
};

/// The same for memory.
struct MemorySource {
  static constexpr bool k_has_values = true;
  std::span<const std::byte> bytes;
  std::string label = "memory";

  std::string name() const { return label; }
  std::uint64_t size() const { return bytes.size(); }
  void read(std::uint64_t offset, std::span<std::byte> to) const {
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
  }
};
struct MemorySink {
  std::vector<std::byte> bytes;
  void write(std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); }
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
