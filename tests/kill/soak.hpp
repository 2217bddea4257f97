// SPDX-License-Identifier: MIT
/// @file
/// Kills, stops and restarts the processes of a training at random moments, over and over.
///
/// From the environment: LOCKSTEP_SOAK_KILLS, LOCKSTEP_SOAK_SEED (a random one, which is printed).
#pragma once

#include "support/catch.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include <lockstep/error.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::test {

using namespace std::chrono_literals;

inline constexpr int k_told = 3;  ///< exit code of a replica that another one's death has ended

/// Hash of the bits of values; not 0.
inline constexpr std::uint64_t k_no_hash = 0xCBF29CE484222325U;
template <class Values>
std::uint64_t hash_of(std::uint64_t before, const Values& values) {
  for (const float value : values) before = (before ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001B3U;
  return before | 1;
}

/// Gradient number `sequence` of a replica, the same whoever sits there.
inline float element_of(std::size_t place, std::int64_t sequence, Index element) {
  const std::uint64_t number = (static_cast<std::uint64_t>(sequence) * 4 + place + 1) * 0x9E3779B97F4A7C15U;
  return static_cast<float>((number >> 40) + static_cast<std::uint64_t>(element) * 13 % 1021) * 0x1p-24F;
}

/// What was done to processes.
struct Counts {
  int kills = 0, stops = 0, starts_over = 0;
  std::int64_t updates = 0, snapshots = 0;
};

/// One session, from its first update to its last, while its processes are killed. The driver is attached as
/// well and does not train: it keeps the session when all others are dead.
/// @tparam Case what is trained: `Setting`, of how many replicas and whether one death `ends_for_all()`;
/// `Scene`, what its processes share; `Model`, a trainer of the calling process; `train`, what a replica
/// does, and `watch`, what a reader does, until it returns its exit code; `replay`, which says what is wrong
/// in the end.
template <class Case>
class Episode {
  using Setting = typename Case::Setting;
  using Scene = typename Case::Scene;
  using Model = typename Case::Model;

 public:
  Episode(const Setting& setting, int kills, std::mt19937_64& random, Counts& counts)
      : setting_(setting), kills_left_(kills), random_(random), counts_(counts) {}

  /// @return what went wrong.
  std::string run() {
    std::string problem;
    const int kills_before = counts_.kills;
    {
      const auto keeper = std::make_unique<Model>(setting_, *scene_, folder_.path(), -1);
      members_.resize(static_cast<std::size_t>(setting_.total) + 1);  // the last one takes snapshots
      for (std::size_t i = 0; i < members_.size(); ++i) start(i);
      while (problem.empty() && !have_replicas_ended(problem)) {
        if (kills_left_ > 0)
          strike();
        else
          std::this_thread::sleep_for(1ms);
        // A death has ended training for all: once all have been told, it begins anew.
        if (problem.empty() && is_over_for_all()) {
          keeper->trainer.start_over();
          ++counts_.starts_over;
          for (std::size_t i = 0; i + 1 < members_.size(); ++i) start(i);
        }
      }
      scene_->end = true;
      if (const int code = members_.back().process->wait(); code == 128 + SIGKILL)
        ++counts_.kills;
      else if (code != 0)
        problem += detail::text("the reader ended with ", code);
      if (problem.empty()) problem = Case::replay(setting_, *scene_, *keeper, counts_.kills - kills_before);
    }
    if (!folder_.files().empty()) problem += "; left in the folder: " + folder_.files().front();
    counts_.updates += Case::k_updates;
    for (const auto& seen : scene_->seen) counts_.snapshots += seen != 0 ? 1 : 0;
    return problem;
  }

 private:
  struct Member {
    std::optional<Process> process;
    std::optional<int> code;  // once it has ended and is not started again
  };

  void start(std::size_t i) {
    members_[i].code.reset();
    members_[i].process.emplace([&, i] {
      return i + 1 == members_.size() ? Case::watch(setting_, *scene_, folder_.path())
                                      : Case::train(setting_, *scene_, folder_.path(), i);
    });
  }

  /// Starts those again that were killed. @return whether a replica has seen the last update and all have
  /// ended.
  bool have_replicas_ended(std::string& problem) {
    bool all = true, finished = false;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      Member& member = members_[i];
      if (!member.code && member.process->has_ended()) {
        member.code = member.process->wait();
        if (*member.code == 128 + SIGKILL) {
          ++counts_.kills;
          start(i);
        } else if (*member.code != 0 && !(*member.code == k_told && setting_.ends_for_all())) {
          problem += detail::text("process ", i, " ended with ", *member.code, "; ");
        }
      }
      if (i + 1 == members_.size()) continue;
      all = all && member.code;
      finished = finished || member.code == 0;
    }
    return all && finished;
  }
  bool is_over_for_all() const {
    return std::all_of(members_.begin(), members_.end() - 1,
                       [](const Member& m) { return m.code == k_told; });
  }

  /// Something happens to one or two processes, after a while.
  void strike() {
    std::this_thread::sleep_for(a_while(10'000));
    const int victims = chance(0.2) ? 2 : 1;
    for (int i = 0; i < victims && kills_left_ > 0; ++i) {
      const Member& member =
          members_[std::uniform_int_distribution<std::size_t>(0, members_.size() - 1)(random_)];
      if (member.code) continue;
      if (chance(0.2)) {
        member.process->send(SIGSTOP);
        ++counts_.stops;
        std::this_thread::sleep_for(a_while(30'000));
        if (chance(0.5)) {
          member.process->send(SIGCONT);
          continue;
        }
      }
      member.process->send(SIGKILL);
      --kills_left_;
      if (chance(0.3)) std::this_thread::sleep_for(a_while(40'000));  // so that the others settle the death
    }
  }
  /// As often short as long: 20 microseconds to `longest`.
  std::chrono::microseconds a_while(double longest) {
    const double exponent = std::uniform_real_distribution<>(std::log(20.0), std::log(longest))(random_);
    return std::chrono::microseconds(static_cast<std::int64_t>(std::exp(exponent)));
  }
  bool chance(double p) { return std::bernoulli_distribution(p)(random_); }

  const Setting& setting_;
  int kills_left_;
  std::mt19937_64& random_;
  Counts& counts_;
  const SessionFolder folder_;
  const Shared<Scene> scene_;
  std::vector<Member> members_;  // first of all to end
};

inline std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value ? std::strtoull(value, nullptr, 10) : otherwise;
}

/// Sessions of all settings in turn, until as many processes have been killed as `LOCKSTEP_SOAK_KILLS` says.
template <class Case>
void soak(const char* what, std::uint64_t kills_at_least) {
  const int kills = static_cast<int>(from_environment("LOCKSTEP_SOAK_KILLS", kills_at_least));
  const std::uint64_t seed = from_environment("LOCKSTEP_SOAK_SEED", std::random_device{}());
  const Watchdog watchdog(300s + std::chrono::seconds(kills / 2));
  std::cout << what << ": LOCKSTEP_SOAK_SEED=" << seed << ", " << kills << " kills" << std::endl;
  std::mt19937_64 random(seed);
  Counts counts;
  const auto begin = std::chrono::steady_clock::now();
  int sessions = 0;
  for (; counts.kills < kills; ++sessions) {
    const auto& setting = Case::k_settings[static_cast<std::size_t>(sessions) % Case::k_settings.size()];
    const int before = counts.kills;
    const std::string problem = Episode<Case>(setting, std::min(25, kills - before), random, counts).run();
    INFO("seed " << seed << ", session " << sessions << " (" << setting.text << "), kills " << before
                 << " to " << counts.kills);
    REQUIRE(problem == "");
  }
  const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - begin;
  std::cout << what << ": seed " << seed << ", " << counts.kills << " kills, " << counts.stops << " stops, "
            << counts.starts_over << " starts over, " << sessions << " sessions, " << counts.updates
            << " updates, " << counts.snapshots << " snapshots compared, " << duration.count() << " s"
            << std::endl;
}

}  // namespace lockstep::test
