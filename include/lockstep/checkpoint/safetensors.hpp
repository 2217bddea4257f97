// SPDX-License-Identifier: MIT
/// @file
/// Snapshots as files in the safetensors format. Opt-in: include it beside the other headers; it needs the
/// library JSON for Modern C++ (nlohmann). docs/checkpoints.md describes the format.
#pragma once

#include <lockstep/checkpoint/files.hpp>
#include <lockstep/checkpoint/safetensors_header.hpp>
#include <lockstep/checkpoint/safetensors_names.hpp>
#include <lockstep/checkpoint/snapshot.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/number_text.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <new>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Name of a scalar type in the format.
template <class T>
inline constexpr std::string_view k_dtype = "";
template <>
inline constexpr std::string_view k_dtype<double> = "F64";
template <>
inline constexpr std::string_view k_dtype<float> = "F32";
template <>
inline constexpr std::string_view k_dtype<Eigen::half> = "F16";
template <>
inline constexpr std::string_view k_dtype<Eigen::bfloat16> = "BF16";
template <>
inline constexpr std::string_view k_dtype<Index> = "I64";

template <class T>
concept CheckpointScalar = !k_dtype<T>.empty() && !std::same_as<T, Index>;

/// Whether every value of `From` is one of `T`.
template <class From, class T>
inline constexpr bool k_fits_into = std::same_as<From, T> || std::same_as<T, double> ||
                                    (std::same_as<T, float> && !std::same_as<From, double>);

// ---- the counters, as text

inline constexpr std::string_view k_format_key = "lockstep.format", k_rule_key = "lockstep.rule";
inline constexpr std::string_view k_format = "1";

/// Calls f(key, counter) for each.
template <class S, class F>
void for_each_counter(S& snapshot, F&& f) {
  f("lockstep.generation", snapshot.generation);
  f("lockstep.global_step", snapshot.counters.window.global_step);
  f("lockstep.counter", snapshot.counters.window.counter);
  f("lockstep.pending", snapshot.counters.window.pending);
  f("lockstep.updates", snapshot.counters.window.updates);
  f("lockstep.window_unit", snapshot.counters.window_unit);
  f("lockstep.window_total", snapshot.counters.window_total);
  f("lockstep.examples", snapshot.counters.examples);
}

template <class T>
std::map<std::string, std::string> write_metadata(const Snapshot<T>& snapshot) {
  std::map<std::string, std::string> metadata{{std::string(k_format_key), std::string(k_format)},
                                              {std::string(k_rule_key), snapshot.rule}};
  for_each_counter(snapshot, [&](const char* key, auto value) { metadata[key] = number_text(value); });
  return metadata;
}

/// Keys that do not begin with "lockstep." belong to others. @throws CheckpointError
template <class T>
void read_metadata(const FileChecks& checks, const std::map<std::string, std::string>& metadata,
                   Snapshot<T>& to) {
  std::set<std::string_view> known;
  const auto value = [&](std::string_view key) -> const std::string& {
    known.insert(key);
    const auto found = metadata.find(std::string(key));
    if (found == metadata.end()) checks.fail(text("__metadata__ ", key), "a value", "nothing");
    return found->second;
  };
  if (const std::string& format = value(k_format_key); format != k_format)
    checks.fail(text("__metadata__ ", k_format_key), in_quotes(k_format), in_quotes(format));
  to.rule = value(k_rule_key);
  for_each_counter(to, [&]<class Number>(const char* key, Number& counter) {
    const std::string& content = value(key);
    const auto result = std::from_chars(content.data(), content.data() + content.size(), counter);
    const Number most =
        std::integral<Number> ? static_cast<Number>(k_most_count) : std::numeric_limits<Number>::max();
    if (result.ec != std::errc() || result.ptr != content.data() + content.size() ||
        !(counter >= 0 && counter <= most))
      checks.fail(text("__metadata__ ", key), text("a number from 0 to ", most), in_quotes(content));
  });
  if (const std::string fault = fault_of(to.counters); !fault.empty())
    checks.fail("__metadata__", "counters of a training", fault);
  for (const auto& [key, content] : metadata)
    if (key.starts_with("lockstep.") && !known.contains(key))
      checks.fail("__metadata__", "no other key of lockstep", in_quotes(key));
}

// ---- writing

/// A tensor of the file and what is in it.
template <class T>
struct TensorData {
  TensorEntry entry;
  const T* values;
  bool column_major = false;
};

template <class T>
class CheckpointWriter {
 public:
  explicit CheckpointWriter(const Snapshot<T>& snapshot) {
    header_.metadata = write_metadata(snapshot);
    // Eight bytes each, so they come first and all data are aligned.
    for (const auto& pending : snapshot.window)
      if (pending.presence == Presence::rows)
        add(rows_, window_rows_name(pending.variable), {size(pending.rows)}, pending.rows, false);
    std::unordered_map<std::string_view, const std::vector<Index>*> shapes;
    for (const auto& array : snapshot.arrays) {
      add(values_, tensor_name(array.variable, array.slot), extents(array.shape), array.values,
          array.column_major);
      if (array.slot.empty()) shapes[array.variable] = &array.shape;
    }
    for (const auto& pending : snapshot.window) {
      const auto shape = shapes.find(pending.variable);
      if (shape == shapes.end())
        throw InvalidArgument(text("save: an open window, but no variable ", in_quotes(pending.variable)));
      const bool is_dense = pending.presence == Presence::dense;
      add(values_, window_name(pending.variable),
          is_dense ? extents(*shape->second) : extents_of_rows(*shape->second, size(pending.rows)),
          pending.values, pending.column_major && is_dense);
    }
    text_ = write_header(header_);
  }

  template <class Sink>
  void write(Sink& sink) const {
    write_without_values(sink);
    for (const auto& tensor : values_) write_data(tensor, sink);
  }
  /// What comes before the values in the file.
  template <class Sink>
  void write_without_values(Sink& sink) const {
    sink.write(std::as_bytes(std::span(text_)));
    for (const auto& tensor : rows_) write_data(tensor, sink);
  }
  /// Bytes of the file.
  std::uint64_t bytes() const { return text_.size() + end_; }

 private:
  static std::uint64_t size(const std::vector<Index>& rows) { return rows.size(); }
  static std::vector<std::uint64_t> extents(const std::vector<Index>& shape) {
    return {shape.begin(), shape.end()};
  }
  /// The same for so many rows of it; a scalar is one.
  static std::vector<std::uint64_t> extents_of_rows(const std::vector<Index>& shape, std::uint64_t rows) {
    std::vector<std::uint64_t> result(std::max<std::size_t>(shape.size(), 1));
    std::copy(shape.begin(), shape.end(), result.begin());
    result.front() = rows;
    return result;
  }

  template <class V>
  void add(std::vector<TensorData<V>>& to, std::string name, std::vector<std::uint64_t> shape,
           const std::vector<V>& values, bool column_major) {
    if (!names_.insert(name).second) throw InvalidArgument(text("save: ", in_quotes(name), " twice"));
    TensorEntry entry{std::move(name), std::string(k_dtype<V>), std::move(shape), end_,
                      end_ + values.size() * sizeof(V)};
    if (tensor_bytes(entry) != entry.end - entry.begin)
      throw InvalidArgument(text("save: ", in_quotes(entry.name), " has shape ", shape_in_short(entry.shape),
                                 " and ", values.size(), " elements"));
    end_ = entry.end;
    header_.tensors.push_back(entry);
    to.push_back({std::move(entry), values.data(), column_major});
  }

  template <class V, class Sink>
  static void write_data(const TensorData<V>& tensor, Sink& sink) {
    const std::size_t count = (tensor.entry.end - tensor.entry.begin) / sizeof(V);
    if (!tensor.column_major) return sink.write(std::as_bytes(std::span(tensor.values, count)));
    const std::vector<Index> shape(tensor.entry.shape.begin(), tensor.entry.shape.end());
    std::vector<V> by_rows(count);
    reorder<V>(shape, tensor.values, false, by_rows.data());
    sink.write(std::as_bytes(std::span(by_rows)));
  }

  SafetensorsHeader header_;
  std::string text_;  // of the header
  std::set<std::string> names_;
  std::vector<TensorData<Index>> rows_;
  std::vector<TensorData<T>> values_;
  std::uint64_t end_ = 0;
};

// ---- reading

template <class T, class Source>
class CheckpointReader {
 public:
  explicit CheckpointReader(const Source& source) : source_(source), checks_(source.name()) {}

  Snapshot<T> read() {
    header_ = read_header(source_, checks_);
    read_metadata(checks_, header_.metadata, snapshot_);
    std::vector<TensorName> names;
    for (const TensorEntry& tensor : header_.tensors) {
      names.push_back(parse_tensor_name(checks_, tensor.name));
      const TensorName& name = names.back();
      if (name.part == TensorPart::array && name.slot.empty()) shapes_[name.variable] = extents(tensor);
      if (name.part == TensorPart::window_rows) {
        if (tensor.shape.size() != 1)
          checks_.fail(in_quotes(tensor.name) + " shape", "1 extent", shape_in_short(tensor.shape));
        rows_[name.variable] = values<Index>(tensor);
      }
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i].part == TensorPart::window_rows) continue;
      const auto shape = shapes_.find(names[i].variable);
      if (shape == shapes_.end())
        checks_.fail(in_quotes(header_.tensors[i].name), "a tensor of its variable", "none");
      if (names[i].part == TensorPart::array)
        read_array(header_.tensors[i], names[i], shape->second);
      else
        read_window(header_.tensors[i], names[i], shape->second);
    }
    if (!rows_.empty())
      checks_.fail(in_quotes(window_rows_name(rows_.begin()->first)), "a tensor of the window's values",
                   "none");
    return std::move(snapshot_);
  }

 private:
  static std::vector<Index> extents(const TensorEntry& tensor) {
    return {tensor.shape.begin(), tensor.shape.end()};
  }
  void expect_shape_of(const TensorEntry& tensor, const std::vector<Index>& shape) const {
    const std::vector<std::uint64_t> expected(shape.begin(), shape.end());
    if (tensor.shape != expected)
      checks_.fail(in_quotes(tensor.name) + " shape", shape_in_short(expected), shape_in_short(tensor.shape));
  }

  void read_array(const TensorEntry& tensor, TensorName& name, const std::vector<Index>& shape) {
    expect_shape_of(tensor, shape);
    snapshot_.arrays.push_back(
        {std::move(name.variable), std::move(name.slot), shape, false, values<T>(tensor)});
  }

  void read_window(const TensorEntry& tensor, TensorName& name, std::vector<Index> shape) {
    if (snapshot_.counters.window.pending == 0)
      checks_.fail(in_quotes(tensor.name), "no window, as lockstep.pending is 0", "one");
    const auto rows = rows_.extract(name.variable);
    if (rows.empty()) {
      expect_shape_of(tensor, shape);
      snapshot_.window.push_back({std::move(name.variable), Presence::dense, {}, false, values<T>(tensor)});
      return;
    }
    if (shape.empty()) shape.push_back(1);
    const Index count = std::exchange(shape.front(), static_cast<Index>(rows.mapped().size()));
    Index least = 0;
    for (const Index row : rows.mapped()) {
      if (row < least || row >= count)
        checks_.fail(in_quotes(window_rows_name(name.variable)),
                     text("ascending rows within 0 to ", count - 1), row);
      least = row + 1;
    }
    expect_shape_of(tensor, shape);
    snapshot_.window.push_back(
        {std::move(name.variable), Presence::rows, std::move(rows.mapped()), false, values<T>(tensor)});
  }

  /// The data of a tensor, converted if that changes no value.
  template <class V>
  std::vector<V> values(const TensorEntry& tensor) const {
    if (tensor.dtype == k_dtype<V>) return raw<V>(tensor);
    if constexpr (!std::same_as<V, Index>) {
      if (tensor.dtype == k_dtype<Eigen::half>) return converted<V, Eigen::half>(tensor);
      if (tensor.dtype == k_dtype<Eigen::bfloat16>) return converted<V, Eigen::bfloat16>(tensor);
      if (tensor.dtype == k_dtype<float>) return converted<V, float>(tensor);
    }
    fail_type<V>(tensor);
  }
  template <class V, class From>
  std::vector<V> converted(const TensorEntry& tensor) const {
    if constexpr (k_fits_into<From, V>) {
      const std::vector<From> from = raw<From>(tensor);
      std::vector<V> to(from.size());
      std::transform(from.begin(), from.end(), to.begin(), [](From value) { return static_cast<V>(value); });
      return to;
    } else {
      fail_type<V>(tensor);
    }
  }
  template <class V>
  std::vector<V> raw(const TensorEntry& tensor) const {
    if constexpr (!Source::k_has_values && !std::same_as<V, Index>) return {};
    std::vector<V> to((tensor.end - tensor.begin) / sizeof(V));
    source_.read(header_.data + tensor.begin, std::as_writable_bytes(std::span(to)));
    return to;
  }
  template <class V>
  [[noreturn]] void fail_type(const TensorEntry& tensor) const {
    checks_.fail(in_quotes(tensor.name) + " dtype", text(k_dtype<V>, " or a narrower type of it"),
                 tensor.dtype);
  }

  const Source& source_;
  FileChecks checks_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, std::vector<Index>> shapes_;  // of variables
  std::map<std::string, std::vector<Index>> rows_;              // of windows
  Snapshot<T> snapshot_;
};

template <class T, class Source>
Snapshot<T> read_checkpoint(const Source& source) {
  try {
    return CheckpointReader<T, Source>(source).read();
  } catch (const std::bad_alloc&) {
    throw SystemError(text(source.name(), ": no memory for its ", source.size(), " bytes"));
  }
}

/// A file that is still to be written, without the values.
class DraftSource : public MemorySource {
 public:
  static constexpr bool k_has_values = false;

  DraftSource(std::span<const std::byte> beginning, std::uint64_t size)
      : MemorySource{beginning, "save"}, size_(size) {}
  std::uint64_t size() const { return size_; }

 private:
  std::uint64_t size_;
};

/// @throws InvalidArgument with the text of `load` if that would refuse the file.
template <class T>
void expect_readable(const CheckpointWriter<T>& writer) {
  MemorySink beginning;
  writer.write_without_values(beginning);
  const DraftSource draft(beginning.bytes, writer.bytes());
  try {
    (void)CheckpointReader<T, DraftSource>(draft).read();
  } catch (const CheckpointError& error) {
    throw InvalidArgument(error.what());
  }
}

}  // namespace detail

/// Writes everything that a snapshot holds into one safetensors file. The file appears as a whole or not at
/// all: written under another name in the same folder, brought to the disk, renamed over `path`, and the
/// folder brought to the disk. If anything fails the old file stays and the other name is gone. Matrices are
/// written row-major, with the shape (rows, columns) and the elements that C++ sees.
/// @param path in a folder that exists; a symbolic link is replaced, not followed. What is there and is no
/// regular file (a device, a pipe) is refused.
/// @tparam T float, double, Eigen::half or Eigen::bfloat16: dtype F32, F64, F16 or BF16.
/// @throws SystemError if the file cannot be written; InvalidArgument, before anything is written, if names
/// are not UTF-8, occur twice, sizes and shapes do not fit, or `load` would refuse the file.
/// @par Cost one pass over the data, and for each column-major matrix a copy of it in turn.
/// @par Source the format description in the repository huggingface/safetensors
template <detail::CheckpointScalar T>
void save(const std::filesystem::path& path, const Snapshot<T>& snapshot) {
  const detail::CheckpointWriter<T> writer(snapshot);
  detail::expect_readable(writer);
  detail::AtomicFile<> file(path);
  writer.write(file);
  file.commit();
}

/// Reads a file of `save`: any trainer with the same variables and rule can restore it, whatever its N, R, k
/// and transport. Values of narrower types are widened. Nothing in the file is trusted, and no memory is
/// taken that the size of the file does not account for.
/// @throws CheckpointError with path and field if it is no checkpoint or a damaged one; SystemError if it
/// cannot be read.
template <detail::CheckpointScalar T = float>
Snapshot<T> load(const std::filesystem::path& path) {
  return detail::read_checkpoint<T>(detail::FileSource(path));
}

LOCKSTEP_NAMESPACE_END
