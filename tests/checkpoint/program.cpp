// SPDX-License-Identifier: MIT
// The C++ half of check.py: `program write FILE` trains a little and saves, `program read FILE` loads, trains
// on and prints every element.
#include <lockstep/checkpoint/safetensors.hpp>
#include <lockstep/lockstep.hpp>

#include <iostream>
#include <string>
#include <vector>

namespace ls = lockstep;

namespace {

using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Model {
  ls::Variables<> variables;
  ls::Handle<Eigen::MatrixXf, float> weights = variables.add(
      "hidden/weights", Eigen::MatrixXf::NullaryExpr(
                            2, 3, [](ls::Index i, ls::Index j) { return static_cast<float>(10 * i + j); }));
  ls::Handle<Table, float> table = variables.add("table", Table(Table::Zero(4, 2)));
  ls::Handle<Eigen::VectorXf, float> bias =
      variables.add("bias:0", Eigen::VectorXf(Eigen::Vector3f(1, 2, 3)));
  ls::Local<ls::GradientAggregation<ls::Momentum>> optimizer{
      ls::GradientAggregation{ls::Momentum{.learning_rate = 0.5, .momentum = 0.5}, {.grad_steps = 2}},
      variables};

  void micro_batch() {
    optimizer.set_gradient(weights, Eigen::MatrixXf::NullaryExpr(2, 3, [](ls::Index i, ls::Index j) {
                             return static_cast<float>(i - 2 * j);
                           }));
    optimizer.set_rows(table, std::vector{3, 1}, Table(Table::Constant(2, 2, 4)));
    optimizer.apply_gradients();
  }
};

template <class Matrix>
void print(const std::string& name, const Matrix& matrix) {
  std::cout << name;
  for (ls::Index i = 0; i < matrix.rows(); ++i)
    for (ls::Index j = 0; j < matrix.cols(); ++j) std::cout << ' ' << matrix(i, j);
  std::cout << '\n';
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const std::string call = arguments[1], path = arguments[2];
  try {
    Model model;
    if (call == "write") {
      for (int i = 0; i < 3; ++i) model.micro_batch();
      ls::save(path, model.optimizer.snapshot());
      return 0;
    }
    model.optimizer.restore(ls::load(path));
    print("weights", model.optimizer.value(model.weights));
    print("weights:momentum", model.optimizer.slot("momentum", model.weights));
    print("table", model.optimizer.value(model.table));
    print("bias", model.optimizer.value(model.bias));
    std::cout << "step " << model.optimizer.global_step() << " pending " << model.optimizer.pending() << '\n';
    model.micro_batch();  // closes the window
    print("weights", model.optimizer.value(model.weights));
    print("table", model.optimizer.value(model.table));
  } catch (const ls::Error& error) {
    std::cout << error.what() << '\n';
    return 1;
  }
}
