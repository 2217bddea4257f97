// SPDX-License-Identifier: MIT
#include "meter.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

namespace top {
namespace {

using lockstep::protocol::Counters;
using lockstep::protocol::Place;
using lockstep::protocol::Round;
using lockstep::protocol::Seat;

const Place& place_of(const Round& round, int place) { return round.places[static_cast<std::size_t>(place)]; }

std::int64_t contributions(const Counters& counters) { return counters.accepted + counters.skipped; }

/// The active place with the highest score, if it is the only one with it.
template <class Score>
int highest(const Round& round, Score&& score) {
  int best = -1;
  bool is_alone = false;
  for (int i = 0; i < round.total; ++i) {
    if (place_of(round, i).seat != Seat::active) continue;
    if (best >= 0 && score(i) == score(best)) is_alone = false;
    if (best >= 0 && score(i) <= score(best)) continue;
    best = i;
    is_alone = true;
  }
  return is_alone ? best : -1;
}

}  // namespace

Meter::Meter(Look first)
    : first_(std::move(first)), waiting_(static_cast<std::size_t>(first_.round().total), 0) {}

void Meter::sample(const Round& round) {
  ++samples_;
  for (std::size_t i = 0; i < waiting_.size(); ++i)
    if (is_waiting(round, static_cast<int>(i))) ++waiting_[i];
}

Rates Meter::rates(const Look& last) const {
  const Round &before = first_.round(), &after = last.round();
  const double seconds = std::chrono::duration<double>(last.time - first_.time).count();
  const auto since = [](std::int64_t then, std::int64_t now) {
    return std::max<std::int64_t>(0, now - then);  // a restore sets counters back
  };
  Rates rates;
  rates.rounds = since(before.id, after.id);
  if (seconds > 0)
    rates.updates_per_second = static_cast<double>(since(first_.control.updater.window.updates,
                                                         last.control.updater.window.updates)) /
                               seconds;
  for (int i = 0; i < after.total; ++i) {
    const auto arrivals =
        since(place_of(before, i).counters.last_arrivals, place_of(after, i).counters.last_arrivals);
    rates.replicas.push_back(
        {.waiting = samples_ == 0 ? 0
                                  : static_cast<double>(waiting_[static_cast<std::size_t>(i)]) /
                                        static_cast<double>(samples_),
         .last = rates.rounds == 0
                     ? 0
                     : std::min(1.0, static_cast<double>(arrivals) / static_cast<double>(rates.rounds))});
  }
  rates.slowest = slowest(last, rates);
  return rates;
}

int Meter::slowest(const Look& last, const Rates& rates) const {
  const Round &before = first_.round(), &after = last.round();
  if (after.active() < 2) return -1;
  const auto of = [&](int i) -> const Rates::OfReplica& {
    return rates.replicas[static_cast<std::size_t>(i)];
  };
  if (rates.rounds == 0) return samples_ == 0 ? -1 : highest(after, [&](int i) { return -of(i).waiting; });
  // With backup replicas the slowest is not waited for: its contributions are not needed.
  if (after.required_setting < after.active())
    return highest(after, [&](int i) {
      return contributions(place_of(before, i).counters) - contributions(place_of(after, i).counters);
    });
  return highest(after, [&](int i) { return of(i).last; });
}

}  // namespace top
