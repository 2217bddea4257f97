// SPDX-License-Identifier: MIT
/// @file
/// An observer that keeps all it is told.
#pragma once

#include "unit/sync/scene.hpp"
#include <lockstep/observe/observer.hpp>

#include <mutex>

namespace lockstep::test {

struct Recorder {
  void on(const Span& span) noexcept {
    const std::lock_guard lock(mutex);
    spans.push_back(span);
  }
  void on(const StepEnd& step) noexcept {
    const std::lock_guard lock(mutex);
    steps.push_back(step);
  }

  /// Of one replica, in order of their beginning.
  std::vector<Span> of(int replica) const {
    std::vector<Span> result;
    for (const Span& span : spans)
      if (span.replica == replica) result.push_back(span);
    std::stable_sort(result.begin(), result.end(),
                     [](const Span& a, const Span& b) { return a.begin < b.begin; });
    return result;
  }
  /// Of all replicas, in the order in which they were told.
  std::vector<Span> of(Activity activity) const {
    std::vector<Span> result;
    for (const Span& span : spans)
      if (span.activity == activity) result.push_back(span);
    return result;
  }
  std::vector<Status> statuses(int replica) const {
    std::vector<Status> result;
    for (const StepEnd& step : steps)
      if (step.replica == replica) result.push_back(step.result.status);
    return result;
  }

  std::mutex mutex;
  std::vector<Span> spans;
  std::vector<StepEnd> steps;
};

inline std::int64_t count(const std::vector<Span>& spans, Activity activity) {
  return std::count_if(spans.begin(), spans.end(),
                       [&](const Span& span) { return span.activity == activity; });
}

/// Each of them ends before the next one begins.
inline bool are_in_turn(const std::vector<Span>& spans) {
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].end < spans[i].begin) return false;
    if (i > 0 && spans[i].begin < spans[i - 1].end) return false;
  }
  return true;
}

}  // namespace lockstep::test
