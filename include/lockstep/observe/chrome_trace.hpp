// SPDX-License-Identifier: MIT
/// @file
/// A time line of all replicas in the trace event format of Chrome, which Perfetto shows. Opt-in.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/observe/observer.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Options of `ChromeTrace`.
struct ChromeTraceOptions {
  int replicas = 1;  ///< N of the trainer
  /// Spans of each replica that have room, some 60 bytes each; a step has about six. At most 2^28.
  std::size_t capacity = 1U << 14;
  int process = 1;  ///< number in the file, where files of several processes are put together
};

/// Keeps what replicas do and writes it as JSON: open it with https://ui.perfetto.dev or chrome://tracing.
/// Each replica is a thread of the picture, each span a box with the global step and the number of tiles; a
/// gradient that was not accepted, and a token (another contribution to the same round), is a mark.
/// @par Source Trace Event Format, Google, "Complete Events" and "Instant Events".
/// @par Thread safety All members may be called from any thread. Nothing is allocated after construction but
/// by `write` and `spans`; what no longer has room is counted and left out.
class ChromeTrace {
 public:
  /// Takes the memory. @throws InvalidArgument for a number below 1 or above its limit.
  explicit ChromeTrace(const ChromeTraceOptions& options)
      : options_(options), lanes_(detail::replicas_to_observe(options.replicas, options.capacity) + 1) {
    for (Lane& lane : lanes_) lane.events = std::make_unique<Event[]>(options.capacity);
  }

  /// Keeps a span.
  void on(const Span& span) noexcept { keep(span, nullptr); }
  /// Keeps what is more than a gradient in an update.
  void on(const StepEnd& step) noexcept {
    const Status status = step.result.status;
    const bool is_usual = status == Status::accepted || status == Status::accumulated;
    if (is_usual && !step.result.round_open) return;
    const auto now = Clock::now();
    keep({.replica = step.replica, .step = step.result.global_step, .begin = now, .end = now},
         is_usual ? "token" : to_string(status));
  }

  /// Spans that are kept: those of each replica in order of their beginning, then those of threads that are
  /// none.
  std::vector<Span> spans() const {
    std::vector<Span> result;
    for (const Lane& lane : lanes_)
      for (const Event* event : events(lane))
        if (!event->mark) result.push_back(event->span);
    return result;
  }
  /// Spans and marks that had no room.
  std::int64_t dropped() const {
    std::int64_t sum = other_replicas_.load(std::memory_order_relaxed);
    for (const Lane& lane : lanes_) {
      const std::size_t wanted = lane.taken.load(std::memory_order_relaxed);
      sum += static_cast<std::int64_t>(wanted - std::min(wanted, options_.capacity));
    }
    return sum;
  }

  /// Writes a JSON object with an event per line. Times are microseconds of the steady clock, so the events
  /// of all processes of a machine fit together. Errors are in the state of `out`.
  void write(std::ostream& out) const {
    out << R"({"displayTimeUnit":"ns","otherData":{"dropped":")" << std::to_string(dropped())
        << "\"},\"traceEvents\":[\n"
        << head("process_name", 'M', 0) << R"(,"args":{"name":"lockstep"}})";
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      const bool is_replica = i + 1 < lanes_.size();
      const std::vector<const Event*> kept = events(lanes_[i]);
      if (!is_replica && kept.empty()) continue;
      const std::string name = is_replica ? "replica " + std::to_string(i) : "no replica";
      out << ",\n" << head("thread_name", 'M', i) << R"(,"args":{"name":")" << name << "\"}}";
      for (const Event* event : kept) out << ",\n" << text_of(*event, i);
    }
    out << "\n]}\n";
  }

 private:
  struct Event {
    Span span;
    const char* mark = nullptr;  // of an instant; a span has none
    std::atomic<bool> is_there = false;
  };
  /// What one replica, or all threads that are none, have done. Any thread may add to it.
  struct alignas(k_alignment) Lane {
    std::atomic<std::size_t> taken = 0;
    std::unique_ptr<Event[]> events;
  };

  void keep(const Span& span, const char* mark) noexcept {
    if (span.replica >= options_.replicas) {
      other_replicas_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    Lane& lane = lanes_[span.replica < 0 ? lanes_.size() - 1 : static_cast<std::size_t>(span.replica)];
    const std::size_t at = lane.taken.fetch_add(1, std::memory_order_relaxed);
    if (at >= options_.capacity) return;
    Event& event = lane.events[at];
    event.span = span;
    event.mark = mark;
    event.is_there.store(true, std::memory_order_release);  // pairs with `events`
  }

  /// In order of their beginning, and of their recording where they begin together.
  std::vector<const Event*> events(const Lane& lane) const {
    std::vector<const Event*> result;
    const std::size_t count = std::min(lane.taken.load(std::memory_order_relaxed), options_.capacity);
    for (std::size_t i = 0; i < count; ++i)
      if (lane.events[i].is_there.load(std::memory_order_acquire)) result.push_back(&lane.events[i]);
    std::sort(result.begin(), result.end(), [](const Event* a, const Event* b) {
      return a->span.begin != b->span.begin ? a->span.begin < b->span.begin : std::less<>()(a, b);
    });
    return result;
  }

  /// What every event begins with; its object is still open.
  std::string head(const char* name, char phase, std::size_t thread) const {
    return std::string(R"({"name":")") + name + R"(","ph":")" + phase + R"(","pid":)" +
           std::to_string(options_.process) + R"(,"tid":)" + std::to_string(thread);
  }
  std::string text_of(const Event& event, std::size_t thread) const {
    const Span& span = event.span;
    std::string text =
        head(event.mark ? event.mark : to_string(span.activity), event.mark ? 'i' : 'X', thread);
    text += R"(,"ts":)" + microseconds(span.begin.time_since_epoch());
    text += event.mark ? R"(,"s":"t")" : R"(,"dur":)" + microseconds(span.end - span.begin);
    text += R"(,"args":{"step":)" + std::to_string(span.step);
    if (span.items > 0) text += R"(,"items":)" + std::to_string(span.items);
    return text + "}}";
  }
  /// Without rounding, in any locale.
  static std::string microseconds(Clock::duration duration) {
    const auto count = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
    const std::string fraction = std::to_string(count % 1000);
    return std::to_string(count / 1000) + '.' + std::string(3 - fraction.size(), '0') + fraction;
  }

  ChromeTraceOptions options_;
  std::vector<Lane> lanes_;  // of each replica, then of all other threads
  std::atomic<std::int64_t> other_replicas_ = 0;
};

LOCKSTEP_NAMESPACE_END
