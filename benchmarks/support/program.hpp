// SPDX-License-Identifier: MIT
/// @file
/// The main function of a benchmark program: absolute numbers by Google Benchmark, or, with `--compare`,
/// ratios of contenders that take turns.
#pragma once

#include "interleave.hpp"
#include "report.hpp"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace lockstep::bench {

inline bool has_argument(int argc, char** argv, const char* name) {
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], name) == 0) return true;
  return false;
}

/// @param compare reports ratios. @param register_all registers benchmarks.
template <class Compare, class Register>
int run_program(int argc, char** argv, Compare&& compare, Register&& register_all) {
#ifndef NDEBUG
  std::fprintf(stderr, "this is a debug build: measure with scripts/bench\n");
  return 2;
#endif
  if (has_argument(argc, argv, "--compare")) {
    compare();
    return 0;
  }
  register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

/// A benchmark whose workload says itself how long an operation took.
/// @param make makes the workload, a callable from a number of operations to seconds per operation. It is
/// made when it runs first and lives until another benchmark runs, for it may be large.
/// @param bytes floor of one operation. @param batch operations that run in one go.
template <class Make>
void register_workload(const std::string& name, double bytes, int batch, Make make) {
  using Workload = std::function<double(int)>;
  static std::string current;
  static Workload workload;
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    if (current != name) {
      workload = nullptr;
      workload = [made = std::shared_ptr(make())](int operations) { return (*made)(operations); };
      workload(1);
      current = name;
    }
    while (state.KeepRunningBatch(batch)) state.SetIterationTime(workload(batch) * batch);
    state.SetBytesProcessed(static_cast<std::int64_t>(bytes * static_cast<double>(state.iterations())));
  })->UseManualTime();
}

}  // namespace lockstep::bench
