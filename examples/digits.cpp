// SPDX-License-Identifier: MIT
/// @file
/// Trains a network on handwritten digits with several replicas, and proves that it is the training of one
/// big batch: the same weights, and the same bits whatever the timing. Ends with status 1 if a claim does not
/// hold.
#include "digits/command_line.hpp"
#include "digits/train.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <optional>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace digits {
namespace {

/// Trains as the options say.
void train_all(ls::Variables<Real>& variables, Job& job) {
  const Options& options = job.options;
  const auto rate = [&](double usual) { return options.learning_rate > 0 ? options.learning_rate : usual; };
  if (options.optimizer == "sgd") train_with(ls::Sgd{.learning_rate = rate(0.5)}, variables, job);
  if (options.optimizer == "momentum") train_with(ls::Momentum{.learning_rate = rate(0.1)}, variables, job);
  if (options.optimizer == "adam") train_with(ls::Adam{.learning_rate = rate(0.003)}, variables, job);
  if (options.optimizer == "adamw") train_with(ls::AdamW{.learning_rate = rate(0.003)}, variables, job);
  if (options.optimizer == "lamb") train_with(ls::Lamb{.learning_rate = rate(0.003)}, variables, job);
}

void print_replicas(const Job& job) {
  if (job.stats.empty()) return;
  std::printf("\nreplica  contributions  stale  not needed  came last  waiting\n");
  for (std::size_t i = 0; i < job.stats.size(); ++i) {
    const ls::ReplicaStats& stats = job.stats[i];
    std::printf("%7zu %14lld %6lld %11lld %10lld %6.2f s\n", i, static_cast<long long>(stats.accepted),
                static_cast<long long>(stats.stale), static_cast<long long>(stats.not_needed),
                static_cast<long long>(stats.last_arrivals),
                std::chrono::duration<double>(stats.waiting).count());
  }
}

/// A file that is written after the training. It is opened before: who has mistyped its name learns it at
/// once.
class Output {
 public:
  /// Nothing is opened for an empty path.
  explicit Output(std::string path) : path_(std::move(path)) {
    if (path_.empty()) return;
    file_.open(path_);
    expect_good();
  }
  template <class Write>
  void fill(Write&& write) {
    if (path_.empty()) return;
    write(file_);
    file_.close();
    expect_good();
    std::printf("written: %s\n", path_.c_str());
  }

 private:
  void expect_good() const {
    if (!file_) throw std::runtime_error("cannot write " + path_);
  }
  std::string path_;
  std::ofstream file_;
};

/// What the user wants to see of a training.
struct Watched {
  Watched(const Options& options, Job& job)
      : trace_file(options.trace),
        plot_file(options.plot),
        curve(options.steps),
        trace({.replicas = options.replicas, .capacity = room(options)}) {
    job.curve = &curve;
    job.trace = &trace;
  }
  /// Spans of a replica: a contribution has about six. Of a very long training the beginning is kept.
  static std::size_t room(const Options& options) {
    const int contributions = 1 + options.contributions() / options.replicas;
    const std::int64_t spans = options.steps * options.grad_steps * contributions * 16;
    return static_cast<std::size_t>(std::min<std::int64_t>(spans, 1'000'000));
  }
  void write(const Options& options) {
    trace_file.fill([&](std::ostream& out) { trace.write(out); });
    plot_file.fill([&](std::ostream& out) { plot(out, curve, trace, options.replicas); });
  }
  Output trace_file, plot_file;
  Curve curve;
  ls::ChromeTrace trace;
};

/// Prints a claim and whether it holds.
bool claim(bool holds, const char* text, double found) {
  std::printf("%-7s %s: %.3g\n", holds ? "holds" : "FAILS", text, found);
  return holds;
}

/// The weights after a training.
std::vector<Real> weights(const Options& options, const Digits& data,
                          std::optional<std::uint64_t> jitter = {}) {
  ls::Variables<Real> variables;
  const Network network(variables, options.hidden, options.seed);
  Job job{.options = options, .data = data, .network = network, .jitter = jitter};
  train_all(variables, job);
  const std::span<const Real> flat = variables.flat();
  return {flat.begin(), flat.end()};
}

/// Weights with other bits.
std::size_t count_different(std::span<const Real> a, std::span<const Real> b) {
  std::size_t different = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    different += std::memcmp(&a[i], &b[i], sizeof(Real)) != 0 ? 1U : 0U;
  return different;
}

bool train_and_report(const Options& options, const Digits& data) {
  ls::Variables<Real> variables;
  const Network network(variables, options.hidden, options.seed);
  Progress progress(options.steps);
  Job job{.options = options, .data = data, .network = network, .jitter = {}, .progress = &progress};
  std::optional<Watched> watched;
  if (options.is_watched()) watched.emplace(options, job);
  const auto print_what = [&] {
    std::printf(
        "%zu images to train, %zu to test; %s, %d replica(s) x batch %lld x %d micro-batch(es), R = %d\n",
        data.train.labels.size(), data.test.labels.size(), options.optimizer.c_str(), options.replicas,
        static_cast<long long>(options.batch), options.grad_steps, options.contributions());
  };
  if (!options.is_in_processes()) print_what();
  train_all(variables, job);
  if (options.is_in_processes() && job.index != 0) return true;  // replica 0 reports
  if (options.is_in_processes()) print_what();
  print_replicas(job);
  if (watched) watched->write(options);
  const double accuracy = network.accuracy(data.test, variables);
  std::printf("\n");
  const bool accurate =
      claim(accuracy >= options.min_accuracy, "test accuracy is at least --min-accuracy", accuracy);
  if (!options.is_in_processes() || !options.prove || options.aggregate != 0) return accurate;
  Options in_threads = options;
  in_threads.transport = "threads";
  in_threads.die_at = 0;
  const auto different = static_cast<double>(count_different(variables.flat(), weights(in_threads, data)));
  return claim(different == 0, "the processes have the bits of threads; different weights", different) &&
         accurate;
}

/// With R = N, where the result is promised not to depend on timing.
bool prove(const Options& options, const Digits& data) {
  Options many = options;
  many.transport = "threads";
  if (options.is_local()) many.replicas = 4;
  many.aggregate = 0;
  many.steps = std::min<std::int64_t>(options.steps, 200);
  Options one = many;
  one.transport = "local";
  one.replicas = one.grad_steps = 1;
  one.batch *= many.replicas * many.grad_steps;

  std::printf(
      "\n%lld updates in double: %d replicas x batch %lld x %d micro-batch(es) against 1 replica x batch "
      "%lld\n",
      static_cast<long long>(many.steps), many.replicas, static_cast<long long>(many.batch), many.grad_steps,
      static_cast<long long>(one.batch));
  const std::vector<Real> a = weights(many, data), b = weights(one, data);
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  const bool same = claim(largest < 1e-10, "largest difference of a weight is below 1e-10", largest);

  const std::vector<Real> c = weights(many, data, 17), d = weights(many, data, 4711);
  const std::size_t different = count_different(a, c) + count_different(a, d);
  return claim(different == 0, "two trainings with random pauses have the same bits; different weights",
               static_cast<double>(different)) &&
         same;
}

}  // namespace
}  // namespace digits

int main(int argc, char** argv) try {
  const digits::Options options = digits::parse(argc, argv);
  const digits::Digits data = digits::read_digits(options.data);
  bool good = digits::train_and_report(options, data);
  if (options.prove && !options.is_in_processes()) good = digits::prove(options, data) && good;
  return good ? 0 : 1;
} catch (const CLI::ParseError& error) {
  return error.get_exit_code();
} catch (const std::exception& error) {
  std::fprintf(stderr, "digits: %s\n", error.what());
  return 2;
}
