// SPDX-License-Identifier: MIT
#include "ending.hpp"

#include <cerrno>
#include <cstring>

namespace launcher {

int Ending::exit_status() const {
  switch (kind) {
    case Kind::signaled:
      return 128 + code;
    case Kind::not_started:
      return code == ENOENT ? 127 : 126;
    case Kind::exited:
      break;
  }
  return code;
}

std::string to_string(const Ending& ending) {
  switch (ending.kind) {
    case Ending::Kind::signaled:
      return signal_name(ending.code);
    case Ending::Kind::not_started:
      return std::string("not started (") + std::strerror(ending.code) + ")";
    case Ending::Kind::exited:
      break;
  }
  return "status " + std::to_string(ending.code);
}

std::string signal_name(int signal) {
  const char* abbreviation = sigabbrev_np(signal);
  return abbreviation != nullptr ? std::string("SIG") + abbreviation : "signal " + std::to_string(signal);
}

}  // namespace launcher
