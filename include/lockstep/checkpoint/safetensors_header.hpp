// SPDX-License-Identifier: MIT
/// @file
/// The header of a safetensors file: what lies where. Read with distrust, written as the format asks.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#else
#error \
    "lockstep/checkpoint/safetensors.hpp needs the library JSON for Modern C++: install it (Debian: nlohmann-json3-dev) or leave this header out"
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

/// Most bytes of a header, as the reference implementation of the format has it.
inline constexpr std::uint64_t k_most_header_bytes = 100'000'000;

/// One tensor of a file.
struct TensorEntry {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;  ///< row-major
  std::uint64_t begin = 0, end = 0;  ///< bytes, counted from the end of the header
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;             ///< in order of their data
  std::map<std::string, std::string> metadata;  ///< of "__metadata__"
  std::uint64_t data = 0;                       ///< where the data begin in the file
};

/// Bytes of an element; 0 for a type that checkpoints do not have.
constexpr std::uint64_t dtype_bytes(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64") return 8;
  if (dtype == "F32") return 4;
  return dtype == "F16" || dtype == "BF16" ? 2 : 0;
}

/// 'text', cut if it is long: what comes from a file may be of any length.
inline std::string in_quotes(std::string_view content) {
  constexpr std::size_t most = 100;
  return text('\'', content.substr(0, most), content.size() > most ? "...'" : "'");
}

inline std::string shape_in_short(const std::vector<std::uint64_t>& shape) {
  constexpr std::size_t most = 8;
  std::string shown;
  for (std::size_t i = 0; i < std::min(most, shape.size()); ++i)
    shown += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text('(', shown, ')', shape.size() > most ? text(" and ", shape.size() - most, " more") : "");
}

/// What all checks of one file have in common: they name it.
class FileChecks {
 public:
  explicit FileChecks(std::string path) : path_(std::move(path)) {}

  /// @throws CheckpointError "PATH: FIELD: expected EXPECTED, found FOUND"
  template <class Expected, class Found>
  [[noreturn]] void fail(std::string field, const Expected& expected, const Found& found) const {
    throw CheckpointError(path_, std::move(field), text("expected ", expected, ", found ", found));
  }

 private:
  std::string path_;
};

/// Takes the events of a JSON parser and accepts nothing but a header.
class HeaderReader {
 public:
  using Json = nlohmann::json;

  HeaderReader(const FileChecks& checks, SafetensorsHeader& to) : checks_(checks), to_(to) {}

  bool start_object(std::size_t) {
    switch (level_) {
      case Level::outside:
        level_ = Level::header;
        return true;
      case Level::header:
        level_ = name_ == "__metadata__" ? Level::metadata : Level::tensor;
        if (level_ == Level::tensor) to_.tensors.emplace_back().name = name_;
        return true;
      default:
        return unexpected("an object");
    }
  }
  bool key(std::string& key) {
    if (level_ == Level::header) {
      if (!names_.insert(key).second) checks_.fail("header", "each name once", in_quotes(key) + " twice");
      name_ = key;
      return true;
    }
    key_ = key;
    if (level_ == Level::metadata) {
      if (to_.metadata.contains(key))
        checks_.fail("__metadata__", "each key once", in_quotes(key) + " twice");
      return true;
    }
    const auto known = std::find(k_fields.begin(), k_fields.end(), key);
    if (known == k_fields.end())
      checks_.fail(in_quotes(name_), "dtype, shape and data_offsets", in_quotes(key));
    bool& has = has_[static_cast<std::size_t>(known - k_fields.begin())];
    if (std::exchange(has, true)) checks_.fail(field(), "one value", "two");
    return true;
  }
  bool string(std::string& value) {
    if (level_ == Level::metadata)
      to_.metadata.emplace(key_, std::move(value));
    else if (level_ == Level::tensor && key_ == "dtype")
      to_.tensors.back().dtype = std::move(value);
    else
      return unexpected("a string");
    return true;
  }
  bool start_array(std::size_t) {
    if (level_ != Level::tensor || key_ == "dtype") return unexpected("an array");
    level_ = Level::array;
    numbers_.clear();
    return true;
  }
  bool number_unsigned(std::uint64_t value) {
    if (level_ != Level::array) return unexpected(value);
    numbers_.push_back(value);
    return true;
  }
  bool end_array() {
    level_ = Level::tensor;
    TensorEntry& tensor = to_.tensors.back();
    if (key_ == "shape") {
      tensor.shape = numbers_;
      return true;
    }
    if (numbers_.size() != 2) checks_.fail(field(), "2 numbers", numbers_.size());
    tensor.begin = numbers_[0];
    tensor.end = numbers_[1];
    return true;
  }
  bool end_object() {
    if (level_ == Level::tensor) {
      for (std::size_t i = 0; i < k_fields.size(); ++i)
        if (!has_[i]) checks_.fail(text(in_quotes(name_), ' ', k_fields[i]), "a value", "nothing");
      has_ = {};
    }
    level_ = level_ == Level::header ? Level::outside : Level::header;
    return true;
  }
  bool null() { return unexpected("null"); }
  bool boolean(bool value) { return unexpected(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) { return unexpected(value); }
  bool number_float(double, const std::string& digits) { return unexpected(in_quotes(digits)); }
  bool binary(Json::binary_t&) { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) {
    checks_.fail("header", "JSON", text("a syntax error at its byte ", position));
  }

 private:
  enum class Level { outside, header, metadata, tensor, array };
  static constexpr std::array<std::string_view, 3> k_fields{"dtype", "shape", "data_offsets"};

  /// The field that is being read.
  std::string field() const {
    switch (level_) {
      case Level::outside:
        return "header";
      case Level::header:
        return in_quotes(name_);
      case Level::metadata:
        return "__metadata__ " + in_quotes(key_);
      default:
        return text(in_quotes(name_), ' ', key_);
    }
  }
  template <class Found>
  [[noreturn]] bool unexpected(const Found& found) const {
    const bool is_text = level_ == Level::metadata || (level_ == Level::tensor && key_ == "dtype");
    checks_.fail(field(),
                 is_text                   ? "a string"
                 : level_ == Level::tensor ? "an array"
                 : level_ == Level::array  ? "integers that are not negative"
                                           : "an object",
                 found);
  }

  const FileChecks& checks_;
  SafetensorsHeader& to_;
  Level level_ = Level::outside;
  std::string name_, key_;
  std::set<std::string, std::less<>> names_;
  std::array<bool, k_fields.size()> has_{};
  std::vector<std::uint64_t> numbers_;
};

/// Bytes of a tensor of this shape and type; nothing if that is more than 63 bits can count.
inline std::optional<std::uint64_t> tensor_bytes(const TensorEntry& tensor) {
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<Index>::max());
  std::uint64_t bytes = dtype_bytes(tensor.dtype);
  for (const std::uint64_t extent : tensor.shape) {
    if (extent > most || (extent > 0 && bytes > most / extent)) return {};
    bytes *= extent;
  }
  return bytes;
}

/// Puts the tensors in order of their data. @throws CheckpointError unless these fill the file: each as long
/// as shape and type say, without overlap or gap.
inline void check_data(const FileChecks& checks, std::vector<TensorEntry>& tensors,
                       std::uint64_t data_bytes) {
  for (const TensorEntry& tensor : tensors) {
    const auto field = [&] { return in_quotes(tensor.name) + " data_offsets"; };
    if (tensor.begin > tensor.end || tensor.end > data_bytes)
      checks.fail(field(), text("a range within ", data_bytes, " bytes of data"),
                  text(tensor.begin, " to ", tensor.end));
    if (dtype_bytes(tensor.dtype) == 0)
      checks.fail(in_quotes(tensor.name) + " dtype", "F64, F32, F16, BF16 or I64", in_quotes(tensor.dtype));
    const auto bytes = tensor_bytes(tensor);
    if (!bytes)
      checks.fail(in_quotes(tensor.name) + " shape", "at most 2^63 - 1 bytes", shape_in_short(tensor.shape));
    if (tensor.end - tensor.begin != bytes)
      checks.fail(field(), text(*bytes, " bytes for ", tensor.dtype, ' ', shape_in_short(tensor.shape)),
                  tensor.end - tensor.begin);
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != end)
      checks.fail(in_quotes(tensor.name) + " data_offsets",
                  text("a begin at byte ", end, ", where the data before it end"),
                  text(tensor.begin, tensor.begin < end ? ", an overlap" : ", a gap"));
    end = tensor.end;
  }
  if (end != data_bytes) checks.fail("data", text(end, " bytes in all tensors"), data_bytes);
}

/// Reads and checks a header; no tensor's data are touched. Memory in proportion to the header.
/// @throws CheckpointError; SystemError if the source cannot be read.
template <class Source>
SafetensorsHeader read_header(const Source& source, const FileChecks& checks) {
  std::array<std::byte, 8> prefix{};
  if (source.size() < prefix.size())
    checks.fail("header length", "8 bytes", text("a file of ", source.size()));
  source.read(0, prefix);
  std::uint64_t length = 0;
  std::memcpy(&length, prefix.data(), prefix.size());
  const std::uint64_t rest = source.size() - prefix.size();
  if (length < 2 || length > std::min(rest, k_most_header_bytes))
    checks.fail("header length", text("2 to ", std::min(rest, k_most_header_bytes)), length);

  std::string json(static_cast<std::size_t>(length), '\0');
  source.read(prefix.size(), std::as_writable_bytes(std::span(json)));
  if (json.front() != '{')
    checks.fail("header", "an object from its first byte on", in_quotes(json.substr(0, 1)));
  SafetensorsHeader header;
  HeaderReader reader(checks, header);
  nlohmann::json::sax_parse(json, &reader);
  header.data = prefix.size() + length;
  check_data(checks, header.tensors, rest - length);
  return header;
}

/// A string as JSON. Empty if it is not UTF-8.
inline std::optional<std::string> as_json(const std::string& content) {
  try {
    return nlohmann::json(content).dump();
  } catch (const nlohmann::json::type_error&) {
    return {};
  }
}

/// The length and the header, padded with spaces so that the data begin at a multiple of 64 bytes.
/// @throws InvalidArgument for a name that is not UTF-8, and if there are too many tensors for the format.
inline std::string write_header(const SafetensorsHeader& header) {
  const auto json = [](const std::string& content) {
    if (auto result = as_json(content)) return *std::move(result);
    throw InvalidArgument(text("save: the name ", in_quotes(content), " is not UTF-8"));
  };
  const auto list = [](std::span<const std::uint64_t> numbers) {
    std::string result;
    for (const std::uint64_t number : numbers) result += (result.empty() ? "" : ",") + std::to_string(number);
    return '[' + result + ']';
  };
  std::string result = "{\"__metadata__\":{", separator;
  for (const auto& [key, value] : header.metadata) {
    result += std::exchange(separator, ",") + json(key) + ':' + json(value);
  }
  result += '}';
  for (const TensorEntry& tensor : header.tensors)
    result += ',' + json(tensor.name) + ":{\"dtype\":" + json(tensor.dtype) +
              ",\"shape\":" + list(tensor.shape) +
              ",\"data_offsets\":" + list(std::array{tensor.begin, tensor.end}) + '}';
  result += '}';
  result.append((k_alignment - (8 + result.size()) % k_alignment) % k_alignment, ' ');
  if (result.size() > k_most_header_bytes)
    throw InvalidArgument(text("save: a header of ", result.size(), " bytes is more than the format has, ",
                               k_most_header_bytes));
  const std::uint64_t length = result.size();
  std::array<char, 8> prefix{};
  std::memcpy(prefix.data(), &length, prefix.size());
  return std::string(prefix.begin(), prefix.end()) + result;
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
