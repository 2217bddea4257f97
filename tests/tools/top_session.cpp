// SPDX-License-Identifier: MIT
/// @file
/// One process of a session that lockstep-run starts or lockstep-top looks at: top_session DIRECTORY NAME
/// REPLICA REPLICAS PAUSE. Pauses so many milliseconds in each step; ends when there is a file
/// DIRECTORY/stop.
#include <lockstep/lockstep.hpp>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

namespace ls = lockstep;

int main(int, char** argv) {
  const std::string directory = argv[1];
  const std::chrono::milliseconds pause(std::atoi(argv[5]));
  ls::Variables<> variables;
  const auto w = variables.add("w", Eigen::Vector2f(1, 2));
  ls::SyncReplicas trainer{
      ls::Sgd{.learning_rate = 0.5},
      variables,
      {.replicas_to_aggregate = std::atoi(argv[4])},
      ls::SharedMemory{.name = argv[2], .replica = std::atoi(argv[3]), .directory = directory}};
  trainer.run([&](auto& replica) {
    while (!std::filesystem::exists(directory + "/stop")) {
      std::this_thread::sleep_for(pause);
      replica.set_gradient(w, replica.value(w));
      replica.apply_gradients();
    }
  });
}
