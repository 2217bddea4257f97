// SPDX-License-Identifier: MIT
/// @file
/// What can be asked of the example about a training.
#pragma once

#include <cstdint>
#include <string>

namespace digits {

struct Options {
  std::string data = "examples/data/digits.csv";
  std::string transport = "threads";  // or processes, or local
  std::string exchange = "window";
  std::string optimizer = "adam";
  int replicas = 4;
  int aggregate = 0;  // 0: as many as replicas
  int grad_steps = 1;
  double learning_rate = 0;  // 0: one that suits the optimizer
  std::int64_t steps = 1500;
  std::int64_t batch = 32;
  std::int64_t hidden = 64;
  std::uint64_t seed = 1;
  double min_accuracy = 0.97;
  bool prove = true;
  std::string session = "digits";  // of processes
  std::int64_t die_at = 0;         // 0: never
  std::string trace, plot;         // files to write, or nothing

  bool is_local() const { return transport == "local"; }
  bool is_in_processes() const { return transport == "processes"; }
  bool is_watched() const { return !trace.empty() || !plot.empty(); }
  int contributions() const { return aggregate == 0 ? replicas : aggregate; }
};

}  // namespace digits
