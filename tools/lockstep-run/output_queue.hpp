// SPDX-License-Identifier: MIT
/// @file
/// Lines on their way to standard output and standard error.
#pragma once

#include <cstddef>
#include <deque>
#include <set>
#include <string>
#include <string_view>

namespace launcher {

/// Writes lines in the order in which they were added, whichever of the two streams they go to: both may be
/// the same file. A line is written as a whole before the next one. Writing does not block as long as
/// `write_some` is called when poll(2) says that `descriptor()` can be written to.
class OutputQueue {
 public:
  /// So many bytes may wait. Whoever adds lines should pause then; lines that come nevertheless are kept.
  static constexpr std::size_t k_capacity = std::size_t{1} << 20;

  /// Adds `prefix`, `line` and a newline for `descriptor`.
  void add_line(int descriptor, std::string_view prefix, std::string_view line);

  bool is_empty() const { return waiting_.empty(); }
  bool is_full() const { return bytes_ >= k_capacity; }

  /// Where the next bytes go. @pre !is_empty()
  int descriptor() const { return waiting_.front().descriptor; }

  /// Writes some of what waits. Returns false when that descriptor has just been lost (nobody reads it, no
  /// space is left); what waits for it is dropped then, and what is added for it later. @pre !is_empty()
  bool write_some();

  /// Drops what waits.
  void clear();

 private:
  struct Text {
    int descriptor = 0;
    std::string text;
    std::size_t written = 0;  // bytes
  };

  std::deque<Text> waiting_;
  std::size_t bytes_ = 0;
  std::set<int> lost_;
};

}  // namespace launcher
