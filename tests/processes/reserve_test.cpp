// SPDX-License-Identifier: MIT
// Reserving the pages of a segment while signals come.
#include "processes/scenario.hpp"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct Piece {
  off_t offset, size;
  bool may_be_interrupted;
};
/// What was asked of `posix_fallocate`, while a test listens.
std::vector<Piece>* asked = nullptr;
/// Whether a call gives up as after a signal.
std::function<bool()> is_interrupted;

/// Makes a session of so many bytes and more. @return what it says; empty if that works.
std::string reserve(const std::string& folder, Index bytes, std::chrono::milliseconds patience) {
  Variables<double> variables;
  (void)variables.add("w", Eigen::VectorXd::Zero(bytes / Index{sizeof(double)}));
  try {
    const SyncReplicas trainer(Sgd{1.0}, variables, {.replicas_to_aggregate = 1},
                               SharedMemory{.name = "test", .directory = folder, .patience = patience});
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

/// In the place of that of the C library: its first look at the signals is the kernel's.
extern "C" int posix_fallocate(int file, off_t offset, off_t size) {
  if (asked) {
    sigset_t held;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &held);
    asked->push_back({offset, size, ::sigismember(&held, SIGPROF) == 0});
    if (is_interrupted && is_interrupted()) return EINTR;
  }
  return ::syscall(SYS_fallocate, file, 0, offset, size) == 0 ? 0 : errno;
}

TEST_CASE("a segment is reserved in pieces, each of which may be interrupted", "[processes][segment]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  std::vector<Piece> pieces;
  asked = &pieces;
  is_interrupted = [&] { return pieces.size() % 2 == 1; };  // each piece once
  const std::string said = reserve(folder.path(), Index{40} << 20, 30s);
  asked = nullptr;
  is_interrupted = nullptr;
  CHECK(said == "");
  REQUIRE(pieces.size() >= 6);
  CHECK(pieces.size() % 2 == 0);
  off_t reserved = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    CHECK(pieces[i].offset == reserved);
    CHECK(pieces[i].size <= 16 << 20);
    CHECK(!pieces[i].may_be_interrupted);
    if (i % 2 == 1) reserved += pieces[i].size;
  }
  CHECK(reserved >= 40 << 20);
  sigset_t held;
  REQUIRE(::pthread_sigmask(SIG_BLOCK, nullptr, &held) == 0);
  CHECK(::sigismember(&held, SIGPROF) == 0);
}

TEST_CASE("a segment that is interrupted for ever is given up at the deadline", "[processes][segment]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  std::vector<Piece> pieces;
  asked = &pieces;
  is_interrupted = [&] {
    if (pieces.size() > 2) pieces.pop_back();
    return true;
  };
  const std::string said = reserve(folder.path(), 1000, 50ms);
  asked = nullptr;
  is_interrupted = nullptr;
  CHECK(has(said, "cannot reserve "));
  CHECK(has(said, "Interrupted system call"));
  CHECK(!pieces.empty());
  CHECK(folder.files().empty());
}
