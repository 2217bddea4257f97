// SPDX-License-Identifier: MIT
/// @file
/// The tokens of `VariableReplicas`: a queue that can be looked into, and a line that nobody is overtaken in.
#pragma once

#include <lockstep/accumulators/token_queue.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <stop_token>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// @par Thread safety every function but `reopen` may be called from any thread.
template <class Net>
class TokenBank {
 public:
  using Waiter = typename TokenQueue<Net>::Waiter;

  explicit TokenBank(const Net& net) : net_(net), queue_(std::make_unique<TokenQueue<Net>>(net)) {}

  /// Gives out `count` tokens, when nobody is between its contribution and the line. @return how many: none
  /// if closed.
  Index give(Index step, Index count) {
    const std::scoped_lock lock(line_mutex_, mutex_);
    if (queue_->is_closed()) return 0;
    queue_->enqueue_many(step, count);
    // A queue cannot be looked into; it holds the last of what was ever put in.
    given_.insert(given_.end(), static_cast<std::size_t>(count), step);
    const auto size = static_cast<std::size_t>(queue_->size());
    if (given_.size() > size) given_.erase(given_.begin(), given_.end() - static_cast<std::ptrdiff_t>(size));
    return count;
  }

  /// Calls `contribute()` and gets in line; no tokens are given out in between.
  template <class F>
  void contribute(F&& contribute, std::optional<Waiter>& line) {
    const std::shared_lock lock(line_mutex_);
    contribute();
    line.emplace(queue_->begin_dequeue());
  }

  /// Waits for a token. @throws as TokenQueue::dequeue
  Index take(Timeout timeout, const std::stop_token& stop) { return queue_->dequeue(timeout, stop); }
  /// The same for one who is in line, or gets there now. After a TimeoutError it stays in line.
  Index take(Timeout timeout, const std::stop_token& stop, std::optional<Waiter>& line) {
    if (!line) line.emplace(queue_->begin_dequeue());
    try {
      const Index token = line->get(timeout, stop);
      line.reset();
      return token;
    } catch (const TimeoutError&) {
      throw;
    } catch (...) {
      line.reset();
      throw;
    }
  }
  /// Leaves the line; a token that was there already goes back to the queue.
  void leave(std::optional<Waiter>& line) {
    if (line && !line->cancel()) {
      try {
        give(line->get(std::chrono::nanoseconds(1)), 1);
      } catch (const Error&) {  // the queue was closed: there is no token
      }
    }
    line.reset();
  }

  /// The tokens in the queue, the next one first.
  std::vector<Index> contents() const {
    const std::lock_guard lock(mutex_);
    const auto size = std::min(static_cast<std::size_t>(queue_->size()), given_.size());
    return {given_.end() - static_cast<std::ptrdiff_t>(size), given_.end()};
  }

  void close() {
    const std::lock_guard lock(mutex_);
    if (!queue_->is_closed()) queue_->close();
  }
  /// Puts an empty queue in the place of a closed one. True if it was closed. @pre nobody waits
  bool reopen() {
    const std::lock_guard lock(mutex_);
    if (!queue_->is_closed()) return false;
    queue_ = std::make_unique<TokenQueue<Net>>(net_);
    given_.clear();
    return true;
  }

 private:
  Net net_;
  std::shared_mutex line_mutex_;  // shared while somebody contributes and gets in line
  mutable std::mutex mutex_;      // guards queue_ against replacement, and given_
  std::unique_ptr<TokenQueue<Net>> queue_;
  std::vector<Index> given_;  // the tail of it is what the queue holds
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
