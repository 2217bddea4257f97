// SPDX-License-Identifier: MIT
/// @file
/// The digits: images and labels, and the order in which training sees them.
#pragma once

#include <Eigen/Core>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace digits {

/// Training is in double, so that "the same" can be claimed to 1e-10.
using Real = double;
using Matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic>;
using Vector = Eigen::Matrix<Real, Eigen::Dynamic, 1>;

inline constexpr Eigen::Index k_pixels = 64;
inline constexpr int k_classes = 10;

/// One image per column, shape (64, n), grey values in [0, 1].
struct Images {
  Matrix pixels;
  std::vector<int> labels;
};

/// The images of the given numbers, in that order.
inline Images pick(const Images& from, const std::vector<std::size_t>& numbers) {
  Images picked{Matrix(k_pixels, static_cast<Eigen::Index>(numbers.size())), {}};
  Eigen::Index column = 0;
  for (const std::size_t number : numbers) {
    picked.pixels.col(column++) = from.pixels.col(static_cast<Eigen::Index>(number));
    picked.labels.push_back(from.labels[number]);
  }
  return picked;
}

/// Every fifth image is kept for the test.
struct Digits {
  Images train, test;
};

/// Reads lines of 64 grey values 0 to 16 and a label 0 to 9.
inline Digits read_digits(const std::filesystem::path& csv) {
  std::ifstream file(csv);
  if (!file) throw std::runtime_error("cannot open the digits: " + csv.string());
  std::vector<Real> values;
  for (std::string field; std::getline(file, field, values.size() % 65 == 64 ? '\n' : ',');)
    if (!field.empty()) values.push_back(std::stod(field));
  const std::size_t count = values.size() / 65;
  if (count < 5 || values.size() % 65 != 0)
    throw std::runtime_error(csv.string() + ": expected lines of 65 numbers");

  const Eigen::Map<const Matrix> table(values.data(), k_pixels + 1, static_cast<Eigen::Index>(count));
  Images all{table.topRows(k_pixels) / 16, {}};
  std::vector<std::size_t> train, test;
  for (std::size_t i = 0; i < count; ++i) {
    all.labels.push_back(static_cast<int>(values[65 * i + 64]));
    (i % 5 == 0 ? test : train).push_back(i);
  }
  return {pick(all, train), pick(all, test)};
}

/// Batches of an endless stream: every epoch is the whole training set in an order of its own, which depends
/// on nothing but seed and epoch. Batch n is images [n * size, (n + 1) * size) of the stream, whoever asks.
class Batches {
 public:
  Batches(const Images& images, std::int64_t size, std::uint64_t seed)
      : images_(&images), size_(size), seed_(seed), order_(images.labels.size()) {}

  Images operator()(std::int64_t number) {
    const auto epoch_size = static_cast<std::int64_t>(order_.size());
    std::vector<std::size_t> numbers;
    for (std::int64_t at = number * size_; at < (number + 1) * size_; ++at) {
      shuffle(at / epoch_size);
      numbers.push_back(order_[static_cast<std::size_t>(at % epoch_size)]);
    }
    return pick(*images_, numbers);
  }

 private:
  /// Fisher and Yates by hand, because std::shuffle differs between standard libraries.
  void shuffle(std::int64_t epoch) {
    if (epoch == epoch_) return;
    epoch_ = epoch;
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::mt19937_64 random(seed_ + 1'000'003 * static_cast<std::uint64_t>(epoch));
    for (std::size_t i = order_.size() - 1; i > 0; --i) std::swap(order_[i], order_[random() % (i + 1)]);
  }

  const Images* images_;
  std::int64_t size_;
  std::uint64_t seed_;
  std::vector<std::size_t> order_;
  std::int64_t epoch_ = -1;
};

}  // namespace digits
