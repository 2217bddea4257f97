// SPDX-License-Identifier: MIT
/// @file
/// A line of figures for each update, as JSON. Opt-in.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/observe/observer.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Options of `Metrics`.
struct MetricsOptions {
  int replicas = 1;  ///< N of the trainer
  /// Steps of each replica that have room between two calls of `write`. At most 2^28.
  std::size_t capacity = 1U << 12;
};

/// Counts what becomes of gradients and how long replicas wait, and writes a line of JSON per update:
/// @code{.json}
/// {"step":7,"seconds":0.0123,"loss":0.31,"contributions":4,"accepted":4,"stale":0,"not_needed":0,"skipped":0,
///  "waiting":[0.21,0.02,0.34,0.2]}
/// @endcode
/// `step`: global step after the update. `seconds`: since this object was made. `loss`: mean over the
/// gradients that were given one, or null. `contributions`: gradients in the update. Then how many gradients
/// were accepted, and so on, since the line before. `waiting`: the share of its time since the update before
/// that each replica slept, or null if it has not seen this update.
/// @par Thread safety `note_loss` belongs to the thread of the replica; all others may be called from any
/// thread. Only `write` and `finish` allocate or lock.
class Metrics {
 public:
  /// Takes the memory. @throws InvalidArgument for a number below 1 or above its limit.
  explicit Metrics(const MetricsOptions& options)
      : seats_(detail::replicas_to_observe(options.replicas, options.capacity)) {
    for (Seat& seat : seats_) seat.records.resize(options.capacity);
  }

  /// The loss of the gradient that this replica hands over next.
  void note_loss(int replica, double loss) noexcept {
    if (!has(replica)) return;
    Record& open = seats_[static_cast<std::size_t>(replica)].open;
    open.loss += loss;
    ++open.losses;
  }

  /// Adds up waits.
  void on(const Span& span) noexcept {
    // The others may be those of a replica that has left, while another one has its number.
    const bool is_of_sitter = span.activity == Activity::compute || span.activity == Activity::wait;
    if (!is_of_sitter || !has(span.replica)) return;
    Record& open = seats_[static_cast<std::size_t>(span.replica)].open;
    if (open.begin == Clock::time_point()) open.begin = span.begin;
    // Not of a wait: who joins may wait for the initial values, or for an update.
    if (open.step < 0 && span.activity == Activity::compute) open.step = span.step;
    if (span.activity == Activity::wait) open.waited += span.end - span.begin;
  }
  /// Counts, and closes what it has counted of a replica when that sees another update.
  void on(const StepEnd& step) noexcept {
    if (!has(step.replica)) return;
    Seat& seat = seats_[static_cast<std::size_t>(step.replica)];
    seat.open.count(step.result.status);
    if (step.result.global_step == seat.open.step) return;
    seat.open.step = step.result.global_step;
    seat.open.contributions = step.result.contributions;
    seat.open.end = Clock::now();
    seat.push();
    seat.open = {.step = seat.open.step, .begin = seat.open.end};
  }

  /// Writes a line for each update but the last one that a replica has seen: who contributes to an update has
  /// seen the one before. What a late backup replica tells is in the line that follows. Errors are in the
  /// state of `out`.
  void write(std::ostream& out) { write(out, false); }
  /// The same with the last update, once replicas have ended. Before a `restore` that goes back to an earlier
  /// step as well: otherwise what is told of steps that come again is in the line that follows.
  void finish(std::ostream& out) { write(out, true); }

  /// Steps of replicas that had no room, because `write` was called too seldom.
  std::int64_t dropped() const {
    std::int64_t sum = 0;
    for (const Seat& seat : seats_) sum += seat.dropped.load(std::memory_order_relaxed);
    return sum;
  }

 private:
  /// What one replica did from one update to the next.
  struct Record {
    std::int64_t step = -1;  // the update at its end; of the open one the update before; -1: not known yet
    Clock::time_point begin = {}, end = {};
    Clock::duration waited{0};
    double loss = 0;  // sum
    int losses = 0;
    int contributions = 0;
    int accepted = 0, stale = 0, not_needed = 0, skipped = 0;

    void count(Status status) noexcept {
      accepted += status == Status::accepted || status == Status::accumulated;
      stale += status == Status::stale || status == Status::old_generation;
      not_needed += status == Status::not_needed;
      skipped += status == Status::skipped;
    }
    void add(const Record& other) {
      end = std::max(end, other.end);
      loss += other.loss;
      losses += other.losses;
      contributions = std::max(contributions, other.contributions);
      accepted += other.accepted;
      stale += other.stale;
      not_needed += other.not_needed;
      skipped += other.skipped;
    }
    double share() const {
      const Clock::duration lasted = end - begin;
      return lasted.count() > 0 ? std::chrono::duration<double>(waited) / lasted : 0;
    }
  };

  /// A ring that the replica fills and `write` empties.
  struct alignas(k_alignment) Seat {
    Record open;
    std::vector<Record> records;
    std::atomic<std::size_t> pushed = 0, popped = 0;
    std::atomic<std::int64_t> dropped = 0;

    void push() noexcept {
      const std::size_t at = pushed.load(std::memory_order_relaxed);        // only this thread changes it
      if (at - popped.load(std::memory_order_acquire) == records.size()) {  // pairs with `pop`
        dropped.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      records[at % records.size()] = open;
      pushed.store(at + 1, std::memory_order_release);  // pairs with `pop`
    }
    std::optional<Record> pop() {
      const std::size_t at = popped.load(std::memory_order_relaxed);  // changed under the lock of `write`
      if (at == pushed.load(std::memory_order_acquire)) return {};
      const Record record = records[at % records.size()];
      popped.store(at + 1, std::memory_order_release);
      return record;
    }
  };

  /// What each replica did, for one line.
  using Row = std::vector<std::optional<Record>>;

  bool has(int replica) const noexcept {
    return replica >= 0 && static_cast<std::size_t>(replica) < seats_.size();
  }

  void write(std::ostream& out, bool with_last) {
    const std::lock_guard lock(mutex_);
    // Replicas go on while the seats are emptied one after the other. But once somebody has told of a step,
    // all who contributed to it have told of those before: the second time finds that.
    take_all();
    const std::int64_t newest = rows_.empty() ? 0 : rows_.rbegin()->first;
    take_all();
    while (!rows_.empty() && (with_last || rows_.begin()->first < newest)) {
      const auto first = rows_.begin();
      written_ = first->first;
      out << line(first->first, first->second);
      rows_.erase(first);
    }
    if (with_last) written_ = -1;
  }

  void take_all() {
    for (std::size_t i = 0; i < seats_.size(); ++i)
      while (const std::optional<Record> record = seats_[i].pop()) add(i, *record);
  }

  void add(std::size_t replica, const Record& record) {
    // Where lines are written, the last one is held back, so there is one that follows.
    Row& row = record.step > written_ ? rows_[record.step] : rows_.begin()->second;
    row.resize(seats_.size());
    Record sum = record;
    if (row[replica]) sum.add(*row[replica]);
    row[replica] = sum;
  }

  std::string line(std::int64_t step, const Row& row) const {
    Record sum;
    std::string shares;
    for (const std::optional<Record>& record : row) {
      if (record) sum.add(*record);
      shares += (shares.empty() ? "" : ",") + (record ? number(record->share()) : "null");
    }
    std::string text = R"({"step":)" + std::to_string(step);
    const auto add = [&](const char* name, const std::string& value) {
      text += std::string(R"(,")") + name + R"(":)" + value;
    };
    add("seconds", number(std::chrono::duration<double>(sum.end - start_).count()));
    add("loss", sum.losses > 0 ? number(sum.loss / sum.losses) : "null");
    add("contributions", std::to_string(sum.contributions));
    add("accepted", std::to_string(sum.accepted));
    add("stale", std::to_string(sum.stale));
    add("not_needed", std::to_string(sum.not_needed));
    add("skipped", std::to_string(sum.skipped));
    add("waiting", '[' + shares + ']');
    return text + "}\n";
  }
  /// The shortest text that reads back as the same number, in any locale; JSON has no infinity.
  static std::string number(double value) {
    if (!std::isfinite(value)) return "null";
    std::array<char, 32> digits;
    return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
  }

  std::vector<Seat> seats_;
  Clock::time_point start_ = Clock::now();
  std::mutex mutex_;                  // of what follows
  std::map<std::int64_t, Row> rows_;  // by step, not written yet
  std::int64_t written_ = -1;         // the last step
};

LOCKSTEP_NAMESPACE_END
