// SPDX-License-Identifier: MIT
/// @file
/// Who takes part in `VariableReplicas`, with which local step, and whether anybody has failed.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/layout.hpp>
#include <lockstep/protocol/round.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// What replica `place` is told, or with `protocol::k_nobody` the chief, when training has failed because of
/// replica `culprit`; if that is nobody, the reason says who it was.
inline PeerFailed failure_for(int place, int culprit, const std::string& reason) {
  return {text(culprit < 0 ? reason : text("replica ", culprit, " failed: ", reason), "; ",
               place < 0 ? "the chief" : text("replica ", place), " cannot go on"),
          culprit};
}

/// A stop that is requested as soon as either of two others is.
class EitherStop {
 public:
  EitherStop(const std::stop_token& first, const std::stop_token& second)
      : on_first_(first, Request{&source_}), on_second_(second, Request{&source_}) {}
  std::stop_token token() const { return source_.get_token(); }

 private:
  struct Request {
    std::stop_source* source;
    void operator()() const noexcept { source->request_stop(); }
  };
  std::stop_source source_;
  std::stop_callback<Request> on_first_, on_second_;
};

/// Why an update does not come: gradients that variables lack, and replicas that are missing.
/// @param count_of `count_of(id)`: gradients in the accumulator of a variable; negative without one.
template <class CountOf>
std::string text_of_missing(const Layout& layout, int required, CountOf&& count_of,
                            const std::vector<Missing>& missing) {
  std::string why;
  for (const VariableInfo& info : layout.infos()) {
    const Index count = count_of(info.id);
    if (count < 0 || count >= required) continue;
    why += text(why.empty() ? "; gradients of " : ", ", "'", info.name, "': ", count, " of ", required);
  }
  for (std::size_t i = 0; i < missing.size(); ++i)
    why += text(i == 0 ? "; " : ", ", "replica ", missing[i].replica, " ", to_string(missing[i].why));
  return why;
}

/// Seats, local steps and the one failure that ends everybody. Local steps have no lock: a replica's own
/// thread writes its own.
/// @par Thread safety every function may be called from any thread.
class VariableMembership {
 public:
  explicit VariableMembership(int replicas) : places_(static_cast<std::size_t>(replicas)) {}

  // ---- seats

  /// Takes a certain place, or the lowest one that nobody sat at, or that somebody has left. @return the
  /// place.
  int join(int place) {
    const std::lock_guard lock(mutex_);
    if (place < 0) place = free_place();
    if (place < 0) throw_error<UsageError>("join: all ", places_.size(), " replicas have joined already");
    if (place >= replicas())
      throw_error<InvalidArgument>("join: replica numbers are 0 to ", replicas() - 1, ", got ", place);
    if (at(place).seat == protocol::Seat::active)
      throw_error<UsageError>("join: replica ", place, " has joined already");
    at(place).seat = protocol::Seat::active;
    return place;
  }
  void leave(int place) {
    const std::lock_guard lock(mutex_);
    at(place).seat = protocol::Seat::left;
  }
  /// An exception has ended the loop of `place`.
  void die(int place, const std::string& reason) {
    {
      const std::lock_guard lock(mutex_);
      at(place).seat = protocol::Seat::dead;
    }
    fail(place, reason);
  }
  /// Marks the trainer as failed because of `place`, or of `protocol::k_nobody`, and ends all waits.
  void fail(int place, const std::string& reason) {
    {
      const std::lock_guard lock(mutex_);
      if (culprit_) return;
      culprit_ = place;
      reason_ = reason;
    }
    request_stop(failure_);
    request_stop(chiefs_);
  }
  /// @throws PeerFailed if somebody has failed.
  void expect_healthy(int place) const {
    const std::lock_guard lock(mutex_);
    if (culprit_) throw failure_for(place, *culprit_, reason_);
  }
  /// @throws UsageError while a replica is active.
  void start_over() {
    const std::lock_guard lock(mutex_);
    const auto active = std::count_if(places_.begin(), places_.end(),
                                      [](const Place& p) { return p.seat == protocol::Seat::active; });
    if (active > 0) throw_error<UsageError>("run: ", active, " replicas are still active");
    for (Place& place : places_) place.seat = protocol::Seat::vacant;
    culprit_.reset();
    reason_.clear();
    failure_ = std::stop_source();
    chiefs_ = std::stop_source();
  }

  // ---- waits

  /// Requested when somebody fails.
  std::stop_token failure() const { return token_of(failure_); }
  /// Requested when somebody fails, or training ends.
  std::stop_token end_of_chiefs() const { return token_of(chiefs_); }
  void end_chiefs() { request_stop(chiefs_); }

  /// Marks a place as waiting for a token while it lives.
  class Waiting {
   public:
    explicit Waiting(std::atomic<bool>& flag) : flag_(flag) { flag_.store(true, std::memory_order_relaxed); }
    ~Waiting() { flag_.store(false, std::memory_order_relaxed); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    std::atomic<bool>& flag_;
  };
  Waiting waiting(int place) { return Waiting(at(place).waits); }

  /// Everybody who is not waiting for a token, except one.
  std::vector<Missing> missing(int except) const {
    using protocol::Seat;
    const std::lock_guard lock(mutex_);
    std::vector<Missing> result;
    for (int i = 0; i < replicas(); ++i) {
      const Place& place = at(i);
      if (i == except || place.waits.load(std::memory_order_relaxed)) continue;
      result.push_back({i, place.seat == Seat::vacant   ? Missing::Why::not_joined
                           : place.seat == Seat::active ? Missing::Why::slow
                           : place.seat == Seat::left   ? Missing::Why::left
                                                        : Missing::Why::dead});
    }
    return result;
  }

  // ---- the chief

  /// False if there is one.
  bool claim_chief() { return !has_chief_.exchange(true); }
  void release_chief() { has_chief_.store(false); }

  // ---- local steps

  int replicas() const { return static_cast<int>(places_.size()); }
  Index local_step(int place) const { return at(place).local_step.load(std::memory_order_relaxed); }
  void set_local_step(int place, Index step) { at(place).local_step.store(step, std::memory_order_relaxed); }

 private:
  struct Place {
    protocol::Seat seat = protocol::Seat::vacant;  // under mutex_
    std::atomic<Index> local_step{0};
    std::atomic<bool> waits{false};
  };

  Place& at(int place) { return places_[checked(place)]; }
  const Place& at(int place) const { return places_[checked(place)]; }
  std::size_t checked(int place) const {
    if (place < 0 || place >= replicas())
      throw_error<InvalidArgument>("replica numbers are 0 to ", replicas() - 1, ", got ", place);
    return static_cast<std::size_t>(place);
  }
  int free_place() const {
    for (const auto seat : {protocol::Seat::vacant, protocol::Seat::left, protocol::Seat::dead})
      for (int i = 0; i < replicas(); ++i)
        if (at(i).seat == seat) return i;
    return -1;
  }
  std::stop_token token_of(const std::stop_source& source) const {
    const std::lock_guard lock(mutex_);
    return source.get_token();
  }
  /// Callbacks run outside of the mutex.
  void request_stop(const std::stop_source& source) {
    std::stop_source copy(std::nostopstate);
    {
      const std::lock_guard lock(mutex_);
      copy = source;
    }
    copy.request_stop();
  }

  mutable std::mutex mutex_;
  std::vector<Place> places_;
  std::optional<int> culprit_;  // if it has failed
  std::string reason_;
  std::stop_source failure_, chiefs_;
  std::atomic<bool> has_chief_{false};
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
