// SPDX-License-Identifier: MIT
// Three processes, each with a point of its own, look for the place that is nearest to all points: their
// mean. One of them is killed half-way and started again; the others wait for it, and nothing is lost. Here
// the program forks the processes itself; with `lockstep-run -n 3 --restart 1` main() would only call
// train().
#include <lockstep/lockstep.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace ls = lockstep;

constexpr int k_replicas = 3;

// What each process does. The name of the session is all that they have in common.
void train(const std::string& session, int number) {
  ls::Variables<> variables;
  const auto place = variables.add("place", Eigen::Vector2f(0, 0));
  ls::SyncReplicas trainer{ls::Sgd{.learning_rate = 0.1},
                           variables,
                           {.replicas_to_aggregate = k_replicas, .departure = ls::Departure::wait},
                           ls::SharedMemory{.name = session, .replica = number}};

  const Eigen::Vector2f point(static_cast<float>(number), static_cast<float>(number * number));
  trainer.run([&](auto& replica) {
    while (replica.global_step() < 200) {
      const bool is_first_life = trainer.stats(number).incarnation == 1;
      if (number == 1 && replica.global_step() == 100 && is_first_life) std::raise(SIGKILL);

      replica.set_gradient(place, replica.value(place) - point);
      replica.apply_gradients();
    }
  });

  if (number != 0) return;
  for (int i = 0; i < trainer.replicas(); ++i)
    std::printf("replica %d: %d contributions, started %d time(s)\n", i,
                static_cast<int>(trainer.stats(i).accepted), static_cast<int>(trainer.stats(i).incarnation));
  const Eigen::Vector2d found = variables.value(place).cast<double>();
  std::printf("%d updates: %.3f %.3f\n", static_cast<int>(trainer.global_step()), found(0), found(1));
}

int main() {
  const std::string session = "example-" + std::to_string(::getpid());
  std::map<pid_t, int> numbers;  // of the replicas, by process
  const auto start = [&](int number) {
    const pid_t process = ::fork();
    if (process == 0) {
      train(session, number);
      std::exit(0);
    }
    numbers[process] = number;
  };

  for (int number = 0; number < k_replicas; ++number) start(number);
  bool is_good = true;
  while (!numbers.empty()) {
    int status = 0;
    const pid_t process = ::wait(&status);
    const int number = numbers.at(process);
    numbers.erase(process);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      start(number);
    else
      is_good = is_good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return is_good ? 0 : 1;
}
