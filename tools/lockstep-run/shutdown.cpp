// SPDX-License-Identifier: MIT
#include "shutdown.hpp"

#include <csignal>

namespace launcher {

Shutdown::Shutdown(Clock::time_point start, Clock::duration grace, std::optional<Clock::duration> timeout)
    : grace_(grace) {
  if (timeout) timeout_ = start + *timeout;
}

bool Shutdown::is_stop_signal(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGQUIT || signal == SIGHUP;
}

int Shutdown::on_signal(int signal, Clock::time_point now) {
  if (!is_stop_signal(signal)) return signal;
  if (!is_stopping()) return begin(signal, now);
  if (signal == SIGHUP || now - stop_requested_ < k_same_request) return signal == stop_signal_ ? 0 : signal;
  is_killing_ = true;
  return SIGKILL;
}

int Shutdown::request_stop(Clock::time_point now) { return is_stopping() ? 0 : begin(SIGTERM, now); }

int Shutdown::on_time(Clock::time_point now) {
  if (is_killing_) return 0;
  if (is_stopping()) {
    if (now < stop_requested_ + grace_) return 0;
    is_killing_ = true;
    return SIGKILL;
  }
  if (!timeout_ || now < *timeout_) return 0;
  has_timed_out_ = true;
  return begin(SIGTERM, now);
}

std::optional<Clock::time_point> Shutdown::next_deadline() const {
  if (is_killing_) return {};
  if (is_stopping()) return stop_requested_ + grace_;
  return timeout_;
}

int Shutdown::begin(int signal, Clock::time_point now) {
  stop_signal_ = signal;
  stop_requested_ = now;
  return signal;
}

}  // namespace launcher
