// SPDX-License-Identifier: MIT
// What a small program with lockstep costs the compiler.
#include <lockstep/lockstep.hpp>

float train(lockstep::Variables<float>& variables, const Eigen::VectorXf& gradient) {
  const auto w = variables.add("w", gradient);
  lockstep::SyncReplicas<lockstep::Adam, lockstep::InProcess> trainer(lockstep::Adam{}, variables,
                                                                      {.replicas_to_aggregate = 2});
  trainer.run([&](auto& replica) {
    replica.set_gradient(w, gradient);
    replica.apply_gradients();
  });
  return variables.value(w)(0);
}
