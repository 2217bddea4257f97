// SPDX-License-Identifier: MIT
/// @file
/// What the machine can do: copy, triad and accumulation over plain arrays.
#pragma once

#include "interleave.hpp"
#include "parallel.hpp"
#include <lockstep/transport/memory.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cstring>
#include <string>

namespace lockstep::bench {

/// Floats in memory of the same kind that trainers take, each page touched.
class Floats {
 public:
  explicit Floats(Index size, float value = 1) : memory_(static_cast<std::size_t>(size) * sizeof(float)) {
    std::fill(data(), data() + size, value);
  }
  float* data() { return reinterpret_cast<float*>(memory_.bytes().data()); }
  const float* data() const { return const_cast<Floats*>(this)->data(); }

 private:
  ZeroedMemory memory_;
};

/// The raw loop of a micro-batch.
inline void accumulate(float* __restrict acc, const float* __restrict g, float c, Index size) {
  for (Index i = 0; i < size; ++i) acc[i] += c * g[i];
}
inline void triad(float* __restrict a, const float* __restrict b, const float* __restrict c, float s,
                  Index size) {
  for (Index i = 0; i < size; ++i) a[i] = b[i] + s * c[i];
}

/// Arrays of `elements` floats, worked on by `threads` threads, each in a range of its own.
class Floors {
 public:
  Floors(Index elements, int threads)
      : size_(elements), threads_(threads), a_(elements), b_(elements), c_(elements) {}

  /// Adds "copy", "triad" and "accumulate".
  void add_to(Interleaved& rounds) {
    rounds.add("copy", [this] {
      return per_pass([this](Index begin, Index size) {
        std::memcpy(a_.data() + begin, b_.data() + begin, static_cast<std::size_t>(size) * sizeof(float));
      });
    });
    rounds.add("triad", [this] {
      return per_pass([this](Index begin, Index size) {
        triad(a_.data() + begin, b_.data() + begin, c_.data() + begin, 0.5F, size);
      });
    });
    rounds.add("accumulate", [this] { return accumulate_pass(); });
  }
  /// Adds "reading": the sum of two arrays, with nothing written.
  void add_reading_to(Interleaved& rounds) {
    rounds.add("reading", [this] {
      return per_pass([this](Index begin, Index size) {
        using Part = Eigen::Map<const Eigen::ArrayXf>;
        volatile float sum = (Part(a_.data() + begin, size) + Part(b_.data() + begin, size)).sum();
        static_cast<void>(sum);
      });
    });
  }
  double accumulate_pass(int passes = 4) {
    return per_pass(
        [this](Index begin, Index size) { accumulate(a_.data() + begin, b_.data() + begin, 0.5F, size); },
        passes);
  }
  double operator()(int passes) { return accumulate_pass(passes); }

  /// Roofline ratio: bytes per second of `name`, which must move `bytes`, over the best of the three.
  double roofline(const Interleaved& rounds, const std::string& name, double bytes) const {
    const double pass = static_cast<double>(size_) * sizeof(float);
    return std::min({rounds.ratio("copy", name) * bytes / (2 * pass),
                     rounds.ratio("triad", name) * bytes / (3 * pass),
                     rounds.ratio("accumulate", name) * bytes / (3 * pass)});
  }

 private:
  template <class F>
  double per_pass(F&& f, int passes = 4) {
    return seconds_in_parallel(
               threads_,
               [&](int thread) {
                 const Index begin = size_ * thread / threads_ / 16 * 16;
                 const Index end = thread + 1 == threads_ ? size_ : size_ * (thread + 1) / threads_ / 16 * 16;
                 for (int pass = 0; pass < passes; ++pass) {
                   f(begin, end - begin);
                   clobber();
                 }
               }) /
           passes;
  }

  Index size_;
  int threads_;
  Floats a_, b_, c_;
};

}  // namespace lockstep::bench
