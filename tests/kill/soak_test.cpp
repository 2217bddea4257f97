// SPDX-License-Identifier: MIT
// Replicas are killed and stopped at random moments, over and over, and started again under their numbers.
// Whatever happens, the variables have the bits of a replay of the accepted contributions in one process.
#include "kill/soak.hpp"

#include "kill/round_log.hpp"
#include "support/catch.hpp"
#include "support/threads.hpp"
#include <lockstep/lockstep.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

/// Replicas whose contributions are averaged step by step.
struct Steps {
  static constexpr std::size_t k_most = 4;        // replicas
  static constexpr std::int64_t k_updates = 400;  // of one session
  static constexpr std::size_t k_sequences = 16 * k_updates;
  static constexpr Index k_size = 2 * 4096 + 100;  // three items of an update

  using Log = RoundLog<k_updates, k_most>;

  struct Setting {
    int required, total;
    Departure departure;
    int tokens;
    const char* text;

    bool ends_for_all() const { return departure == Departure::fail || departure == Departure::stop; }
  };

  static constexpr std::array k_settings{
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

  static std::uint64_t hash_of(const Snapshot<float>& snapshot) {
    std::uint64_t hash = k_no_hash;
    for (const auto& array : snapshot.arrays) hash = test::hash_of(hash, array.values);
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
  static int train(const Setting& setting, Scene& scene, const std::string& folder, std::size_t place) {
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
  static int watch(const Setting& setting, Scene& scene, const std::string& folder) {
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
  static std::string replay(const Setting& setting, const Scene& scene, const Model& last, int) {
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
      if (seen != 0 && seen != test::hash_of(test::hash_of(k_no_hash, w), momentum))
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
    if (hash_of(last.trainer.snapshot()) != test::hash_of(test::hash_of(k_no_hash, w), momentum))
      return "the last values have other bits";
    return scene.snapshots_differ ? "two snapshots of one step differ" : "";
  }
};

}  // namespace

TEST_CASE("random kills, stops and restarts change no bit and lose nothing", "[kill][soak]") {
  soak<Steps>("soak", 200);
}
