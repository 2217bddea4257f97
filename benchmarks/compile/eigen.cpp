// SPDX-License-Identifier: MIT
// What a small program with Eigen costs the compiler.
#include <Eigen/Dense>

Eigen::MatrixXf product(const Eigen::MatrixXf& a, const Eigen::MatrixXf& b) { return a * b; }
