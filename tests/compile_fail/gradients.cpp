// SPDX-License-Identifier: MIT
// What cannot be a variable or a gradient, and what is said about it.
#include <lockstep/lockstep.hpp>

#include <array>
#include <vector>

using namespace lockstep;

// expect-error(SECTION_rows_of_columns): \[lockstep\.gradient\.rows\] rows of a column-major .*row-major
// expect-error(SECTION_places_of_columns): \[lockstep\.gradient\.rows\] rows of a column-major .*row-major
// expect-error(SECTION_add_double): TensorExpression
// expect-error(SECTION_add_number): (TensorExpression|TensorOf<float>)
// expect-error(SECTION_add_view_of_columns): (TensorExpression|TensorOf<Eigen::TriangularView)
// expect-error(SECTION_handle_of_other_scalar): (no matching|could not match|mismatched types)
// expect-error(SECTION_value_is_written): (lvalue required|not assignable|read-only)
// expect-error(SECTION_variables_are_copied): (deleted)
// expect-error(SECTION_integer_variables): (VariableScalar|constraint)
// expect-error(SECTION_gradient_scalar): (GradientScalar|constraint)

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

void use() {
  Variables<float> variables;
  const auto columns = variables.add("columns", Eigen::MatrixXf(Eigen::MatrixXf::Zero(4, 2)));
  const auto rows = variables.add("rows", RowMajor(RowMajor::Zero(4, 2)));
  const auto vector = variables.add("vector", Eigen::VectorXf(Eigen::VectorXf::Zero(4)));
  Local local{Sgd{}, variables};
  const std::vector<int> indices{1};

#if defined(SECTION_rows_of_columns)
  local.set_rows(columns, indices, RowMajor(RowMajor::Ones(1, 2)));
#elif defined(SECTION_places_of_columns)
  (void)local.row_gradients(columns, indices);
#elif defined(SECTION_add_double)
  variables.add("double", Eigen::VectorXd(Eigen::VectorXd::Zero(4)));
#elif defined(SECTION_add_number)
  variables.add("number", 3.0F);
#elif defined(SECTION_add_view_of_columns)
  variables.add("view", Eigen::MatrixXf(4, 4).triangularView<Eigen::Upper>());
#elif defined(SECTION_handle_of_other_scalar)
  Variables<double> others;
  const auto other = others.add("other", Eigen::VectorXd(Eigen::VectorXd::Zero(4)));
  local.gradient(other).setZero();
#elif defined(SECTION_value_is_written)
  local.value(vector)[0] = 1;
#elif defined(SECTION_variables_are_copied)
  Variables<float> copy = variables;
#elif defined(SECTION_integer_variables)
  Variables<int> integers;
#elif defined(SECTION_gradient_scalar)
  Variables<float, double> wide;
#else
  // Expressions of another scalar are converted where a gradient is set; only variables are strict.
  local.set_gradient(columns, Eigen::MatrixXd(Eigen::MatrixXd::Ones(4, 2)));
  local.set_gradient(columns, 0.5 * local.value(vector).cast<double>() * Eigen::RowVector2d::Ones());
  local.set_gradient(vector, Eigen::VectorXf(Eigen::VectorXf::Ones(8)).head(4));
  local.set_rows(rows, indices, RowMajor(RowMajor::Ones(1, 2)));
  local.set_rows(vector, std::array{1, 2}, Eigen::VectorXd(Eigen::VectorXd::Ones(2)));
  local.row_gradients(rows, indices)[1] = Eigen::RowVector2f::Ones();
  local.gradient(vector)[0] = local.value(vector)[0];
#endif
}
