// SPDX-License-Identifier: MIT
// Properties of training that hold for random models, gradients and schedules of threads. A failure prints
// its seed.
#include "property/model.hpp"
#include "support/catch.hpp"
#include "support/threads.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/lockstep.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

namespace {

template <class T>
using TableOf = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Some tables, different for each seed.
template <class T>
struct Random {
  explicit Random(std::uint64_t seed) {
    Numbers numbers(seed);
    const std::array<std::array<Index, 2>, 6> shapes{{{1, 1}, {17, 1}, {5, 3}, {70, 2}, {4100, 1}, {3, 33}}};
    const Index count = 2 + numbers.below(4);
    for (Index i = 0; i < count; ++i) {
      const auto [rows, width] = shapes[at(numbers.below(6))];
      handles.push_back(variables.add("v" + std::to_string(i),
                                      TableOf<T>(TableOf<T>::Constant(rows, width, static_cast<T>(1 + i)))));
    }
  }
  std::vector<T> bits() const { return {variables.flat().begin(), variables.flat().end()}; }
  Variables<T> variables;
  std::vector<Handle<TableOf<T>, T>> handles;
};

/// The gradient that belongs to `key`: for each variable absent, dense or some rows; and a weight.
template <class T>
struct Keyed {
  enum class Numbers_ { any, exact };
  Keyed(const Random<T>& model, std::uint64_t key, bool mixed, bool weighted, bool exact = false) {
    Numbers numbers(key * 7919 + 13);
    const auto number = [&] { return static_cast<T>(exact ? numbers.exact() : numbers.real()); };
    weight = weighted ? 0.25 * static_cast<double>(1 + numbers.below(12)) : 1;
    for (std::size_t i = 0; i < model.handles.size(); ++i) {
      const auto [rows, width] = model.handles[i].shape;
      const Index kind = mixed ? numbers.below(4) : 1;
      Part part{i, kind == 1, {}, {}};
      if (kind == 0 && i > 0) continue;
      if (part.dense) {
        part.values = TableOf<T>::NullaryExpr(rows, width, number);
      } else {
        const Index count = 1 + numbers.below(4);
        for (Index k = 0; k < count; ++k)
          part.indices.push_back(numbers.below(rows));  // equal ones are summed
        part.values = TableOf<T>::NullaryExpr(count, width, number);
      }
      parts.push_back(std::move(part));
    }
  }
  template <class O>
  StepResult apply(O& optimizer, const Random<T>& model, T factor = 1) const {
    if (is_at_once(model)) {
      const auto all = optimizer.gradients();
      for (const Part& part : parts) all[model.handles[part.variable]] = factor * part.values;
      return optimizer.apply_gradients({.weight = weight});
    }
    for (const Part& part : parts) {
      const auto& handle = model.handles[part.variable];
      if (part.dense)
        optimizer.set_gradient(handle, factor * part.values);
      else if (part.in_place())
        for (const auto rows = optimizer.row_gradients(handle, part.indices); const Index row : part.indices)
          rows[row] = factor * part.values.row(part.place_of(row));
      else
        optimizer.set_rows(handle, part.indices, factor * part.values);
    }
    return optimizer.apply_gradients({.weight = weight});
  }
  /// Some give all variables their gradient in one call, of those that have all.
  bool is_at_once(const Random<T>& model) const {
    return parts.size() == model.handles.size() && parts[0].values(0, 0) > 0 &&
           std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.dense; });
  }
  PlainGradient plain(const Random<T>& model) const {
    PlainGradient g;
    g.weight = weight;
    for (const Part& part : parts) {
      auto& rows = g.rows[model.variables.infos()[part.variable].name];
      for (Index k = 0; k < part.values.rows(); ++k) {
        auto& row = rows[part.dense ? k : part.indices[at(k)]];
        row.resize(at(part.values.cols()), 0.0);
        for (Index j = 0; j < part.values.cols(); ++j) row[at(j)] += static_cast<double>(part.values(k, j));
      }
    }
    return g;
  }

  struct Part {
    std::size_t variable;
    bool dense;
    std::vector<Index> indices;
    TableOf<T> values;

    /// Some are written where they stay, of those whose rows are distinct.
    bool in_place() const {
      return values(0, 0) > 0 && std::set(indices.begin(), indices.end()).size() == indices.size();
    }
    Index place_of(Index row) const {
      return std::find(indices.begin(), indices.end(), row) - indices.begin();
    }
  };
  std::vector<Part> parts;
  double weight;
};

std::uint64_t key_of(std::int64_t step, int replica, int number = 0) {
  return static_cast<std::uint64_t>(step) * 1000 + static_cast<std::uint64_t>(replica) * 10 +
         static_cast<std::uint64_t>(number);
}

/// Does something that changes who arrives first.
void dawdle(Numbers& numbers) {
  switch (numbers.below(5)) {
    case 0:
      std::this_thread::sleep_for(std::chrono::microseconds(numbers.below(200)));
      break;
    case 1:
      std::this_thread::yield();
      break;
    case 2:
      for (int i = 0; i < 1000; ++i) rounded(i);  // kept: it is volatile
      break;
    default:
      break;
  }
}

double worst_difference(const Random<double>& model, const PlainModel& plain) {
  double worst = 0;
  for (std::size_t i = 0; i < model.handles.size(); ++i) {
    const VariableInfo& info = model.variables.infos()[i];
    const auto value = model.variables.value(model.handles[i]);
    for (Index row = 0; row < value.rows(); ++row)
      for (Index column = 0; column < value.cols(); ++column) {
        const double expected = plain.value(info.name, row, column);
        worst = std::max(worst, std::abs(value(row, column) - expected) / std::max(1.0, std::abs(expected)));
      }
  }
  return worst;
}

PlainModel plain_of(const Random<double>& model, double rate, double momentum) {
  PlainModel plain(rate, momentum);
  for (std::size_t i = 0; i < model.handles.size(); ++i)
    plain.add(model.variables.infos()[i].name, model.handles[i].shape[0], model.handles[i].shape[1],
              1 + static_cast<double>(i));
  return plain;
}

}  // namespace

TEST_CASE("property: many replicas are one big batch, for dense, absent and row-sparse gradients",
          "[property][thread]") {
  const Watchdog watchdog(std::chrono::seconds(300));
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    INFO("seed " << seed);
    Numbers numbers(seed);
    Random<double> model(seed);
    const int n = static_cast<int>(1 + numbers.below(5)),
              r = static_cast<int>(std::max<Index>(n, 1 + numbers.below(8)));
    const bool mixed = numbers.chance(70), weighted = numbers.chance(50);
    constexpr int steps = 4;
    PlainModel plain = plain_of(model, 0.1, 0.9);
    SyncReplicas trainer{Momentum{.learning_rate = 0.1, .momentum = 0.9},
                         model.variables,
                         {.replicas_to_aggregate = r, .total_num_replicas = n}};
    trainer.run([&](auto& replica) {
      Numbers own(seed * 31 + static_cast<std::uint64_t>(replica.index()));
      while (replica.global_step() < steps) {
        dawdle(own);
        Keyed<double>(model, key_of(replica.sequence(), replica.index()), mixed, weighted)
            .apply(replica, model);
      }
    });
    std::vector<std::int64_t> sequence(at(n), 0);
    for (int step = 0; step < steps; ++step) {
      std::vector<PlainGradient> batch;
      for (int i = 0; i < n; ++i)
        for (int k = 0; k < r / n + (i < r % n); ++k)
          batch.push_back(Keyed<double>(model, key_of(sequence[at(i)]++, i), mixed, weighted).plain(model));
      plain.update(batch);
    }
    CHECK(worst_difference(model, plain) < 1e-12);
  }
}

TEST_CASE("property: where inputs are exact the result is exact", "[property][thread]") {
  const Watchdog watchdog(std::chrono::seconds(300));
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    INFO("seed " << seed);
    Random<float> model(seed);
    Random<double> reference(seed);
    const int n = 1 << (seed % 4);  // a power of two, so that the mean is exact too
    SyncReplicas trainer{Sgd{.learning_rate = 0.5}, model.variables, {.replicas_to_aggregate = n}};
    trainer.run([&](auto& replica) {
      while (replica.global_step() < 3)
        Keyed<float>(model, key_of(replica.global_step(), replica.index()), true, false, true)
            .apply(replica, model);
    });
    PlainModel plain = plain_of(reference, 0.5, 0);
    for (int step = 0; step < 3; ++step) {
      std::vector<PlainGradient> batch;
      for (int i = 0; i < n; ++i)
        batch.push_back(Keyed<float>(model, key_of(step, i), true, false, true).plain(model));
      plain.update(batch);
    }
    bool exact = true;
    for (std::size_t i = 0; i < model.handles.size(); ++i) {
      const auto value = model.variables.value(model.handles[i]);
      for (Index row = 0; row < value.rows(); ++row)
        for (Index j = 0; j < value.cols(); ++j)
          exact = exact &&
                  static_cast<double>(value(row, j)) == plain.value(model.variables.infos()[i].name, row, j);
    }
    CHECK(exact);
  }
}

TEST_CASE("property: the order of arrival changes no bit", "[property][thread]") {
  const Watchdog watchdog(std::chrono::seconds(300));
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    INFO("seed " << seed);
    const auto run = [&](std::uint64_t order) {
      Random<float> model(seed);
      SyncReplicas trainer{
          Adam{}, model.variables, {.replicas_to_aggregate = 4, .clip_norm = seed % 2 == 0 ? 1.5 : 0}};
      trainer.run([&](auto& replica) {
        Numbers own(order * 131 + static_cast<std::uint64_t>(replica.index()));
        while (replica.global_step() < 6) {
          dawdle(own);
          Keyed<float>(model, key_of(replica.global_step(), replica.index()), true, true)
              .apply(replica, model);
        }
      });
      return model.bits();
    };
    const auto bits = run(0);
    for (std::uint64_t order = 1; order <= 5; ++order) {
      INFO("order " << order);
      CHECK(run(order) == bits);
    }
  }
}

TEST_CASE("property: micro-batches of one replica are contributions of several, bit for bit",
          "[property][thread]") {
  const Watchdog watchdog(std::chrono::seconds(300));
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    INFO("seed " << seed);
    constexpr int k = 4, steps = 3;
    const auto form = [&](auto&& train) {
      Random<float> model(seed);
      train(model);
      return model.bits();
    };
    const auto windows = [&](auto& optimizer, const Random<float>& model) {
      for (int step = 0; step < steps; ++step)
        for (int i = 0; i < k; ++i) Keyed<float>(model, key_of(step, i), true, true).apply(optimizer, model);
    };
    const auto local = form([&](auto& model) {
      Local optimizer{GradientAggregation<Adam>{Adam{}, {.grad_steps = k}}, model.variables};
      windows(optimizer, model);
    });
    CHECK(local == form([&](auto& model) {
            SyncReplicas trainer{Adam{}, model.variables, {.replicas_to_aggregate = k}};
            trainer.run([&](auto& replica) {
              for (int step = 0; step < steps; ++step)
                Keyed<float>(model, key_of(step, replica.index()), true, true).apply(replica, model);
            });
          }));
    CHECK(local == form([&](auto& model) {
            GradientAggregation trainer{Local{Adam{}, model.variables}, {.grad_steps = k}};
            trainer.run([&](auto& replica) { windows(replica, model); });
          }));
    CHECK(local == form([&](auto& model) {
            SyncReplicas trainer{
                Adam{}, model.variables, {.replicas_to_aggregate = k, .total_num_replicas = 1}};
            trainer.run([&](auto& replica) { windows(replica, model); });
          }));
  }
}

TEST_CASE("property: the number of replicas that share the work changes no bit of an update",
          "[property][thread]") {
  const Watchdog watchdog(std::chrono::seconds(300));
  // Twelve contributions per round, in the order of replica numbers and, in each, of time; by N of 1, 2, 3,
  // 4, 6 and 12.
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    INFO("seed " << seed);
    const auto run = [&](int n) {
      Random<float> model(seed);
      SyncReplicas trainer{
          Adam{}, model.variables, {.replicas_to_aggregate = 12, .total_num_replicas = n, .clip_norm = 2}};
      trainer.run([&](auto& replica) {
        const int share = 12 / n;
        for (int step = 0; step < 3; ++step)
          for (int k = 0; k < share; ++k) {
            // One of each share is not zero, so that the association of the sum cannot matter.
            const int number = replica.index() * share + k;
            Keyed<float>(model, key_of(step, number), false, false)
                .apply(replica, model, number % 12 == 0 ? 1.0F : 0.0F);
          }
      });
      return model.bits();
    };
    const auto bits = run(1);
    for (const int n : {2, 3, 4, 6, 12}) CHECK(run(n) == bits);
  }
}

TEST_CASE("property: one update is linear in the gradients", "[property]") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    INFO("seed " << seed);
    const auto moved = [&](double a, double b) {
      Random<double> model(seed);
      const auto before = model.bits();
      SyncReplicas trainer{Sgd{1.0}, model.variables, {.replicas_to_aggregate = 2, .total_num_replicas = 1}};
      trainer.run([&](auto& replica) {
        Keyed<double>(model, seed, true, true).apply(replica, model, a);
        Keyed<double>(model, seed + 500, true, true).apply(replica, model, b);
      });
      Eigen::VectorXd difference(static_cast<Index>(before.size()));
      for (std::size_t i = 0; i < before.size(); ++i)
        difference[static_cast<Index>(i)] = model.bits()[i] - before[i];
      return difference;
    };
    const Eigen::VectorXd x = moved(1, 0), y = moved(0, 1);
    CHECK((moved(3, -2) - (3 * x - 2 * y)).cwiseAbs().maxCoeff() < 1e-12 * 32);
    CHECK(moved(0, 0).cwiseAbs().maxCoeff() == 0);
  }
}

TEST_CASE("property: saved at any moment and loaded elsewhere, training goes on with the same bits",
          "[property]") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    INFO("seed " << seed);
    Numbers numbers(seed);
    const int k = static_cast<int>(1 + numbers.below(4)), stop = static_cast<int>(numbers.below(10));
    const auto recipe = GradientAggregation<MovingAverage<Adam>>{{Adam{}, 0.9}, {.grad_steps = k}};
    const auto steps = [&](auto& optimizer, const auto& model, int first, int last) {
      for (int t = first; t < last; ++t)
        Keyed<float>(model, key_of(t, 0), true, true).apply(optimizer, model);
    };
    Random<float> whole(seed), first(seed), second(seed), third(seed);
    Local never{recipe, whole.variables};
    steps(never, whole, 0, 14);
    Local before{recipe, first.variables};
    steps(before, first, 0, stop);
    Local after{recipe, second.variables};
    after.restore(before.snapshot());
    steps(after, second, stop, 14);
    CHECK(second.bits() == whole.bits());
    SyncReplicas trainer{recipe, third.variables, {.replicas_to_aggregate = 1}};
    trainer.restore(before.snapshot());
    trainer.run([&](auto& replica) { steps(replica, third, stop, 14); });
    CHECK(third.bits() == whole.bits());
  }
}
