// SPDX-License-Identifier: MIT
/// @file
/// Optimizers and variables of conformance.json as rules and variables of the library, and errors by their
/// names in it.
#pragma once

#include "driver.hpp"
#include "tensors.hpp"
#include <lockstep/compat/tensorflow_gradients.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/adagrad.hpp>
#include <lockstep/optimizers/adam.hpp>
#include <lockstep/optimizers/momentum.hpp>
#include <lockstep/optimizers/schedule.hpp>
#include <lockstep/optimizers/sgd.hpp>

#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace conformance {

/// What the file computes in.
using Scalar = double;
using VariableSet = lockstep::Variables<Scalar>;
using VariableHandle = lockstep::Handle<lockstep::NdSpan<Scalar>, Scalar>;

inline lockstep::Schedule schedule_from(const Json& config) {
  if (!config.contains("lr_schedule")) return config.at("learning_rate").get<double>();
  const Json& linear = config.at("lr_schedule");
  return [base = linear.at("base").get<double>(), slope = linear.at("slope").get<double>()](
             std::int64_t step) { return base + slope * static_cast<double>(step); };
}

/// Calls `use(rule)` with the rule that `config` describes.
template <class Use>
void with_rule(const Json& config, Use&& use) {
  const auto type = config.at("type").get<std::string>();
  const auto number = [&](const char* name, double otherwise) { return config.value(name, otherwise); };
  const lockstep::Schedule rate = schedule_from(config);
  if (type == "sgd")
    use(lockstep::Sgd{.learning_rate = rate});
  else if (type == "momentum")
    use(lockstep::Momentum{.learning_rate = rate,
                           .momentum = number("momentum", 0),
                           .nesterov = config.value("use_nesterov", false)});
  else if (type == "adagrad")
    use(lockstep::Adagrad{.learning_rate = rate,
                          .initial_accumulator_value = number("initial_accumulator_value", 0.1)});
  else if (type == "adam")
    use(lockstep::Adam{.learning_rate = rate,
                       .beta1 = number("beta1", 0.9),
                       .beta2 = number("beta2", 0.999),
                       .epsilon = number("epsilon", 1e-8)});
  else
    throw std::runtime_error("no optimizer is called " + type);
}

inline void add_variables(const Json& list, VariableSet& variables) {
  for (const Json& variable : list) {
    const auto value = tensor_from<Scalar>(variable.at("value"));
    variables.add(variable.at("name").get<std::string>(),
                  lockstep::NdSpan<const Scalar>(value.elements, value.shape));
  }
}
inline VariableHandle handle_of(const VariableSet& variables, const std::string& name) {
  return lockstep::tensorflow::detail::handle_of(variables, variables.layout().find(name));
}

inline Json json_of(const lockstep::NdSpan<const Scalar>& view) {
  return json_of(lockstep::Tensor<Scalar>{{view.begin(), view.end()}, view.shape});
}
inline Json values_of(const VariableSet& variables) {
  Json result = Json::object();
  for (const lockstep::VariableInfo& info : variables.infos())
    result[info.name] = json_of(variables.value(handle_of(variables, info.name)));
  return result;
}

/// An entry of `grads` as the (gradient, variable) of TensorFlow.
inline lockstep::tensorflow::GradAndVar grad_and_var(const std::string& name, const Json& json) {
  const auto type = json.at("type").get<std::string>();
  if (type == "none") return {lockstep::tensorflow::None, name};
  if (type == "dense") return {tensor_from<Scalar>(json), name};
  return {lockstep::tensorflow::IndexedSlices<Scalar>{
              .values = tensor_from<Scalar>(json.at("values")),
              .indices = json.at("indices").get<std::vector<lockstep::Index>>(),
              .dense_shape = shape_from(json.at("dense_shape"))},
          name};
}
inline lockstep::tensorflow::GradsAndVars grads_and_vars(const Json& grads) {
  lockstep::tensorflow::GradsAndVars result;
  for (const auto& [name, gradient] : grads.items()) result.push_back(grad_and_var(name, gradient));
  return result;
}

/// Calls `action` and throws what it threw by the name that Python has for it.
template <class Action>
decltype(auto) as_python(Action&& action) {
  try {
    return std::forward<Action>(action)();
  } catch (const lockstep::tensorflow::TypeError& error) {
    throw TypeError(error.what());
  } catch (const lockstep::tensorflow::NotInitialized& error) {
    throw RuntimeError(error.what());
  } catch (const lockstep::UsageError& error) {
    throw ValueError(error.what());
  } catch (const lockstep::InvalidArgument& error) {
    throw ValueError(error.what());
  }
}

}  // namespace conformance
