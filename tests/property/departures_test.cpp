// SPDX-License-Identifier: MIT
// Replicas that come and go at random never hang, and what was accepted, replayed in one process, gives the
// same bits.
#include "support/catch.hpp"
#include "support/threads.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/lockstep.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

constexpr Index k_size = 4200;

/// The gradient of contribution `sequence` of a place: the batch that only it uses.
Eigen::VectorXf gradient_of(int place, std::int64_t sequence) {
  Numbers numbers(static_cast<std::uint64_t>(place) * 100003 + static_cast<std::uint64_t>(sequence));
  Eigen::VectorXf g(k_size);
  const auto scale = static_cast<float>(numbers.real());
  for (Index i = 0; i < k_size; ++i) g[i] = scale * static_cast<float>(i % 37) + 0.1F;
  return g;
}
double weight_of(int place, std::int64_t sequence) { return 1 + static_cast<double>((place + sequence) % 3); }

/// One accepted contribution, as its replica knows it.
struct Entry {
  int place;
  std::int64_t sequence;  ///< number of the batch
  std::int64_t computed_at;
};

/// Updates from the ledger alone: contributions of one round in the order of places, then of sequence.
std::vector<float> replay(const std::vector<Entry>& ledger, std::int64_t steps) {
  Variables<float> variables;
  const auto w = variables.add("w", Eigen::VectorXf::Ones(k_size));
  std::map<std::int64_t, std::map<int, std::vector<std::int64_t>>> rounds;
  for (const Entry& entry : ledger) rounds[entry.computed_at][entry.place].push_back(entry.sequence);
  // Each place merges its own, then the places are averaged, as in the run.
  Local local{Adam{}, variables};
  for (std::int64_t step = 0; step < steps; ++step) {
    const RowLayout rows(variables.layout());
    std::deque<Owned<float>> merged;
    Contributors<float, float> scratch;
    for (auto& [place, sequences] : rounds[step]) {
      std::sort(sequences.begin(), sequences.end());
      for (std::size_t k = 0; k < sequences.size(); ++k) {
        Owned<float> next(variables.layout(), rows);
        Owned<float>& own = k == 0 ? merged.emplace_back(variables.layout(), rows) : next;
        const Eigen::VectorXf g = gradient_of(place, sequences[k]);
        std::copy(g.data(), g.data() + k_size, own->mark_dense(0));
        own->header().unit = own->header().total = weight_of(place, sequences[k]);
        if (k > 0) detail::merge<float>(*merged.back(), *own, *merged.back(), scratch);
      }
    }
    // In the order of places, relative to the first unit, over the sum of all weights in that unit.
    Contributors<float, float> sources;
    double total = 0;
    const double first = merged.front()->header().unit;
    for (auto& own : merged) {
      sources.add(*own, own->header().unit / first, 0);
      total += own->header().total / first;
    }
    sources.scale = 1 / total;
    Runs<float, float> runs(variables.layout(), sources);
    auto mean = local.gradient(w);
    with_mean(runs.all_sources(), 0, k_size, [&](const auto& expression) { mean.array() = expression; });
    local.apply_gradients();
  }
  return {variables.flat().begin(), variables.flat().begin() + k_size};
}

struct Played {
  std::vector<float> bits, replayed;
  std::int64_t steps = 0, accepted_by_stats = 0, accepted_by_ledger = 0;
  bool duplicates = false;
  std::string trouble;
};

/// Replicas that leave at random, some of them replaced, until `steps` updates are made.
Played play(std::uint64_t seed, int n, int r, Departure departure) {
  Variables<float> variables;
  const auto w = variables.add("w", Eigen::VectorXf::Ones(k_size));
  SyncReplicas trainer{
      Adam{}, variables, {.replicas_to_aggregate = r, .total_num_replicas = n, .departure = departure}};
  constexpr std::int64_t steps = 12;
  std::mutex mutex;
  std::vector<Entry> ledger;
  Played played;
  const auto thrown = run_replicas(n, [&](int place) {
    Numbers numbers(seed * 977 + static_cast<std::uint64_t>(place));
    while (trainer.global_step() < steps) {
      auto replica = trainer.join(place);
      std::vector<Entry> open;  // accepted into a round whose end this replica has not seen
      bool leaves = false;
      while (!leaves && replica.global_step() < steps) {
        if (numbers.chance(40)) std::this_thread::sleep_for(std::chrono::microseconds(numbers.below(300)));
        const std::int64_t sequence = replica.sequence();
        replica.set_gradient(w, gradient_of(place, sequence));
        const StepResult result = replica.apply_gradients({.weight = weight_of(place, sequence)});
        if (result.status == Status::accepted) open.push_back({place, sequence, result.computed_at});
        // The place 0 stays, so that somebody always does.
        leaves = place != 0 && numbers.chance(20);
      }
      replica.leave();
      const std::lock_guard lock(mutex);
      ledger.insert(ledger.end(), open.begin(), open.end());
    }
  });
  for (const auto& error : thrown) played.trouble += message_of(error);
  played.steps = trainer.global_step();
  for (int place = 0; place < n; ++place) played.accepted_by_stats += trainer.stats(place).accepted;
  played.accepted_by_ledger = static_cast<std::int64_t>(ledger.size());
  std::vector<std::pair<int, std::int64_t>> batches;
  for (const Entry& entry : ledger) batches.emplace_back(entry.place, entry.sequence);
  std::sort(batches.begin(), batches.end());
  played.duplicates = std::adjacent_find(batches.begin(), batches.end()) != batches.end();
  played.bits.assign(variables.flat().begin(), variables.flat().begin() + k_size);
  std::erase_if(ledger, [&](const Entry& entry) {
    return entry.computed_at >= played.steps;
  });  // of a round that stayed open
  played.replayed = replay(ledger, played.steps);
  return played;
}

void check(std::uint64_t seed, int n, int r, Departure departure) {
  INFO("seed " << seed << ", N = " << n << ", R = " << r << ", departure " << static_cast<int>(departure));
  const Played played = play(seed, n, r, departure);
  CHECK(played.trouble == "");
  CHECK(played.steps >= 12);
  CHECK(played.accepted_by_stats == played.accepted_by_ledger);
  CHECK_FALSE(played.duplicates);
  CHECK(played.bits == played.replayed);
}

}  // namespace

TEST_CASE("property: random departures and replacements keep the ledger", "[property][departure][thread]") {
  const Watchdog watchdog(std::chrono::seconds(300));
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    check(seed, 3, 3, Departure::redistribute);
    check(seed, 4, 4, Departure::shrink);
    check(seed, 2, 5, Departure::redistribute);
    check(seed, 3, 3, Departure::wait);
    check(seed, 4, 2, Departure::redistribute);
    check(seed, 3, 1, Departure::shrink);
  }
}
