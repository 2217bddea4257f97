// SPDX-License-Identifier: MIT
// The gradients of all variables at once.
#include "unit/gradients/pile.hpp"
#include "unit/sync/two_ways.hpp"

#include <cstdint>
#include <span>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Variables of which none fills its padding.
template <class T, class G = T>
struct Layers {
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
  Variables<T, G> variables;
  Handle<Matrix, T> weights = variables.add("weights", Matrix(Matrix::Ones(7, 5)));
  Handle<std::span<T>, T> bias = variables.add("bias", std::vector<T>(3, T{1}));
  Handle<VectorOf<T>, T> vector = variables.add("vector", VectorOf<T>(VectorOf<T>::Ones(1001)));
};

/// Gives all variables gradients, by one call for each or for all.
template <class T, class G, class O>
void give_all(O& optimizer, const Layers<T, G>& model, std::uint64_t key, bool at_once) {
  Numbers numbers(key + 17);
  const auto write = [&](auto&& weights, auto&& bias, auto&& vector) {
    const auto number = [&] { return static_cast<G>(static_cast<T>(numbers.real())); };
    for (Index i = 0; i < 35; ++i) weights.data()[i] = number();
    for (Index i = 0; i < 3; ++i) bias[static_cast<std::size_t>(i)] = number();
    for (Index i = 0; i < 1001; ++i) vector[i] = number();
  };
  if (at_once) {
    const auto gradients = optimizer.gradients();
    write(gradients[model.weights], gradients[model.bias], gradients[model.vector]);
  } else {
    write(optimizer.gradient(model.weights), optimizer.gradient(model.bias),
          optimizer.gradient(model.vector));
  }
}

}  // namespace

TEST_CASE("gradients at once: every optimizer ends with the bits of one by one",
          "[sync][gradients][thread]") {
  const Watchdog watchdog;
  check_two_ways<Layers>([](auto& optimizer, const auto& model, std::uint64_t key, bool at_once) {
    if (key % 7 == 3)
      optimizer.gradient(model.vector).setOnes();  // the others have none
    else
      give_all(optimizer, model, key, at_once);
  });
}

TEST_CASE("gradients at once: an update per variable takes them",
          "[sync][gradients][variable_replicas][thread]") {
  const Watchdog watchdog;
  const auto train = [](bool at_once) {
    return trained<Layers<float>>(
        [](auto& v) {
          return VariableReplicas{Sgd{0.1}, v, VariableOptions{.replicas_to_aggregate = 2}};
        },
        [&](auto& replica, const auto& model, std::uint64_t key) {
          give_all(replica, model, key, at_once);
          replica.apply_gradients();
        });
  };
  const std::vector<float> one_by_one = train(false);
  CHECK(one_by_one != bits_of(Layers<float>()));
  CHECK(train(true) == one_by_one);
}

TEST_CASE("gradients at once: those that were written before stay", "[sync][gradients]") {
  Layers<float> model;
  Local local{Sgd{.learning_rate = 1}, model.variables};
  local.set_gradient(model.bias, std::vector<float>{1, 2, 3});
  const auto gradients = local.gradients();
  CHECK(gradients[model.bias][2] == 3);
  gradients[model.weights].setConstant(10);
  gradients[model.vector].setConstant(100);
  local.gradient(model.vector)[1000] = 200;  // the same memory
  CHECK(gradients[model.vector][1000] == 200);
  CHECK(local.apply_gradients().status == Status::accepted);
  CHECK(local.value(model.bias)[2] == -2);
  CHECK(local.value(model.weights)(6, 4) == -9);
  CHECK(local.value(model.vector)[999] == -99);
  CHECK(local.value(model.vector)[1000] == -199);
}

TEST_CASE("gradients at once: nothing is present of a step before", "[sync][gradients]") {
  Layers<float> model;
  Local local{Sgd{}, model.variables};
  const auto gradients = local.gradients();
  gradients[model.weights].setZero();
  gradients[model.vector].setZero();
  for (float& element : gradients[model.bias]) element = 0;
  local.apply_gradients();
  CHECK_THROWS_AS(local.apply_gradients(), NoGradients);
}

TEST_CASE("gradients at once: they are NaN in debug builds until they are written", "[sync][gradients]") {
  Layers<float> model;
  Local local{Sgd{}, model.variables};
  const auto gradients = local.gradients();
#ifdef NDEBUG
  (void)gradients;
#else
  CHECK(gradients[model.weights].array().isNaN().all());
  CHECK(gradients[model.vector].array().isNaN().all());
  CHECK(gradients[model.bias][0] != gradients[model.bias][0]);
#endif
}

TEST_CASE("gradients at once: a handle of another set is refused", "[sync][gradients]") {
  Layers<float> model, other;
  Local local{Sgd{}, model.variables};
  const auto gradients = local.gradients();
  CHECK_THROWS_WITH(gradients[other.vector], ContainsSubstring("belongs to another set"));
  CHECK_THROWS_AS((gradients[Handle<VectorOf<float>, float>{}]), UnknownVariable);
}
