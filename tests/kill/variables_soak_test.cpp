// SPDX-License-Identifier: MIT
// The same where each variable has an accumulator of its own: replicas are killed and stopped at random
// moments and started again, and variables and slots have the bits of a replay of all pushes in one process.
#include "kill/round_log.hpp"
#include "kill/soak.hpp"
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

/// Replicas that push to accumulators and wait for tokens.
struct Pushes {
  static constexpr std::size_t k_most = 3;        // replicas
  static constexpr std::int64_t k_updates = 200;  // of one session
  static constexpr std::size_t k_pushes = 16 * k_updates;
  static constexpr Index k_long = 5000;  // more than an item of an update has
  static constexpr Index k_rows = 8, k_columns = 3;

  using Log = PushLog<k_pushes, k_most>;
  using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  struct Setting {
    int required, total, tokens;
    const char* text;

    static bool ends_for_all() { return false; }
    int start_tokens() const { return std::max(tokens, std::max(0, required - total)); }
  };
  static constexpr std::array k_settings{
      Setting{3, 3, -1, "3 of 3"},
      Setting{2, 3, -1, "2 of 3"},
      Setting{2, 2, 40, "2 of 2, 40 tokens"},
      Setting{5, 2, -1, "5 of 2"},
  };

  /// What the processes of a session share.
  struct Scene {
    Log log;
    std::array<std::array<std::atomic<std::uint8_t>, k_pushes>, k_most> acknowledged{};
    std::atomic<std::int64_t> tokens{0};                           // that a call has returned
    std::array<std::atomic<std::uint64_t>, k_updates + 2> seen{};  // hash of what readers saw, by step
    std::atomic<bool> snapshots_differ{false};
    std::atomic<bool> begun{false}, end{false};
  };

  /// A trainer in the calling process.
  template <class Net>
  struct ModelOver {
    ModelOver(const Setting& s, const Net& net)
        : w(variables.add("w", Eigen::VectorXf::Zero(k_long))),
          table(variables.add("table", Rows(Rows::Ones(k_rows, k_columns)))),
          trainer(Momentum{0.1, 0.9}, variables,
                  VariableOptions{.replicas_to_aggregate = s.required,
                                  .total_num_replicas = s.total,
                                  .sparse = {"table"},
                                  .init_tokens = s.tokens,
                                  .deadline = 100s},
                  net) {}
    /// Of the bits of variables and slots.
    std::uint64_t hash() const {
      std::uint64_t hash = k_no_hash;
      const auto add = [&](const auto& array) {
        hash = hash_of(hash, std::span(array.data(), static_cast<std::size_t>(array.size())));
      };
      add(variables.value(w));
      add(variables.value(table));
      add(trainer.slot("momentum", w));
      add(trainer.slot("momentum", table));
      return hash;
    }
    Variables<float> variables;
    Handle<Eigen::VectorXf, float> w;
    Handle<Rows, float> table;
    VariableReplicas<Momentum, Net, float> trainer;
  };
  struct Model : ModelOver<Noted<Log>> {
    Model(const Setting& s, Scene& scene, const std::string& folder, int place)
        : ModelOver(
              s, {{.name = "soak", .replica = place, .directory = folder, .patience = 100s}, &scene.log}) {}
  };

  /// Gradient number `sequence` of a replica: all elements of `w` and two rows of `table`.
  struct Gradient {
    Gradient(std::size_t place, std::int64_t sequence) : w(k_long), rows(2, k_columns) {
      for (Index i = 0; i < k_long; ++i) w[i] = element_of(place, sequence, i);
      const Index row = sequence % (k_rows - 1);
      ids = {row, row + 1 + (sequence + static_cast<Index>(place)) % (k_rows - 1 - row)};
      for (Index i = 0; i < rows.size(); ++i) rows.data()[i] = element_of(place, sequence, 7 * i);
    }
    Eigen::VectorXf w;
    std::array<Index, 2> ids{};
    Rows rows;
  };

  /// One replica, in the calling process, to the last update.
  static int train(const Setting& setting, Scene& scene, const std::string& folder, std::size_t place) {
    Model model(setting, scene, folder, static_cast<int>(place));
    model.trainer.run([&](auto& replica) {
      scene.begun = true;
      while (replica.global_step() < k_updates) {
        const std::int64_t sequence = replica.sequence();
        const Gradient gradient(place, sequence);
        replica.set_gradient(model.w, gradient.w);
        replica.set_rows(model.table, gradient.ids, gradient.rows);
        (void)replica.apply_gradients();
        ++scene.tokens;
        const auto& pushed = replica.pushed();
        if (std::all_of(pushed.begin(), pushed.end(), [](Pushed what) { return what == Pushed::accepted; }))
          ++scene.acknowledged[place].at(static_cast<std::size_t>(sequence));
      }
    });
    return 0;
  }

  /// Looks at variables and slots until the end.
  static int watch(const Setting& setting, Scene& scene, const std::string& folder) {
    const Model model(setting, scene, folder, -1);
    wait_until([&] { return scene.begun || scene.end; });
    for (; !scene.end; std::this_thread::sleep_for(1ms)) {
      model.trainer.while_still([&] {
        const std::uint64_t hash = model.hash();
        const auto step = static_cast<std::size_t>(model.trainer.global_step());
        if (step >= scene.seen.size()) return;
        const std::uint64_t before = scene.seen[step].exchange(hash);
        if (before != 0 && before != hash) scene.snapshots_differ = true;
      });
    }
    return 0;
  }

  /// Pushes what the log says, in this process. @return what is wrong with the log, with what readers saw, or
  /// with the last values.
  static std::string replay(const Setting& setting, const Scene& scene, Model& last, int kills) {
    ModelOver<InProcess> model(setting, {});
    std::array<std::int64_t, k_most> sequence{};
    std::array<std::vector<bool>, k_most> used;
    used.fill(std::vector<bool>(k_pushes, false));
    last.trainer.set_local_step(0, 0);  // a last note
    for (std::size_t i = 0; i < scene.log.count; ++i) {
      const auto& [at, number, local_step] = scene.log.pushes[i];
      const auto place = static_cast<std::size_t>(at);
      if (number != sequence[place]++)
        return detail::text("push ", i, ": number ", number, " of replica ", at, " after ",
                            sequence[place] - 2);
      const Gradient gradient(place, number);
      const std::array<NamedGradient<float>, 2> gradients{
          {{"w", TensorView<const float>(std::span(gradient.w.data(), k_long))},
           {"table", SparseGradient<float>{
                         .indices = gradient.ids,
                         .values = {std::span(gradient.rows.data(), 2 * k_columns), {2, k_columns}}}}}};
      model.trainer.set_local_step(at, local_step);
      const std::vector<Pushed> pushed = model.trainer.push(at, gradients);
      if (pushed[0] != pushed[1]) return detail::text("push ", i, ": only one variable took it");
      used[place].at(static_cast<std::size_t>(number)) = pushed[0] == Pushed::accepted;
      while (!model.trainer.tokens().empty()) (void)model.trainer.token(at);
      const auto step = static_cast<std::size_t>(model.trainer.global_step());
      if (pushed[0] != Pushed::accepted || model.trainer.num_accumulated(0) > 0 || step >= scene.seen.size())
        continue;
      if (const std::uint64_t seen = scene.seen[step]; seen != 0 && seen != model.hash())
        return detail::text("update ", step, ": a reader saw other bits");
    }
    for (std::size_t place = 0; place < k_most; ++place)
      for (std::size_t s = 0; s < k_pushes; ++s)
        if (const int times = scene.acknowledged[place][s]; times > (used[place][s] ? 1 : 0))
          return detail::text("replica ", place, " was told ", times, " times that its gradient ", s,
                              " counts");
    if (last.trainer.global_step() != model.trainer.global_step())
      return detail::text("ended in step ", last.trainer.global_step(), ", the replay in ",
                          model.trainer.global_step());
    if (last.trainer.num_accumulated(0) != model.trainer.num_accumulated(0))
      return detail::text("ended with ", last.trainer.num_accumulated(0),
                          " gradients in a sum, the replay with ", model.trainer.num_accumulated(0));
    if (last.hash() != model.hash()) return "the last values have other bits";
    // A process that was killed may have taken a token with it, at most one.
    const std::int64_t given =
        setting.start_tokens() + last.trainer.global_step() * std::max(setting.required, setting.total);
    const auto left = static_cast<std::int64_t>(last.trainer.tokens().size());
    if (const std::int64_t lost = given - scene.tokens - left; lost < 0 || lost > kills)
      return detail::text("of ", given, " tokens ", scene.tokens.load(), " were taken and ", left,
                          " are left, after ", kills, " kills");
    return scene.snapshots_differ ? "two looks at one step differ" : "";
  }
};

}  // namespace

TEST_CASE("random kills lose no gradient that counts for its variable", "[kill][soak][per_variable]") {
  soak<Pushes>("soak of variables", 100);
}
