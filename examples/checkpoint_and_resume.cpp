// SPDX-License-Identifier: MIT
// Four replicas train, save every 20 updates and are stopped. What goes on from the file (here: other objects
// in the same program) ends with the same bits as a training that never stopped; with another number of
// replicas, with the same result to rounding.
#include <lockstep/checkpoint/checkpointer.hpp>
#include <lockstep/lockstep.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>

namespace ls = lockstep;

using Rule = ls::MovingAverage<ls::Adam>;
using Trainer = ls::SyncReplicas<Rule>;

struct Model {
  ls::Variables<> variables;
  ls::Handle<Eigen::Matrix2f, float> matrix = variables.add("matrix", Eigen::Matrix2f::Identity());
  ls::Handle<Eigen::Vector2f, float> offset = variables.add("offset", Eigen::Vector2f::Zero());
};

// Each update sees eight points, whoever computes their gradients. Which ones depends on its number alone, so
// a training goes on with the data where it stopped.
void train(Trainer& trainer, const Model& model, std::int64_t updates, ls::Checkpointer<float>* checkpoints) {
  const int share = 8 / trainer.replicas();
  trainer.run([&](auto& replica) {
    while (replica.global_step() < updates) {
      Eigen::Matrix2f of_matrix = Eigen::Matrix2f::Zero();
      Eigen::Vector2f of_offset = Eigen::Vector2f::Zero();
      for (int i = 0; i < share; ++i) {
        const auto point = replica.global_step() * 8 + replica.index() * share + i;
        const Eigen::Vector2f x(static_cast<float>(point % 7) - 3, static_cast<float>(point % 5) - 2);
        const Eigen::Vector2f y(2 * x(0) + x(1) + 1, x(0) + 3 * x(1) - 1);  // what is to be learned
        const Eigen::Vector2f error = replica.value(model.matrix) * x + replica.value(model.offset) - y;
        of_matrix += error * x.transpose();
        of_offset += error;
      }
      replica.set_gradient(model.matrix, of_matrix / share);
      replica.set_gradient(model.offset, of_offset / share);
      replica.apply_gradients();
      if (checkpoints) checkpoints->write_pending();  // whoever comes by first writes, the others compute
    }
  });
}

void show(const char* name, const Trainer& trainer, const Model& model) {
  const auto matrix = model.variables.value(model.matrix);
  const auto offset = model.variables.value(model.offset);
  std::printf("%-16s step %2d: matrix %5.2f %5.2f / %5.2f %5.2f, offset %5.2f %5.2f\n", name,
              static_cast<int>(trainer.global_step()), static_cast<double>(matrix(0, 0)),
              static_cast<double>(matrix(0, 1)), static_cast<double>(matrix(1, 0)),
              static_cast<double>(matrix(1, 1)), static_cast<double>(offset(0)),
              static_cast<double>(offset(1)));
}

int main() {
  const std::filesystem::path path = "checkpoint_and_resume.safetensors";
  const Rule rule{ls::Adam{.learning_rate = 0.05}, 0.99};
  ls::Checkpointer<float> checkpoints{path, {.every = 20}};

  Model first;
  Trainer interrupted{
      rule,
      first.variables,
      {.replicas_to_aggregate = 4, .hooks = {.after_update = [&](const ls::UpdateInfo& update) {
                                     checkpoints.take(interrupted, update.global_step);
                                   }}}};
  train(interrupted, first, 50, &checkpoints);
  checkpoints.write_pending();
  show("stopped at", interrupted, first);

  Model second;
  Trainer resumed{rule, second.variables, {.replicas_to_aggregate = 4}};
  resumed.restore(ls::load(path));
  show("resumed at", resumed, second);
  train(resumed, second, 80, nullptr);
  show("and trained to", resumed, second);

  Model whole;
  Trainer never_stopped{rule, whole.variables, {.replicas_to_aggregate = 4}};
  train(never_stopped, whole, 80, nullptr);
  show("without a stop", never_stopped, whole);
  Model third;
  Trainer of_two{rule, third.variables, {.replicas_to_aggregate = 2}};
  of_two.restore(ls::load(path));
  train(of_two, third, 80, nullptr);
  show("by two replicas", of_two, third);

  const auto a = second.variables.flat(), b = whole.variables.flat();
  std::printf("the same bits as without a stop: %s\n",
              std::equal(a.begin(), a.end(), b.begin()) ? "yes" : "no");
  std::filesystem::remove(path);
}
