// SPDX-License-Identifier: MIT
#include "output_queue.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <unistd.h>

namespace launcher {
namespace {

/// Neighbours for the same descriptor share a text up to this length, in bytes.
constexpr std::size_t k_text = std::size_t{1} << 16;

}  // namespace

void OutputQueue::add_line(int descriptor, std::string_view prefix, std::string_view line) {
  if (lost_.contains(descriptor)) return;
  if (waiting_.empty() || waiting_.back().descriptor != descriptor || waiting_.back().text.size() >= k_text)
    waiting_.push_back({.descriptor = descriptor, .text = {}});
  std::string& text = waiting_.back().text;
  text.append(prefix).append(line).push_back('\n');
  bytes_ += prefix.size() + line.size() + 1;
}

bool OutputQueue::write_some() {
  Text& front = waiting_.front();
  // A pipe that can be written to has room for so many bytes; more might block.
  const std::size_t size = std::min<std::size_t>(front.text.size() - front.written, PIPE_BUF);
  const ssize_t written = write(front.descriptor, front.text.data() + front.written, size);
  if (written >= 0) {
    front.written += static_cast<std::size_t>(written);
    bytes_ -= static_cast<std::size_t>(written);
    if (front.written == front.text.size()) waiting_.pop_front();
    return true;
  }
  if (errno == EINTR || errno == EAGAIN) return true;
  const int descriptor = front.descriptor;
  lost_.insert(descriptor);
  std::erase_if(waiting_, [&](const Text& text) { return text.descriptor == descriptor; });
  bytes_ = 0;
  for (const Text& text : waiting_) bytes_ += text.text.size() - text.written;
  return false;
}

void OutputQueue::clear() {
  waiting_.clear();
  bytes_ = 0;
}

}  // namespace launcher
