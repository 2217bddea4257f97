// SPDX-License-Identifier: MIT
/// @file
/// What one sees while training runs: a bar on a terminal, a few lines elsewhere.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <unistd.h>

namespace digits {

/// Used by one replica only.
class Progress {
 public:
  explicit Progress(std::int64_t steps) : steps_(steps) {}

  /// Whether it is time to look at the model for a report.
  bool is_due(std::int64_t step) const { return step >= next_; }

  void report(std::int64_t step, double loss, double accuracy, std::int64_t dropped) {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    const double done = static_cast<double>(step) / static_cast<double>(steps_);
    const std::int64_t stride = std::max<std::int64_t>(1, steps_ / (is_terminal_ ? 100 : 10));
    next_ = step < steps_ ? std::min(steps_, (step / stride + 1) * stride) : steps_ + 1;
    if (is_terminal_) {
      const auto filled = static_cast<std::size_t>(30 * std::min(1.0, done));
      const std::string bar = std::string(filled, '=') + std::string(30 - filled, ' ');
      std::printf("\r[%s] %3.0f %%", bar.c_str(), 100 * done);
    } else {
      std::printf("step %lld", static_cast<long long>(step));
    }
    std::printf("  loss %.4f  accuracy %.4f  %.0f updates/s  %lld gradients dropped%s", loss, accuracy,
                static_cast<double>(step) / seconds, static_cast<long long>(dropped),
                !is_terminal_ || step >= steps_ ? "\n" : " ");
    std::fflush(stdout);
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::int64_t steps_;
  std::int64_t next_ = 1;
  Clock::time_point start_ = Clock::now();
  bool is_terminal_ = isatty(STDOUT_FILENO) != 0;
};

}  // namespace digits
