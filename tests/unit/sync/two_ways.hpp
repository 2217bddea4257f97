// SPDX-License-Identifier: MIT
/// @file
/// Gradients that can be given in two ways: every kind of optimizer ends with the same bits.
#pragma once

#include "unit/sync/scene.hpp"
#include <lockstep/optimizers/local.hpp>
#include <lockstep/optimizers/optimizers.hpp>
#include <lockstep/per_variable/variable_replicas.hpp>

#include <cstdint>
#include <vector>

namespace lockstep::test {

template <class Model>
auto bits_of(const Model& model) {
  return std::vector(model.variables.flat().begin(), model.variables.flat().end());
}

/// The bits of the model at the end of a training of 12 times `step(optimizer, model, key)`; the key differs
/// between steps and replicas.
template <class Model, class Make, class Step>
auto trained(Make&& make, Step&& step) {
  Model model;
  {
    auto trainer = make(model.variables);
    trainer.run([&](auto& optimizer) {
      for (std::uint64_t i = 0; i < 12; ++i)
        step(optimizer, model, i * 10 + static_cast<std::uint64_t>(optimizer.index()));
    });
  }
  return bits_of(model);
}

/// Trains a `Model<T, G>` with every kind of optimizer and gradients that `give(optimizer, model, key, way)`
/// gives in one way and the other.
template <template <class, class> class Model, class Give>
void check_two_ways(Give&& give) {
  const auto check = [&]<class T, class G>(const Model<T, G>& untrained, const char* name, auto make) {
    INFO(name);
    const auto bits = [&](bool way) {
      return trained<Model<T, G>>(make, [&](auto& optimizer, const auto& model, std::uint64_t key) {
        give(optimizer, model, key, way);
        optimizer.apply_gradients({.weight = 1.0 + 0.5 * static_cast<double>(key / 10 % 3)});
      });
    };
    const auto one_way = bits(false);
    CHECK(one_way != bits_of(untrained));
    CHECK(bits(true) == one_way);
  };
  const Model<float, float> floats;
  const Adam lazy{.lazy_rows = true};
  check(floats, "Local", [&](auto& v) { return Local{lazy, v}; });
  check(Model<double, double>(), "Local, all rows move", [](auto& v) { return Local{Adam{}, v}; });
  check(floats, "Local, whole variables", [](auto& v) { return Local{Lamb{}, v}; });
  check(Model<float, Eigen::half>(), "Local, 16 bits", [&](auto& v) { return Local{lazy, v}; });
  check(floats, "Local<GradientAggregation>", [&](auto& v) {
    return Local{GradientAggregation<Adam>{lazy, {.grad_steps = 3}}, v};
  });
  check(floats, "SyncReplicas", [&](auto& v) { return SyncReplicas{lazy, v, {.replicas_to_aggregate = 3}}; });
  check(floats, "SyncReplicas, measured", [&](auto& v) {
    return SyncReplicas{lazy,
                        v,
                        {.replicas_to_aggregate = 2,
                         .non_finite = NonFinite::skip_update,
                         .clip_norm = 0.5,
                         .clip_contribution_norm = 0.7}};
  });
  check(floats, "GradientAggregation<SyncReplicas>", [&](auto& v) {
    return GradientAggregation{SyncReplicas{lazy, v, {.replicas_to_aggregate = 2}}, {.grad_steps = 2}};
  });
  check(Model<float, Eigen::bfloat16>(), "GradientAggregation<SyncReplicas>, 16 bits", [&](auto& v) {
    return GradientAggregation{SyncReplicas{lazy, v, {.replicas_to_aggregate = 2}}, {.grad_steps = 2}};
  });
}

}  // namespace lockstep::test
