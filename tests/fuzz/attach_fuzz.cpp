// SPDX-License-Identifier: MIT
/// @file
/// Damages the file of a session as libFuzzer says and attaches it: that must work, or be refused by an error
/// of the library.
///
/// Input: what was damaged (a fresh session, one that has trained, one with an open round; in use or left
/// over; cut to which length), then bytes to overwrite: offset (3 bytes), value.
#include "support/processes.hpp"
#include <lockstep/lockstep.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

/// A trainer over the session "fuzz".
struct Attached {
  Attached(const std::string& folder, int replicas)
      : w(variables.add("w", Eigen::VectorXd::Zero(5))),
        table(variables.add("table", Eigen::MatrixXd(Eigen::MatrixXd::Zero(4, 2)))),
        trainer(Momentum{0.1, 0.9}, variables, {.replicas_to_aggregate = replicas, .deadline = 20ms},
                SharedMemory{.name = "fuzz", .directory = folder, .patience = 20ms}) {}
  void step(auto& replica) {
    replica.gradient(w).setConstant(1);
    replica.gradient(table).setConstant(2);
    replica.apply_gradients();
  }
  Variables<double> variables;
  Handle<Eigen::VectorXd, double> w;
  Handle<Eigen::MatrixXd, double> table;
  SyncReplicas<Momentum, SharedMemory, double> trainer;
};

std::string bytes_of(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(bytes).str();
}

/// Whole files of sessions, and a folder for damaged ones.
struct Stage {
  struct Good {
    int replicas;
    std::string bytes;
  };

  Stage() {
    {
      const Attached fresh(folder.path(), 1);
      good[0] = {1, bytes_of(path)};
    }
    {
      Attached trained(folder.path(), 1);
      trained.trainer.run([&](auto& replica) {
        for (int i = 0; i < 3; ++i) trained.step(replica);
      });
      good[1] = {1, bytes_of(path)};
    }
    {
      Attached open(folder.path(), 2);
      auto replica = open.trainer.join(0);
      try {
        open.step(replica);
      } catch (const TimeoutError&) {
        good[2] = {2, bytes_of(path)};
      }
      (void)replica.withdraw();
    }
    if (good[2].bytes.empty()) std::abort();
  }

  test::SessionFolder folder;
  std::string path = folder.path() + "/lockstep.fuzz";
  std::array<Good, 3> good;
};

/// Numbers from the input; zeros after its end.
struct Input {
  const std::uint8_t* data;
  std::size_t size;
  std::size_t number(int bytes) {
    std::size_t value = 0;
    for (; bytes > 0; --bytes) {
      value = value << 8 | (size > 0 ? *data : 0);
      if (size > 0) ++data, --size;
    }
    return value;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Stage stage;
  Input input{data, size};
  const auto& good = stage.good[input.number(1) % stage.good.size()];
  const std::size_t how = input.number(1);
  std::string bytes = good.bytes;
  if ((how & 1) != 0) bytes.resize(input.number(3) % (2 * bytes.size()));
  while (input.size > 0 && !bytes.empty()) {
    const std::size_t offset = input.number(3) % bytes.size();
    bytes[offset] = static_cast<char>(input.number(1));
  }
  std::ofstream(stage.path, std::ios::binary) << bytes;
  std::optional<detail::SharedFile> user;
  if ((how & 2) == 0) {  // somebody is attached, or else it is a leftover
    user.emplace(stage.path, 0);
    if (!user->try_share(detail::Segment::k_attached)) std::abort();
  }
  try {
    const Attached attached(stage.folder.path(), good.replicas);
    (void)attached.trainer.global_step();
    (void)attached.trainer.stats(0);
  } catch (const Error& error) {
    if (std::strlen(error.what()) > 2000) std::abort();
  }
  std::filesystem::remove(stage.path);
  return 0;
}
