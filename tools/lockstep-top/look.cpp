// SPDX-License-Identifier: MIT
#include "look.hpp"

#include <algorithm>
#include <cstddef>

namespace top {

using lockstep::protocol::Ending;
using lockstep::protocol::Phase;
using lockstep::protocol::Place;
using lockstep::protocol::Round;
using lockstep::protocol::Seat;

bool is_waiting(const Round& round, int place) {
  const Place& p = round.places[static_cast<std::size_t>(place)];
  return round.phase == Phase::collecting && p.seat == Seat::active && p.served >= p.quota;
}

Activity activity_of(const Round& round, int place, const Sitter& sitter) {
  const Place& p = round.places[static_cast<std::size_t>(place)];
  switch (p.seat) {
    case Seat::vacant:
      return Activity::expected;
    case Seat::left:
      return Activity::left;
    case Seat::dead:
      return Activity::dead;
    case Seat::active:
      break;
  }
  if (!sitter.is_alive) return Activity::lost;
  if (sitter.is_stopped) return Activity::stopped;
  if (p.served < p.quota) return Activity::computing;
  return round.phase == Phase::collecting ? Activity::waiting : Activity::updating;
}

const char* to_string(Activity activity) {
  switch (activity) {
    case Activity::expected:
      return "expected";
    case Activity::computing:
      return "computing";
    case Activity::waiting:
      return "waiting";
    case Activity::updating:
      return "updating";
    case Activity::stopped:
      return "stopped";
    case Activity::lost:
      return "lost";
    case Activity::left:
      return "left";
    case Activity::dead:
      return "dead";
  }
  return "";
}

std::string condition_of(const Look& look) {
  const Round& round = look.round();
  const std::string culprit = round.culprit < 0 ? "" : " (replica " + std::to_string(round.culprit) + ")";
  if (round.ending == Ending::failed) return "failed" + culprit + (look.note.empty() ? "" : ": " + look.note);
  if (!look.is_in_use) return look.is_removed ? "ended" : "left behind: no process takes part any more";
  if (round.ending == Ending::stopped) return "stopped" + culprit;
  const auto vacant = std::count_if(round.places.begin(), round.places.begin() + round.total,
                                    [](const Place& p) { return p.seat == Seat::vacant; });
  if (vacant > 0) return "training, " + std::to_string(vacant) + " replica(s) expected";
  return round.active() == 0 ? "all have left" : "training";
}

}  // namespace top
