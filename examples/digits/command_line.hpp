// SPDX-License-Identifier: MIT
/// @file
/// Reads the options from the command line.
#pragma once

#include "options.hpp"

#include <CLI/CLI.hpp>

namespace digits {

/// Throws CLI::ParseError, also for --help.
inline Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small network on 8x8 images of digits, with many replicas that train as one.");
  app.add_option("--data", options.data, "the images: 65 numbers a line")->capture_default_str();
  app.add_option("--transport", options.transport,
                 "where replicas live: threads; processes, of which this is one; or local for a single one")
      ->check(CLI::IsMember({"threads", "processes", "local"}))
      ->capture_default_str();
  CLI::Option* replicas = app.add_option("--replicas", options.replicas, "N: replicas that train")
                              ->check(CLI::Range(1, 128))
                              ->capture_default_str();
  CLI::Option* aggregate =
      app.add_option("--aggregate", options.aggregate, "R: contributions that make an update (default: N)")
          ->check(CLI::Range(1, 1024));
  app.add_option("--grad-steps", options.grad_steps, "k: micro-batches of a replica that make a window")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--exchange", options.exchange, "replicas exchange once per window or per micro-batch")
      ->check(CLI::IsMember({"window", "micro-batch"}))
      ->capture_default_str();
  app.add_option("--optimizer", options.optimizer, "the update rule")
      ->check(CLI::IsMember({"sgd", "momentum", "adam", "adamw", "lamb"}))
      ->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "default: one that suits the optimizer")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "updates")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", options.batch, "images in a micro-batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--hidden", options.hidden, "units of the hidden layer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of initial weights and order of images")->capture_default_str();
  app.add_option("--min-accuracy", options.min_accuracy, "fail if the test accuracy ends below it")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--session", options.session, "what the processes that train together have in common")
      ->envname("LOCKSTEP_SESSION")
      ->capture_default_str();
  app.add_option("--die-at", options.die_at, "replica 1 kills itself at this step, the first time it runs")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--trace", options.trace,
                 "writes what each replica did to this file, for https://ui.perfetto.dev (threads only)");
  app.add_option("--plot", options.plot,
                 "draws loss, accuracy and what each replica did as SVG (threads only)");
  app.add_flag("!--no-proof", options.prove, "only train");
  try {
    app.parse(argc, argv);
    if (options.is_local() && (replicas->count() > 0 || aggregate->count() > 0))
      throw CLI::ValidationError("--transport local",
                                 "has a single replica: leave --replicas and --aggregate out");
    if (options.transport != "threads" && options.is_watched())
      throw CLI::ValidationError("--trace, --plot", "only with --transport threads");
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    throw;
  }
  if (options.is_local()) options.replicas = 1;
  return options;
}

}  // namespace digits
