// SPDX-License-Identifier: MIT
/// @file
/// Makes lines of text that arrives in pieces.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace launcher {

/// Keeps the beginning of a line until its end arrives. A line ends with "\n"; all other bytes are passed on
/// as they are. A line of more than `longest` bytes is cut, so that a program which never ends its line does
/// not take all memory.
class LineSplitter {
 public:
  static constexpr std::size_t k_longest_line = std::size_t{1} << 20;  // bytes

  /// @pre longest > 0
  explicit LineSplitter(std::size_t longest = k_longest_line) : longest_(longest) {}

  /// Calls `sink(line)` for each line that `text` ends; a line comes without its newline.
  template <class Sink>
  void feed(std::string_view text, Sink&& sink) {
    while (!text.empty()) {
      const std::size_t room = longest_ - rest_.size();
      const std::size_t end = text.substr(0, room + 1).find('\n');
      if (end == std::string_view::npos && text.size() <= room) {
        rest_ += text;
        return;
      }
      const std::size_t length = end == std::string_view::npos ? room : end;
      emit(text.substr(0, length), sink);
      text.remove_prefix(end == std::string_view::npos ? length : length + 1);
    }
  }

  /// Calls `sink(line)` for a last line that has no newline, if there is one.
  template <class Sink>
  void finish(Sink&& sink) {
    if (!rest_.empty()) emit({}, sink);
  }

 private:
  template <class Sink>
  void emit(std::string_view end_of_line, Sink&& sink) {
    rest_ += end_of_line;
    sink(std::string_view(rest_));
    rest_.clear();
  }

  std::size_t longest_;
  std::string rest_;
};

}  // namespace launcher
