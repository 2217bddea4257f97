// SPDX-License-Identifier: MIT
/// @file
/// A network with one hidden layer, 64 -> hidden -> 10, with tanh, softmax and cross entropy.
#pragma once

#include "data.hpp"
#include <lockstep/lockstep.hpp>

#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <random>

namespace digits {

/// Uniform in +-sqrt(6 / (rows + cols)), Glorot's choice.
inline Matrix glorot(Eigen::Index rows, Eigen::Index cols, std::mt19937_64& random) {
  const Real limit = std::sqrt(Real(6) / static_cast<Real>(rows + cols));
  return Matrix::NullaryExpr(
      rows, cols, [&] { return limit * (2 * std::ldexp(static_cast<Real>(random() >> 11), -53) - 1); });
}

class Network {
 public:
  Network(lockstep::Variables<Real>& variables, Eigen::Index hidden, std::uint64_t seed)
      : Network(variables, hidden, std::mt19937_64(seed)) {}

  /// Writes the gradient of the mean cross entropy of a batch and returns that mean.
  /// @param replica any lockstep::Optimizer.
  double backward(const Images& batch, lockstep::Optimizer auto& replica) const {
    return backward(batch, replica.value(w1_), replica.value(b1_), replica.value(w2_), replica.value(b2_),
                    replica.gradient(w1_), replica.gradient(b1_), replica.gradient(w2_),
                    replica.gradient(b2_));
  }

  /// Fraction of images whose most probable class is the label.
  /// @param source a replica or a lockstep::Variables object.
  double accuracy(const Images& images, const auto& source) const {
    const Matrix hidden = hidden_layer(images, source.value(w1_), source.value(b1_));
    const Matrix scores = (source.value(w2_) * hidden).colwise() + source.value(b2_);
    Eigen::Index right = 0;
    for (Eigen::Index i = 0; i < scores.cols(); ++i) {
      Eigen::Index best = 0;
      scores.col(i).maxCoeff(&best);
      right += best == images.labels[static_cast<std::size_t>(i)] ? 1 : 0;
    }
    return static_cast<double>(right) / static_cast<double>(scores.cols());
  }

 private:
  using Weights = Eigen::Map<const Matrix>;
  using Biases = Eigen::Map<const Vector>;

  Network(lockstep::Variables<Real>& variables, Eigen::Index hidden, std::mt19937_64 random)
      : w1_(variables.add("hidden/weights", glorot(hidden, k_pixels, random))),
        b1_(variables.add("hidden/bias", Vector::Zero(hidden))),
        w2_(variables.add("output/weights", glorot(k_classes, hidden, random))),
        b2_(variables.add("output/bias", Vector::Zero(k_classes))) {}

  static Matrix hidden_layer(const Images& images, const Weights& w1, const Biases& b1) {
    return ((w1 * images.pixels).colwise() + b1).array().tanh();
  }

  static double backward(const Images& batch, const Weights& w1, const Biases& b1, const Weights& w2,
                         const Biases& b2, Eigen::Map<Matrix> dw1, Eigen::Map<Vector> db1,
                         Eigen::Map<Matrix> dw2, Eigen::Map<Vector> db2) {
    const auto size = static_cast<Real>(batch.pixels.cols());
    const Matrix hidden = hidden_layer(batch, w1, b1);
    Matrix scores = (w2 * hidden).colwise() + b2;
    scores.rowwise() -= scores.colwise().maxCoeff().eval();
    Matrix probable = scores.array().exp();
    const Eigen::Matrix<Real, 1, Eigen::Dynamic> sums = probable.colwise().sum();
    probable.array().rowwise() /= sums.array();

    double loss = 0;
    Matrix error = probable / size;  // of the scores
    for (Eigen::Index i = 0; i < scores.cols(); ++i) {
      const int label = batch.labels[static_cast<std::size_t>(i)];
      loss += std::log(sums(i)) - scores(label, i);
      error(label, i) -= 1 / size;
    }
    dw2.noalias() = error * hidden.transpose();
    db2 = error.rowwise().sum();
    Matrix inner = w2.transpose() * error;
    inner.array() *= 1 - hidden.array().square();
    dw1.noalias() = inner * batch.pixels.transpose();
    db1 = inner.rowwise().sum();
    return loss / size;
  }

  lockstep::Handle<Matrix, Real> w1_;
  lockstep::Handle<Vector, Real> b1_;
  lockstep::Handle<Matrix, Real> w2_;
  lockstep::Handle<Vector, Real> b2_;
};

}  // namespace digits
