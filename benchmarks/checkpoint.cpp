// SPDX-License-Identifier: MIT
// How long an update waits for a checkpoint (the call in its hook), against one copy of the same bytes and
// against what it would be if the copy took new memory. Adam, so three arrays.
#include "support/interleave.hpp"
#include "support/report.hpp"
#include <lockstep/checkpoint/checkpointer.hpp>
#include <lockstep/lockstep.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace {

using namespace lockstep;
using namespace lockstep::bench;

void compare(Index elements, int rounds) {
  Variables<> variables;
  (void)variables.add("w", Eigen::VectorXf::LinSpaced(elements, -1, 1));
  SyncReplicas trainer{Adam{}, variables, {.replicas_to_aggregate = 2}};
  float last = 0;
  Checkpointer<float> checkpoints{"nothing is written", {.write = [&](const auto&, const Snapshot<float>& s) {
                                    last = s.arrays.front().values.back();
                                  }}};
  std::vector<float> from(3 * static_cast<std::size_t>(elements), 1), to(from.size(), 2);

  Interleaved times;
  times.add("take", [&] {
    const double seconds = seconds_of([&] { checkpoints.take(trainer, 1); });
    checkpoints.write_pending();
    return seconds;
  });
  times.add("copy", [&] {
    return seconds_of([&] {
      std::copy(from.begin(), from.end(), to.begin());
      clobber();
    });
  });
  times.add("new memory", [&] { return seconds_of([&] { (void)trainer.snapshot(); }); });
  times.run(rounds);
  expect_close(last, 1, "the last element of a copy");
  const std::string name = "checkpoint/elements:" + std::to_string(elements);
  report(name + "/take_of_copy", times.ratio("take", "copy"), "x the time", times);
  report(name + "/new_memory_of_copy", times.ratio("new memory", "copy"), "x the time");
}

}  // namespace

int main() {
  compare(1'000'000, 51);
  compare(25'000'000, 11);
}
