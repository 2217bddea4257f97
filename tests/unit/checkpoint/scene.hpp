// SPDX-License-Identifier: MIT
/// @file
/// What tests of checkpoints share: a folder for files, a model, a snapshot with everything in it.
#pragma once

#include "support/bits.hpp"
#include "unit/sync/scene.hpp"
#include <lockstep/checkpoint/safetensors.hpp>

#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

namespace lockstep::test {

/// A folder of its own, gone at the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder " + name);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const char* name) const { return path_ / name; }
  /// Names of the files in it.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void write_content(const std::filesystem::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// A file of the format: the header behind its length, then the data.
inline std::string file_with(const std::string& header, std::string_view data = {}) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(header).append(data);
}

/// What `save` would write.
template <class T>
std::string file_of(const Snapshot<T>& snapshot) {
  detail::MemorySink sink;
  detail::CheckpointWriter<T>(snapshot).write(sink);
  return {reinterpret_cast<const char*>(sink.bytes.data()), sink.bytes.size()};
}
/// What `load` would give.
template <class T>
Snapshot<T> snapshot_of(std::string_view file) {
  return detail::read_checkpoint<T>(detail::MemorySource{std::as_bytes(std::span(file))});
}

/// Whether all is the same, bit by bit.
template <class T>
bool same(const Snapshot<T>& a, const Snapshot<T>& b) {
  const auto array = [](const auto& x, const auto& y) {
    return x.variable == y.variable && x.slot == y.slot && x.shape == y.shape &&
           x.column_major == y.column_major && same_bits(x.values, y.values);
  };
  const auto pending = [](const auto& x, const auto& y) {
    return x.variable == y.variable && x.presence == y.presence && x.rows == y.rows &&
           x.column_major == y.column_major && same_bits(x.values, y.values);
  };
  const auto counters = [](const Snapshot<T>& s) {
    const UpdaterState& c = s.counters;
    return std::vector{c.window_unit, c.window_total, c.examples};
  };
  const auto window = [](const Snapshot<T>& s) {
    const protocol::Window& w = s.counters.window;
    return std::array{s.generation, w.global_step, w.counter, w.pending, w.updates};
  };
  return a.rule == b.rule && window(a) == window(b) && same_bits(counters(a), counters(b)) &&
         std::equal(a.arrays.begin(), a.arrays.end(), b.arrays.begin(), b.arrays.end(), array) &&
         std::equal(a.window.begin(), a.window.end(), b.window.begin(), b.window.end(), pending);
}

using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A column-major matrix, a table with rows, a vector with a cube's shape.
struct Model {
  Model()
      : weights(variables.add("hidden/weights", Eigen::MatrixXf(Eigen::MatrixXf::Ones(5, 3)))),
        table(variables.add("table", Table(Table::Ones(40, 3)))),
        cube(variables.add("cube", NdSpan<const float>(k_cube, {2, 3, 2}))) {}
  std::vector<float> bits() const { return {variables.flat().begin(), variables.flat().end()}; }

  static constexpr std::array<float, 12> k_cube{0.5F, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  Variables<float> variables;
  Handle<Eigen::MatrixXf, float> weights;
  Handle<Table, float> table;
  Handle<NdSpan<float>, float> cube;
};

/// The gradients of contribution `number`, whoever makes it. Not every variable has one each time. Sums of a
/// few are exact in any order.
template <class O>
StepResult contribute(O& optimizer, const Model& model, std::int64_t number) {
  const auto x = static_cast<float>(number);
  if (number % 3 != 2)
    optimizer.set_gradient(model.weights, Eigen::MatrixXf::NullaryExpr(5, 3, [&](Index i, Index j) {
                             return 0.125F * x + static_cast<float>(3 * i - 4 * j);
                           }));
  optimizer.set_rows(model.table, std::vector{number % 40, Index{39}},
                     Table(Table::Constant(2, 3, 0.25F - 0.125F * x)));
  return optimizer.apply_gradients({.weight = number % 4 == 1 ? 2.0 : 1.0});
}

/// Adam, its moving average and a window of three micro-batches.
inline auto recipe() {
  return GradientAggregation{MovingAverage{Adam{.learning_rate = 0.01}, 0.9}, {.grad_steps = 3}};
}

/// Two updates and two micro-batches of an open window.
inline Snapshot<float> rich_snapshot() {
  Model model;
  Local optimizer{recipe(), model.variables};
  for (std::int64_t number = 0; number < 8; ++number) contribute(optimizer, model, number);
  return optimizer.snapshot();
}

}  // namespace lockstep::test
