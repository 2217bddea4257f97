// SPDX-License-Identifier: MIT
/// @file
/// Times contenders round by round, so that a ratio compares neighbours in time: on a shared machine two runs
/// of the same code differ by a factor of two, two neighbours seldom do.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <time.h>
#include <utility>
#include <vector>

namespace lockstep::bench {

/// Seconds of a steady clock.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class F>
double seconds_of(F&& f) {
  const double start = now();
  std::forward<F>(f)();
  return now() - start;
}

/// The compiler may not move memory accesses across this, nor leave out stores before it.
inline void clobber() { asm volatile("" ::: "memory"); }

/// @pre not empty
inline double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 != 0) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// What one contender does in a round; returns seconds per operation.
using Run = std::function<double()>;

/// Processor time of this thread in seconds: what other programs take meanwhile does not count.
inline double thread_now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// A contender on one thread: repeats `f` as often as it takes to fill `round_seconds`, of processor time.
/// Short rounds, so that most of them pass without an interruption that empties the caches.
template <class F>
Run repeated(F f, double round_seconds = 0.0005) {
  return [f = std::move(f), round_seconds, calls = 0]() mutable {
    const auto seconds_for = [&](int count) {
      const double start = thread_now();
      for (int i = 0; i < count; ++i) {
        f();
        clobber();
      }
      return thread_now() - start;
    };
    if (calls == 0) {
      const double once = std::max(std::min(seconds_for(8), seconds_for(8)) / 8, 1e-9);
      calls = static_cast<int>(std::clamp(round_seconds / once, 1.0, 1e6));
    }
    return seconds_for(calls) / calls;
  };
}

/// Contenders that take turns.
class Interleaved {
 public:
  struct Contender {
    std::string name;
    Run run;
    std::vector<double> seconds;  // per operation, one for each round
  };

  void add(std::string name, Run run) { contenders_.push_back({std::move(name), std::move(run), {}}); }

  /// One round to warm up, then `rounds` that count. The first of a round is another one each time, so nobody
  /// always finds the caches as the same neighbour left them.
  void run(int rounds) {
    for (Contender& contender : contenders_) contender.run();
    for (int round = 0; round < rounds; ++round)
      for (std::size_t k = 0; k < contenders_.size(); ++k) {
        Contender& contender = contenders_[(k + static_cast<std::size_t>(round)) % contenders_.size()];
        contender.seconds.push_back(contender.run());
      }
  }

  const std::vector<Contender>& contenders() const { return contenders_; }
  double median(std::string_view name) const { return median_of(find(name).seconds); }
  double best(std::string_view name) const {
    const auto& seconds = find(name).seconds;
    return *std::min_element(seconds.begin(), seconds.end());
  }

  /// Median over the rounds of (time of `slow` / time of `fast`): how many times faster `fast` is.
  double ratio(std::string_view slow, std::string_view fast) const {
    return median_over_rounds(slow, fast, [](double a, double b) { return a / b; });
  }
  /// Median over the rounds of (time of `a` - time of `b`), in seconds.
  double difference(std::string_view a, std::string_view b) const {
    return median_over_rounds(a, b, [](double x, double y) { return x - y; });
  }

 private:
  template <class F>
  double median_over_rounds(std::string_view a, std::string_view b, F&& f) const {
    const auto &x = find(a).seconds, &y = find(b).seconds;
    std::vector<double> values;
    for (std::size_t round = 0; round < x.size(); ++round) values.push_back(f(x[round], y[round]));
    return median_of(std::move(values));
  }
  const Contender& find(std::string_view name) const {
    for (const Contender& contender : contenders_)
      if (contender.name == name) return contender;
    throw std::invalid_argument("no contender is called '" + std::string(name) + "'");
  }

  std::vector<Contender> contenders_;
};

}  // namespace lockstep::bench
