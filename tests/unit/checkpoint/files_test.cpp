// SPDX-License-Identifier: MIT
// That there is a whole file at every moment, whatever fails.
#include "unit/checkpoint/scene.hpp"

#include <cerrno>
#include <csignal>
#include <sys/resource.h>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// System calls that keep a record, one of which fails.
struct FailingFiles {
  static inline std::vector<std::string> calls;
  static inline std::size_t failing = 0;  ///< number of the call that fails, from 1
  static inline int reason = EIO;

  template <class Call>
  static auto tried(const char* name, Call&& call) -> decltype(call()) {
    calls.emplace_back(name);
    if (calls.size() != failing) return call();
    errno = reason;
    return -1;
  }
  using Posix = detail::PosixFiles;
  static int create(const char* path) {
    return tried("create", [&] { return Posix::create(path); });
  }
  static int open_folder(const char* path) {
    return tried("open_folder", [&] { return Posix::open_folder(path); });
  }
  static ssize_t write(int file, const void* from, std::size_t bytes) {  // never more than half
    return tried("write", [&] { return Posix::write(file, from, bytes / 2 + 1); });
  }
  static int sync(int file) {
    return tried("sync", [&] { return Posix::sync(file); });
  }
  static int close(int file) {
    const int result = Posix::close(file);  // a failed close has closed all the same
    return tried("close", [&] { return result; });
  }
  static int rename(const char* from, const char* to) {
    return tried("rename", [&] { return Posix::rename(from, to); });
  }
  static int remove(const char* path) {
    return tried("remove", [&] { return Posix::remove(path); });
  }
};

void write_by_failing_files(const std::filesystem::path& path, std::string_view content, std::size_t failing,
                            int reason = EIO) {
  FailingFiles::calls.clear();
  FailingFiles::failing = failing;
  FailingFiles::reason = reason;
  detail::AtomicFile<FailingFiles> file(path);
  file.write(std::as_bytes(std::span(content)));
  file.commit();
}

int open_files() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

}  // namespace

TEST_CASE("checkpoint files: the data are on the disk before the name, the name before the end",
          "[checkpoint]") {
  const Folder folder;
  write_by_failing_files(folder / "file", "new", 0);
  CHECK(FailingFiles::calls == std::vector<std::string>{"create", "write", "write", "sync", "close", "rename",
                                                        "open_folder", "sync", "close"});
  CHECK(content_of(folder / "file") == "new");
}

TEST_CASE("checkpoint files: whichever call fails, there is a whole file and nothing else", "[checkpoint]") {
  const Folder folder;
  const auto path = folder / "file";
  const int open_before = open_files();
  for (std::size_t failing = 1; failing <= 9; ++failing) {
    CAPTURE(failing);
    write_content(path, "old");
    if (failing == 9) {  // nothing is lost if a folder cannot be closed
      CHECK_NOTHROW(write_by_failing_files(path, "new", failing));
    } else {
      CHECK_THROWS_AS(write_by_failing_files(path, "new", failing), SystemError);
    }
    CHECK(content_of(path) == (failing <= 6 ? "old" : "new"));
    CHECK(folder.files() == std::vector<std::string>{"file"});
    CHECK(open_files() == open_before);
  }
  CHECK_THROWS_WITH(write_by_failing_files(path, "new", 8),
                    ContainsSubstring(path.string()) && ContainsSubstring("is in place") &&
                        ContainsSubstring(std::generic_category().message(EIO)));
}

TEST_CASE("checkpoint files: an interrupted write goes on, a folder may have no sync", "[checkpoint]") {
  const Folder folder;
  CHECK_NOTHROW(write_by_failing_files(folder / "file", "new", 2, EINTR));
  CHECK(content_of(folder / "file") == "new");
  CHECK_NOTHROW(write_by_failing_files(folder / "file", "newer", 8, EINVAL));
  CHECK(content_of(folder / "file") == "newer");
}

TEST_CASE("checkpoint files: a name that is taken is left alone", "[checkpoint]") {
  const Folder folder;
  write_by_failing_files(folder / "file", "1", 1, EEXIST);
  CHECK(content_of(folder / "file") == "1");
  CHECK(FailingFiles::calls[1] == "create");
}

TEST_CASE("checkpoint files: pieces of any size arrive in order", "[checkpoint]") {
  const Folder folder;
  std::string expected;
  {
    detail::AtomicFile<> file(folder / "file");
    for (const std::size_t size : std::array<std::size_t, 7>{1, 0, 65535, 1, 65536, 200000, 3}) {
      const std::string piece(size, static_cast<char>('a' + size % 26));
      file.write(std::as_bytes(std::span(piece)));
      expected += piece;
    }
    CHECK_FALSE(std::filesystem::exists(folder / "file"));
    file.commit();
  }
  CHECK(content_of(folder / "file") == expected);
  detail::AtomicFile<>(folder / "given_up");
  CHECK(folder.files() == std::vector<std::string>{"file"});
}

TEST_CASE("checkpoint files: a full disk leaves the old checkpoint", "[checkpoint]") {
  const Folder folder;
  const auto path = folder / "model.safetensors";
  const auto snapshot = rich_snapshot();
  save(path, snapshot);
  auto changed = snapshot;
  changed.arrays[0].values[0] = 77;

  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{1000, limit.rlim_max};
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = message_of(thrown_by([&] { save(path, changed); }));
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, previous);

  CHECK_THAT(message,
             ContainsSubstring(path.string()) && ContainsSubstring(std::generic_category().message(EFBIG)));
  CHECK(content_of(path) == file_of(snapshot));
  CHECK(folder.files() == std::vector<std::string>{"model.safetensors"});
}

TEST_CASE("checkpoint files: what cannot be written or read is an error with its reason", "[checkpoint]") {
  const Folder folder;
  const auto snapshot = rich_snapshot();
  const auto message = [](auto&& call) {
    const auto thrown = thrown_by(call);
    CHECK(caught<SystemError>(thrown));
    return message_of(thrown);
  };
  const std::string missing = std::generic_category().message(ENOENT);
  CHECK_THAT(message([&] { save(folder / "no/model", snapshot); }),
             ContainsSubstring("no/model") && ContainsSubstring(missing));
  CHECK_THAT(message([&] { load(folder / "nothing"); }),
             ContainsSubstring("nothing") && ContainsSubstring(missing));
  std::filesystem::create_directory(folder / "folder");
  CHECK_THAT(message([&] { save(folder / "folder", snapshot); }), ContainsSubstring("folder"));
  CHECK_THAT(message([&] { load(folder / "folder"); }), ContainsSubstring("is no regular file"));
  CHECK(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THAT(message([&] { load(folder / "pipe"); }),
             ContainsSubstring("is no regular file"));  // and no wait
  std::filesystem::create_symlink("pipe", folder / "link");
  for (const char* name : {"pipe", "link"})
    CHECK_THAT(message([&] { save(folder / name, snapshot); }), ContainsSubstring("is not replaced"));
  CHECK(std::filesystem::is_fifo(folder / "pipe"));
  CHECK(std::filesystem::is_symlink(folder / "link"));
  CHECK(folder.files() == std::vector<std::string>{"folder", "link", "pipe"});
}
