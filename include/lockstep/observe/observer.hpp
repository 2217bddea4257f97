// SPDX-License-Identifier: MIT
/// @file
/// What a trainer tells about its replicas, and to whom. Who is not told costs nothing.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/optimizers/step_result.hpp>
#include <lockstep/transport/fork_guard.hpp>
#include <lockstep/transport/wait.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

/// What a replica does.
enum class Activity : std::uint8_t {
  compute,   ///< the program's part: from the end of a step to the next contribution
  push,      ///< hands its contribution over, or adds it to its earlier one
  wait,      ///< sleeps until others have contributed or an update is made
  measure,   ///< sums the squares of tiles, where the norm of the mean is limited
  apply,     ///< updates tiles of the variables
  commit,    ///< ends the round, and calls the hook after the update
  snapshot,  ///< copies the variables, where replicas read a copy
};

/// "compute", "push" and so on.
constexpr const char* to_string(Activity activity) {
  switch (activity) {
    case Activity::compute:
      return "compute";
    case Activity::push:
      return "push";
    case Activity::wait:
      return "wait";
    case Activity::measure:
      return "measure";
    case Activity::apply:
      return "apply";
    case Activity::commit:
      return "commit";
    case Activity::snapshot:
      return "snapshot";
  }
  return "?";
}

/// Something that a replica has done, told when it has ended. Spans of one replica do not overlap, unless it
/// carries out the update that its leaving has closed while another one takes its number.
struct Span {
  int replica = -1;  ///< its number; -1: a thread that is no replica (a chief, a snapshot, a restore)
  Activity activity = Activity::compute;  ///< what it did
  std::int64_t step = 0;                  ///< global step of the variables when it began
  std::int64_t items = 0;  ///< tiles that it measured or updated; 1 for a commit; 0 for what has no parts
  Clock::time_point begin = {};  ///< when it began
  Clock::time_point end = {};    ///< when it had ended
};

/// A call of `apply_gradients` has ended; told on the thread of the replica.
struct StepEnd {
  int replica = 0;         ///< its number
  StepResult result = {};  ///< what the call returns
};

/// `o.on(span)` is told what each replica has done. Only then does the trainer look at the clock.
template <class O>
concept SeesSpans = requires(O& o, const Span& span) {
  o.on(span);
};

/// `o.on(step_end)` is told what became of each gradient.
template <class O>
concept SeesSteps = requires(O& o, const StepEnd& step) {
  o.on(step);
};

namespace detail {
template <class O>
concept TakesSpans = requires(O& o, const Span& span) {
  { o.on(span) }
  noexcept;
};
template <class O>
concept TakesSteps = requires(O& o, const StepEnd& step) {
  { o.on(step) }
  noexcept;
};
}  // namespace detail

/// Destructors tell of spans as well, so what is told must not throw.
template <class O>
concept NeverThrows = (!SeesSpans<O> || detail::TakesSpans<O>)&&(!SeesSteps<O> || detail::TakesSteps<O>);

/// Something that is told what happens: it sees spans, steps, or both.
template <class O>
concept IsTold = (SeesSpans<O> || SeesSteps<O>)&&NeverThrows<O>;

/// Nobody: no call is made, no clock is read, no byte is taken.
struct NoObserver {};

/// What a trainer keeps to be told what happens. It is called by all threads of the trainer at once, for one
/// replica number by one thread at a time (but see `Span`), outside of every lock, and what it does is part
/// of the step. Only `NoObserver` sees nothing: a function with another name is an error, not silence.
template <class O>
concept Observer = std::move_constructible<O> &&(std::same_as<O, NoObserver> || IsTold<O>);

/// Tells several observers, in this order, which the program keeps: for as long as the trainer and its
/// replicas exist.
/// @code{.cpp}
/// ChromeTrace trace{{.replicas = 4}};
/// Metrics metrics{{.replicas = 4}};
/// SyncReplicas trainer{Adam{}, variables, {.replicas_to_aggregate = 4}, InProcess{}, ObservedBy{trace,
/// metrics}};
/// @endcode
template <IsTold... Os>
class ObservedBy {
 public:
  /// Keeps their addresses.
  explicit ObservedBy(Os&... observers) : observers_(&observers...) {}

  /// Tells those who see spans.
  void on(const Span& span) const noexcept requires(SeesSpans<Os> || ...) { tell(span); }
  /// Tells those who see steps.
  void on(const StepEnd& step) const noexcept requires(SeesSteps<Os> || ...) { tell(step); }

 private:
  void tell(const auto& what) const noexcept {
    const auto tell_one = [&](auto& observer) {
      if constexpr (requires { observer.on(what); }) observer.on(what);
    };
    std::apply([&](Os*... observers) { (tell_one(*observers), ...); }, observers_);
  }

  std::tuple<Os*...> observers_;
};

namespace detail {

/// Most spans or steps that an observer keeps of each replica: some 20 gigabytes.
inline constexpr std::size_t k_most_observed = std::size_t{1} << 28;

/// The number of replicas that an observer is made for.
/// @throws InvalidArgument if it, or what is kept of each, is below 1 or above its limit.
inline std::size_t replicas_to_observe(int replicas, std::size_t capacity) {
  if (replicas < 1 || replicas > k_max_replicas)
    throw_error<InvalidArgument>("replicas: must be from 1 to ", k_max_replicas, ", got ", replicas);
  if (capacity < 1 || capacity > k_most_observed)
    throw_error<InvalidArgument>("capacity: must be from 1 to ", k_most_observed, ", got ", capacity);
  return static_cast<std::size_t>(replicas);
}

/// Tells an observer how long something lasted: from its construction to `end()` or its destruction. Nothing
/// for an observer that sees no spans.
template <class O>
class SpanTimer {
 public:
  static constexpr bool is_running() { return true; }  // nobody needs to begin it
  void add(std::int64_t) {}
  void end() {}
};

template <SeesSpans O>
class SpanTimer<O> {
 public:
  SpanTimer() = default;  // of nothing
  SpanTimer(O& observer, const ForkGuard& guard, const Span& span)
      : observer_(&observer), guard_(&guard), span_(span) {
    span_.begin = Clock::now();
  }
  SpanTimer(SpanTimer&&) = delete;
  SpanTimer& operator=(SpanTimer&& other) noexcept {
    end();
    observer_ = std::exchange(other.observer_, nullptr);
    guard_ = other.guard_;
    span_ = other.span_;
    return *this;
  }
  ~SpanTimer() { end(); }

  /// It has begun and not ended.
  bool is_running() const { return observer_ != nullptr; }
  /// Parts of it are done.
  void add(std::int64_t items) { span_.items += items; }

  /// It has ended. Who came to an update when there was nothing left to do has done nothing, and a forked
  /// child does not call what its parent may have been in the middle of.
  void end() {
    O* const observer = std::exchange(observer_, nullptr);
    const bool has_items = span_.activity == Activity::measure || span_.activity == Activity::apply ||
                           span_.activity == Activity::commit;
    if (!observer || (has_items && span_.items == 0) || guard_->is_in_child()) return;
    span_.end = Clock::now();
    observer->on(span_);
  }

 private:
  O* observer_ = nullptr;
  const ForkGuard* guard_ = nullptr;
  Span span_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
