// SPDX-License-Identifier: MIT
/// @file
/// What the tensors of a checkpoint are called.
#pragma once

#include <lockstep/checkpoint/safetensors_header.hpp>
#include <lockstep/config.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// What a tensor of a checkpoint is of its variable.
enum class TensorPart : std::uint8_t { array, window, window_rows };

struct TensorName {
  std::string variable, slot;  ///< `slot` is empty for the variable itself and for windows
  TensorPart part = TensorPart::array;
};

/// '%' and ':' as "%25" and "%3A", so that a colon only separates.
inline std::string escape_name(std::string_view name) {
  std::string result;
  for (const char c : name) {
    if (c == '%')
      result += "%25";
    else if (c == ':')
      result += "%3A";
    else
      result += c;
  }
  return result;
}
/// The reverse; a '%' that is not part of these stays.
inline std::string unescape_name(std::string_view name) {
  std::string result;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const std::string_view code = name.substr(i, 3);
    if (code == "%25" || code == "%3A") {
      result += code == "%25" ? '%' : ':';
      i += 2;
    } else {
      result += name[i];
    }
  }
  return result;
}

inline constexpr std::string_view k_window_part = "::window", k_window_rows_part = "::window_rows";

/// "variable" or "variable:slot". A variable called "__metadata__" would be the header's own key.
inline std::string tensor_name(std::string_view variable, std::string_view slot) {
  std::string name = escape_name(variable);
  if (name == "__metadata__") name = "%5F_metadata__";
  if (!slot.empty()) name += ':' + escape_name(slot);
  return name;
}
inline std::string window_name(std::string_view variable) {
  return tensor_name(variable, "") + std::string(k_window_part);
}
inline std::string window_rows_name(std::string_view variable) {
  return tensor_name(variable, "") + std::string(k_window_rows_part);
}

/// @throws CheckpointError unless it is a name that the functions above give.
inline TensorName parse_tensor_name(const FileChecks& checks, const std::string& name) {
  TensorName result;
  std::string_view variable = name, slot;
  if (variable.ends_with(k_window_rows_part)) {
    result.part = TensorPart::window_rows;
    variable.remove_suffix(k_window_rows_part.size());
  } else if (variable.ends_with(k_window_part)) {
    result.part = TensorPart::window;
    variable.remove_suffix(k_window_part.size());
  } else if (const std::size_t colon = variable.find(':'); colon != std::string_view::npos) {
    slot = variable.substr(colon + 1);
    variable = variable.substr(0, colon);
  }
  result.variable = variable == "%5F_metadata__" ? "__metadata__" : unescape_name(variable);
  result.slot = unescape_name(slot);
  const std::string written = result.part == TensorPart::array    ? tensor_name(result.variable, result.slot)
                              : result.part == TensorPart::window ? window_name(result.variable)
                                                                  : window_rows_name(result.variable);
  if (written != name || result.variable.empty())
    checks.fail(in_quotes(name), "VARIABLE, VARIABLE:SLOT, VARIABLE::window or VARIABLE::window_rows",
                in_quotes(name));
  return result;
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
