// SPDX-License-Identifier: MIT
/// @file
/// A plain model of training: gradients as maps, updates by formulas written here, everything in double.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::test {

/// One gradient: per variable nothing, or values for some rows (all of them if it is dense).
struct PlainGradient {
  std::map<std::string, std::map<std::int64_t, std::vector<double>>> rows;
  double weight = 1;
};

/// Variables as maps from row to values, updated by momentum without tricks.
class PlainModel {
 public:
  explicit PlainModel(double rate, double momentum) : rate_(rate), momentum_(momentum) {}

  void add(const std::string& name, std::int64_t rows, std::int64_t width, double value) {
    for (std::int64_t row = 0; row < rows; ++row) {
      w_[name][row] = std::vector<double>(static_cast<std::size_t>(width), value);
      m_[name][row] = std::vector<double>(static_cast<std::size_t>(width), 0.0);
    }
  }

  /// One update with the weighted mean of all gradients; a row that nobody has does not move.
  void update(const std::vector<PlainGradient>& gradients) {
    double total = 0;
    for (const PlainGradient& g : gradients) total += g.weight;
    std::map<std::string, std::map<std::int64_t, std::vector<double>>> sums;
    for (const PlainGradient& g : gradients)
      for (const auto& [name, rows] : g.rows)
        for (const auto& [row, values] : rows) {
          auto& sum = sums[name][row];
          sum.resize(values.size(), 0.0);
          for (std::size_t j = 0; j < values.size(); ++j) sum[j] += g.weight * values[j];
        }
    for (const auto& [name, rows] : sums)
      for (const auto& [row, sum] : rows)
        for (std::size_t j = 0; j < sum.size(); ++j) {
          double& m = m_[name][row][j];
          m = momentum_ * m + sum[j] / total;
          w_[name][row][j] -= rate_ * m;
        }
  }

  double value(const std::string& name, std::int64_t row, std::int64_t column) const {
    return w_.at(name).at(row)[static_cast<std::size_t>(column)];
  }

 private:
  double rate_, momentum_;
  std::map<std::string, std::map<std::int64_t, std::vector<double>>> w_, m_;
};

}  // namespace lockstep::test
