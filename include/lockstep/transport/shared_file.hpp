// SPDX-License-Identifier: MIT
/// @file
/// An open file that a forked child does not keep, and locks on single bytes of it.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/transport/large_pages.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#if defined(__linux__)

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// What a forked child must let go of before any of its code runs: an open file whose locks are its parent's,
/// a mapping that it would write into. Ends both; no fork comes between an end and its being known.
class ForkEntry {
 public:
  /// @param open gives the open file; no fork comes between that and this entry.
  template <class Open>
  explicit ForkEntry(Open open) {
    const std::lock_guard lock(list().mutex);
    file = open();
    open_error = errno;
    next_ = std::exchange(list().first, this);
    if (next_) next_->previous_ = this;
  }
  ForkEntry(const ForkEntry&) = delete;
  ForkEntry& operator=(const ForkEntry&) = delete;
  ~ForkEntry() {
    const std::lock_guard lock(list().mutex);
    (previous_ ? previous_->next_ : list().first) = next_;
    if (next_) next_->previous_ = previous_;
    if (mapping) ::munmap(mapping, bytes);
    if (file >= 0) ::close(file);
  }

  int file = -1;  ///< negative if it could not be opened; then `open_error` says why
  int open_error = 0;
  void* mapping = nullptr;
  std::size_t bytes = 0;

 private:
  struct List {
    List() {
      if (const int error = ::pthread_atfork([] { list().mutex.lock(); }, [] { list().mutex.unlock(); },
                                             &ForkEntry::in_child))
        throw SystemError("pthread_atfork: " + reason(error));
    }
    std::mutex mutex;
    ForkEntry* first = nullptr;
  };
  /// Never destroyed: entries of static objects may end after it.
  static List& list() {
    static List& the_list = *new List;
    return the_list;
  }
  static void in_child() {
    for (ForkEntry* entry = list().first; entry; entry = entry->next_) {
      if (entry->mapping && entry->file >= 0 &&
          ::mmap(entry->mapping, entry->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, entry->file,
                 0) == MAP_FAILED)
        (void)::mmap(entry->mapping, entry->bytes, PROT_NONE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0);
      if (entry->file >= 0) ::close(std::exchange(entry->file, -1));
    }
    list().mutex.unlock();
  }

  ForkEntry* previous_ = nullptr;
  ForkEntry* next_ = nullptr;
};

/// An open file and, with `map`, its bytes in memory.
class SharedFile {
 public:
  SharedFile() = default;
  /// Opens a file for reading and writing; false, with `errno`, if that fails.
  SharedFile(const std::string& path, int flags, mode_t mode = 0)
      : entry_(std::make_unique<ForkEntry>(
            [&] { return ::open(path.c_str(), flags | O_RDWR | O_CLOEXEC, mode); })) {
    if (entry_->file >= 0) return;
    const int error = entry_->open_error;
    entry_.reset();
    errno = error;
  }

  explicit operator bool() const { return entry_ && entry_->file >= 0; }
  int number() const { return entry_ ? entry_->file : -1; }

  /// Where large pages of the file can be used as such. @throws SystemError
  std::byte* map(std::size_t bytes, const std::string& path) {
    void* const address =
        ::mmap(room_for_large_pages(bytes), bytes, PROT_READ | PROT_WRITE, MAP_SHARED, number(), 0);
    if (address == MAP_FAILED) throw SystemError(text(path, ": cannot map ", bytes, " bytes: ", reason()));
    entry_->bytes = bytes;
    entry_->mapping = address;
    return static_cast<std::byte*>(address);
  }

  /// The same file opened once more, so that its locks are those of one owner.
  SharedFile reopened() const {
    const std::string self = "/proc/self/fd/" + std::to_string(number());
    SharedFile again(self, 0);
    if (!again) throw SystemError(self + ": " + reason());
    return again;
  }

  // ---- locks on one byte far behind the end: they last until the file is closed, by whatever means

  /// Where byte 0 of them lies.
  static constexpr std::int64_t k_first_lock = std::int64_t{1} << 40;

  bool try_lock(std::int64_t byte) const { return set_lock(byte, F_WRLCK); }
  bool try_share(std::int64_t byte) const { return set_lock(byte, F_RDLCK); }
  void unlock(std::int64_t byte) const { (void)set_lock(byte, F_UNLCK); }
  /// Somebody else who has opened the file holds the byte, exclusively or shared.
  bool is_locked_elsewhere(std::int64_t byte) const {
    struct flock lock = on(byte, F_WRLCK);
    // What cannot be asked counts as held: the living must not be taken for dead.
    return ::fcntl(number(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  }

 private:
  static struct flock on(std::int64_t byte, int type) {
    struct flock lock {};
    lock.l_type = static_cast<short>(type);
    lock.l_whence = SEEK_SET;
    lock.l_start = k_first_lock + byte;
    lock.l_len = 1;
    return lock;
  }
  bool set_lock(std::int64_t byte, int type) const {
    struct flock lock = on(byte, type);
    int result = 0;
    do result = ::fcntl(number(), F_OFD_SETLK, &lock);
    while (result != 0 && errno == EINTR);
    return result == 0;
  }

  std::unique_ptr<ForkEntry> entry_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END

#endif  // Linux
