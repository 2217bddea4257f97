// SPDX-License-Identifier: MIT
#include "ended_file.hpp"

#include <lockstep/transport/launcher.hpp>

#include <cerrno>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

namespace launcher {
namespace {

void write_at(int file, const std::string& text, std::size_t offset) {
  if (pwrite(file, text.data(), text.size(), static_cast<off_t>(offset)) != static_cast<ssize_t>(text.size()))
    throw std::system_error(errno, std::generic_category(), "cannot write to a file in memory");
}

}  // namespace

EndedFile::EndedFile(const std::string& session, std::size_t replicas)
    : file_(memfd_create("lockstep-run", MFD_CLOEXEC)) {
  if (!file_.is_open()) throw std::system_error(errno, std::generic_category(), "memfd_create");
  const std::string title = lockstep::detail::ended_file_title(session);
  title_size_ = title.size();
  write_at(file_.number(), title + std::string(replicas, '.'), 0);
}

std::string EndedFile::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file_.number());
}

void EndedFile::note(std::size_t replica, const Ending& ending) const {
  write_at(file_.number(), ending.is_success() ? "+" : "-", title_size_ + replica);
}

}  // namespace launcher
