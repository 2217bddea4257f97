// SPDX-License-Identifier: MIT
// One loop, five trainers: alone, averaging in time, averaging over replicas, and both in either order. All
// see the same eight batches per update, so all end at the same place.
#include <lockstep/lockstep.hpp>

#include <cstdio>

namespace ls = lockstep;

using Variables = ls::Variables<double>;
using Handle = ls::Handle<Eigen::Vector2d, double>;

// Minimizes the mean distance of w from the points (batch, 2 batch), batch = 0 ... 7; `at_once` of them per
// gradient.
template <ls::Optimizer Replica>
void train(Replica& replica, const Handle& w, int replicas, int at_once) {
  while (replica.global_step() < 3) {
    const auto first = (replica.sequence() * replicas + replica.index()) * at_once % 8;
    Eigen::Vector2d gradient = Eigen::Vector2d::Zero();
    for (auto batch = first; batch < first + at_once; ++batch)
      gradient += replica.value(w) - Eigen::Vector2d(1, 2) * static_cast<double>(batch);
    replica.set_gradient(w, gradient / at_once);
    replica.apply_gradients();
  }
}

template <class MakeTrainer>
void show(const char* name, int replicas, int at_once, MakeTrainer make_trainer) {
  Variables variables;
  const Handle w = variables.add("w", Eigen::Vector2d(1, 1));
  auto trainer = make_trainer(variables);
  trainer.run([&](auto& replica) { train(replica, w, replicas, at_once); });
  std::printf("%-42s w = %.4f %.4f\n", name, variables.value(w)(0), variables.value(w)(1));
}

int main() {
  const ls::Momentum rule{.learning_rate = 0.25};
  const ls::SyncOptions two{.replicas_to_aggregate = 2};
  const ls::AggregationOptions four{.grad_steps = 4}, eight{.grad_steps = 8};

  show("Local", 1, 8, [&](Variables& v) { return ls::Local{rule, v}; });
  show("Local of GradientAggregation", 1, 1, [&](Variables& v) {
    return ls::Local{ls::GradientAggregation{rule, eight}, v};
  });
  show("SyncReplicas", 2, 4, [&](Variables& v) { return ls::SyncReplicas{rule, v, two}; });
  show("SyncReplicas of GradientAggregation", 2, 1, [&](Variables& v) {
    return ls::SyncReplicas{ls::GradientAggregation{rule, four}, v, two};  // exchanges every micro-batch
  });
  show("GradientAggregation of SyncReplicas", 2, 1, [&](Variables& v) {
    return ls::GradientAggregation{ls::SyncReplicas{rule, v, two}, four};  // exchanges once per window
  });
}
