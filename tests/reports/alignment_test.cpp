// SPDX-License-Identifier: MIT
// BR-116: packed memory and Eigen's alignment. Built a second time with wider registers and UBSan, see
// meson.build.
#include "reports/scenario.hpp"

#include <cstdint>
#include <tuple>

using namespace lockstep;
using namespace lockstep::test;

namespace {

bool is_aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % k_alignment == 0; }

template <class T, int n>
using Fixed = Eigen::Matrix<T, n, 1>;

/// Odd sizes one after the other: fixed-size and dynamic, vectors and a matrix.
template <class T>
struct Pieces {
  Variables<T> variables;
  Handle<Fixed<T, 3>, T> three = variables.add("three", Fixed<T, 3>::Constant(1));
  Handle<Fixed<T, 1>, T> one = variables.add("one", Fixed<T, 1>::Constant(2));
  Handle<Fixed<T, 5>, T> five = variables.add("five", Fixed<T, 5>::Constant(3));
  Handle<VectorOf<T>, T> seven = variables.add("seven", VectorOf<T>::Constant(7, 4));
  Handle<Fixed<T, 4>, T> four = variables.add("four", Fixed<T, 4>::Constant(5));  // a vectorizable fixed size
  Handle<Eigen::Matrix<T, 3, 3>, T> nine = variables.add("nine", Eigen::Matrix<T, 3, 3>::Constant(6));

  template <class F>
  void for_each(F&& f) const {
    std::apply([&](const auto&... handle) { (f(handle), ...); },
               std::tie(three, one, five, seven, four, nine));
  }
};

}  // namespace

TEMPLATE_TEST_CASE("BR-116: every tensor starts on its own cache line in every buffer", "[reports][BR-116]",
                   float, double) {
  const Watchdog watchdog;
  using T = TestType;
  Pieces<T> pieces;
  std::vector<int> misplaced(2);
  SyncReplicas trainer{
      Momentum{.learning_rate = 0.5, .momentum = 0.5}, pieces.variables, {.replicas_to_aggregate = 2}};
  trainer.run([&](auto& replica) {
    int& wrong = misplaced[at(replica.index())];
    for (int round = 0; round < 2; ++round) {
      pieces.for_each([&](const auto& handle) {
        auto gradient = replica.gradient(handle);
        wrong += is_aligned(gradient.data()) ? 0 : 1;
        wrong += is_aligned(replica.value(handle).data()) ? 0 : 1;
        wrong += is_aligned(replica.slot("momentum", handle).data()) ? 0 : 1;
        // Twice the value of replica 0, nothing from replica 1: the mean is the value.
        gradient = replica.value(handle) * static_cast<T>(replica.index() == 0 ? 2 : 0);
      });
      replica.apply_gradients();
    }
  });
  CHECK(misplaced == std::vector{0, 0});
  // w = 1: a = 1, w = 0.5; a = 0.5 + 0.5 = 1, w = 0. All is linear in the initial value.
  T initial = 1;
  pieces.for_each([&](const auto& handle) {
    const auto value = pieces.variables.value(handle);
    const auto momentum = trainer.slot("momentum", handle);
    CHECK(is_aligned(value.data()));
    CHECK((value.array() == T(0)).all());
    CHECK((momentum.array() == initial).all());
    initial += 1;
  });
  for (const VariableInfo& info : pieces.variables.infos())
    CHECK(info.offset * static_cast<Index>(sizeof(T)) % static_cast<Index>(k_alignment) == 0);
}

TEST_CASE("BR-116: 16-bit gradients, snapshots of late replicas, local accumulators", "[reports][BR-116]") {
  const Watchdog watchdog;
  Variables<float, Eigen::bfloat16> variables;
  const auto three = variables.add("three", Fixed<float, 3>::Constant(1));
  const auto five = variables.add("five", Fixed<float, 5>::Constant(1));
  GradientAggregation trainer{
      SyncReplicas{Sgd{1.0}, variables, {.replicas_to_aggregate = 1, .reading = Reading::snapshot}},
      {.grad_steps = 3}};
  trainer.run([&](auto& replica) {
    for (int i = 0; i < 3; ++i) {
      replica.set_gradient(three, replica.value(three) * 0.5F);
      replica.gradient(five) = Fixed<Eigen::bfloat16, 5>::Constant(Eigen::bfloat16(0.25F));
      replica.apply_gradients();
    }
  });
  CHECK((variables.value(three).array() == 0.5F).all());
  CHECK((variables.value(five).array() == 0.75F).all());
}
