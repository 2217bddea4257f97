// SPDX-License-Identifier: MIT
// Replicas are killed and stopped at random moments, over and over, and started again under their numbers.
// Whatever happens, the variables have the bits of a replay of the accepted contributions in one process.
//
// From the environment: LOCKSTEP_SOAK_KILLS (200), LOCKSTEP_SOAK_SEED (a random one, which is printed).
#include "kill/round_log.hpp"
#include "support/catch.hpp"
#include "support/processes.hpp"
#include "support/threads.hpp"
#include <lockstep/lockstep.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
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

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t k_most = 4;        // replicas
constexpr std::int64_t k_updates = 400;  // of one session
constexpr std::size_t k_sequences = 16 * k_updates;
constexpr Index k_size = 2 * 4096 + 100;  // three items of an update
constexpr int k_told = 3;                 // exit code of a replica that another one's death has ended

using Log = RoundLog<k_updates, k_most>;

struct Setting {
  int required, total;
  Departure departure;
  int tokens;
  const char* text;

  bool ends_for_all() const { return departure == Departure::fail || departure == Departure::stop; }
};

constexpr std::array k_settings{
    Setting{3, 3, Departure::wait, -1, "3 of 3, wait"},
    Setting{3, 3, Departure::redistribute, -1, "3 of 3, redistribute"},
    Setting{3, 3, Departure::shrink, -1, "3 of 3, shrink"},
    Setting{3, 3, Departure::fail, -1, "3 of 3, fail"},
    Setting{2, 3, Departure::redistribute, -1, "2 of 3, redistribute"},
    Setting{2, 2, Departure::stop, -1, "2 of 2, stop"},
    Setting{7, 3, Departure::wait, 600, "7 of 3, wait, 600 tokens"},
    Setting{4, 4, Departure::shrink, 600, "4 of 4, shrink, 600 tokens"},
};

/// What the processes of a session share.
struct Scene {
  Log log;
  std::array<std::array<std::atomic<std::uint8_t>, k_sequences>, k_most> acknowledged{};
  std::array<std::atomic<std::uint64_t>, k_updates + 1> seen{};  // hash of the snapshots, by step
  std::atomic<bool> snapshots_differ{false};
  std::atomic<bool> begun{false}, end{false};
};

/// Contribution number `sequence` of a replica, the same whoever sits there.
float element_of(std::size_t place, std::int64_t sequence, Index element) {
  const std::uint64_t number =
      (static_cast<std::uint64_t>(sequence) * k_most + place + 1) * 0x9E3779B97F4A7C15U;
  return static_cast<float>((number >> 40) + static_cast<std::uint64_t>(element) * 13 % 1021) * 0x1p-24F;
}

/// Hash of the bits of values; not 0.
std::uint64_t hash_of(std::uint64_t before, const std::vector<float>& values) {
  for (const float value : values) before = (before ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001B3U;
  return before | 1;
}
constexpr std::uint64_t k_no_hash = 0xCBF29CE484222325U;

std::uint64_t hash_of(const Snapshot<float>& snapshot) {
  std::uint64_t hash = k_no_hash;
  for (const auto& array : snapshot.arrays) hash = hash_of(hash, array.values);
  return hash;
}

/// A trainer in the calling process.
struct Model {
  Model(const Setting& s, Scene& scene, const std::string& folder, int place)
      : w(variables.add("w", Eigen::VectorXf::Zero(k_size))),
        trainer(Momentum{0.1, 0.9}, variables,
                {.replicas_to_aggregate = s.required,
                 .total_num_replicas = s.total,
                 .departure = s.departure,
                 .init_tokens = s.tokens,
                 .deadline = 100s},
                Noted<Log>{{.name = "soak", .replica = place, .directory = folder, .patience = 100s},
                           &scene.log}) {}
  Variables<float> variables;
  Handle<Eigen::VectorXf, float> w;
  SyncReplicas<Momentum, Noted<Log>, float> trainer;
};

/// One replica, in the calling process, to the last update.
int train(const Setting& setting, Scene& scene, const std::string& folder, std::size_t place) {
  Model model(setting, scene, folder, static_cast<int>(place));
  int code = 0;
  try {
    model.trainer.run([&](auto& replica) {
      scene.begun = true;
      while (replica.global_step() < k_updates) {
        const std::int64_t sequence = replica.sequence();
        auto gradient = replica.gradient(model.w);
        for (Index i = 0; i < k_size; ++i) gradient[i] = element_of(place, sequence, i);
        const StepResult result = replica.apply_gradients();
        if (result.status == Status::stopped) {
          code = k_told;
          return;
        }
        if (result.status == Status::accepted && !result.round_open)
          ++scene.acknowledged[place].at(static_cast<std::size_t>(sequence));
      }
    });
  } catch (const PeerFailed&) {
    code = k_told;
  }
  return code;
}

/// Takes snapshots until the end.
int watch(const Setting& setting, Scene& scene, const std::string& folder) {
  const Model model(setting, scene, folder, -1);
  wait_until([&] { return scene.begun || scene.end; });
  for (; !scene.end; std::this_thread::sleep_for(1ms)) {
    const auto snapshot = model.trainer.snapshot();
    const std::uint64_t hash = hash_of(snapshot);
    const auto step = static_cast<std::size_t>(snapshot.counters.window.global_step);
    const std::uint64_t before = scene.seen.at(step).exchange(hash);
    if (before != 0 && before != hash) scene.snapshots_differ = true;
  }
  return 0;
}

/// Trains as the log says, in this process. @return what is wrong with the log, the snapshots or the last
/// values.
std::string replay(const Setting& setting, const Scene& scene, const Model& last) {
  std::vector<float> w(k_size, 0.0F), momentum(k_size, 0.0F);
  std::array<std::vector<bool>, k_most> used;
  used.fill(std::vector<bool>(k_sequences, false));
  Log::Entry before{.spare_tokens =
                        std::max(0, setting.tokens - std::max(0, setting.required - setting.total))};
  const auto wrong = [&](std::int64_t round, auto&&... parts) {
    return detail::text("round ", round, ": ", parts...);
  };
  for (std::int64_t round = 0; round < k_updates; ++round) {
    const Log::Entry& entry = scene.log.rounds[static_cast<std::size_t>(round)];
    if (entry.spare_tokens < 0 || entry.spare_tokens > before.spare_tokens)
      return wrong(round, entry.spare_tokens, " tokens after ", before.spare_tokens);
    int total = 0;
    for (const std::int32_t served : entry.served) total += served;
    if (total > setting.required || total < (setting.departure == Departure::shrink ? 1 : setting.required))
      return wrong(round, total, " contributions");
    const float scale = static_cast<float>(1.0 / total);
    std::vector<float> sum(k_size, 0.0F);
    bool first = true;
    for (std::size_t place = 0; place < k_most; ++place) {
      const std::int64_t end = entry.sequence[place], begin = end - entry.served[place];
      // Only a round that was given up leaves a gap.
      if (begin < before.sequence[place] || (begin > before.sequence[place] && !setting.ends_for_all()))
        return wrong(round, "replica ", place, " is in it with ", begin, " to ", end, " after ",
                     before.sequence[place]);
      if (begin == end) continue;
      for (Index i = 0; i < k_size; ++i) {
        float own = element_of(place, begin, i);
        for (std::int64_t s = begin + 1; s < end; ++s) own += element_of(place, s, i);
        float& to = sum[static_cast<std::size_t>(i)];
        to = first ? own : to + own;
      }
      first = false;
      for (std::int64_t s = begin; s < end; ++s) used[place].at(static_cast<std::size_t>(s)) = true;
    }
    for (std::size_t i = 0; i < sum.size(); ++i) {
      momentum[i] = 0.9F * momentum[i] + sum[i] * scale;
      w[i] -= 0.1F * momentum[i];
    }
    before = entry;
    const std::uint64_t seen = scene.seen[static_cast<std::size_t>(round + 1)];
    if (seen != 0 && seen != hash_of(hash_of(k_no_hash, w), momentum))
      return wrong(round, "a snapshot has other bits");
  }
  for (std::size_t place = 0; place < k_most; ++place)
    for (std::size_t s = 0; s < k_sequences; ++s)
      if (const int times = scene.acknowledged[place][s]; times > (used[place][s] ? 1 : 0))
        return detail::text("replica ", place, " was told ", times, " times that its contribution ", s,
                            " is in an update");
  for (int place = 0; place < setting.total; ++place)
    if (last.trainer.stats(place).accepted != before.sequence[static_cast<std::size_t>(place)])
      return detail::text("of replica ", place, " ", last.trainer.stats(place).accepted, " were accepted, ",
                          before.sequence[static_cast<std::size_t>(place)], " are in the log");
  if (last.trainer.global_step() != k_updates)
    return detail::text("ended in step ", last.trainer.global_step());
  if (hash_of(last.trainer.snapshot()) != hash_of(hash_of(k_no_hash, w), momentum))
    return "the last values have other bits";
  return scene.snapshots_differ ? "two snapshots of one step differ" : "";
}

/// What was done to processes.
struct Counts {
  int kills = 0, stops = 0, starts_over = 0;
  std::int64_t updates = 0, snapshots = 0;
};

/// One session, from its first update to its last, while its processes are killed. The driver is attached as
/// well and does not train: it keeps the session when all others are dead.
class Episode {
 public:
  Episode(const Setting& setting, int kills, std::mt19937_64& random, Counts& counts)
      : setting_(setting), kills_left_(kills), random_(random), counts_(counts) {}

  /// @return what went wrong.
  std::string run() {
    std::string problem;
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
      if (problem.empty()) problem = replay(setting_, *scene_, *keeper);
    }
    if (!folder_.files().empty()) problem += "; left in the folder: " + folder_.files().front();
    counts_.updates += k_updates;
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
      return i + 1 == members_.size() ? watch(setting_, *scene_, folder_.path())
                                      : train(setting_, *scene_, folder_.path(), i);
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

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value ? std::strtoull(value, nullptr, 10) : otherwise;
}

}  // namespace

TEST_CASE("random kills, stops and restarts change no bit and lose nothing", "[kill][soak]") {
  const int kills = static_cast<int>(from_environment("LOCKSTEP_SOAK_KILLS", 200));
  const std::uint64_t seed = from_environment("LOCKSTEP_SOAK_SEED", std::random_device{}());
  const Watchdog watchdog(300s + std::chrono::seconds(kills / 2));
  std::cout << "soak: LOCKSTEP_SOAK_SEED=" << seed << ", " << kills << " kills" << std::endl;
  std::mt19937_64 random(seed);
  Counts counts;
  const auto begin = std::chrono::steady_clock::now();
  int sessions = 0;
  for (; counts.kills < kills; ++sessions) {
    const Setting& setting = k_settings[static_cast<std::size_t>(sessions) % k_settings.size()];
    const int before = counts.kills;
    const std::string problem = Episode(setting, std::min(25, kills - before), random, counts).run();
    INFO("seed " << seed << ", session " << sessions << " (" << setting.text << "), kills " << before
                 << " to " << counts.kills);
    REQUIRE(problem == "");
  }
  const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - begin;
  std::cout << "soak: seed " << seed << ", " << counts.kills << " kills, " << counts.stops << " stops, "
            << counts.starts_over << " starts over, " << sessions << " sessions, " << counts.updates
            << " updates, " << counts.snapshots << " snapshots compared, " << duration.count() << " s"
            << std::endl;
}
