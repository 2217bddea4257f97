// SPDX-License-Identifier: MIT
/// @file
/// Sum and results of an accumulator in the memory of a session, where they survive their processes.
#pragma once

#include <lockstep/accumulators/attendance.hpp>
#include <lockstep/accumulators/options.hpp>
#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/protocol/accumulator.hpp>
#include <lockstep/transport/build.hpp>
#include <lockstep/transport/fault_point.hpp>
#include <lockstep/transport/memory.hpp>
#include <lockstep/transport/transport.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

inline constexpr std::size_t k_most_shared_takers = 64;

/// What the processes agree on: the line, who stands in it, and which buffer holds what.
struct SharedTakes : protocol::Accumulator<k_most_shared_takers> {
  /// A taker that waits, or has been served and not collected its result.
  struct Entry {
    protocol::Ticket ticket = 0;  ///< 0: this entry is free
    Index count = 0;              ///< gradients in the result
    int place = 0;                ///< whose taker it is
    int buffer = -1;              ///< of the result; negative while it waits

    bool is_free() const { return ticket == 0; }
    bool waits() const { return !is_free() && buffer < 0; }
  };
  std::array<Entry, k_most_shared_takers> entries{};
  int takers = 0;  ///< the first so many entries are in use
  int sum = 0;     ///< buffer of the sum, if there are gradients in it
};
static_assert(std::is_trivially_copyable_v<SharedTakes>);

/// One buffer for each taker, the sum, and a spare one.
constexpr int buffer_count(int takers) { return takers + 2; }

/// Elements of an array in each buffer, of so many bytes each.
/// @throws InvalidArgument if all buffers are larger than a session may be.
inline std::size_t shared_element_count(const AccumulatorOptions& options, std::span<const Index> extents,
                                        std::size_t bytes_each) {
  // In real numbers, which do not overflow.
  double bytes = static_cast<double>(buffer_count(options.max_takers)) * static_cast<double>(bytes_each);
  for (const Index extent : extents) bytes *= static_cast<double>(std::max(extent, Index{1}));
  if (bytes > static_cast<double>(k_most_session_bytes))
    throw_error<InvalidArgument>("accumulator: ", buffer_count(options.max_takers), " sums of ",
                                 shape_text(extents), " times ", bytes_each,
                                 " bytes are more than a session may have, ", k_most_session_bytes, " bytes");
  return static_cast<std::size_t>(element_count(extents));
}

/// For transports that find a state: what in it no accumulator can have made; empty if nothing is. What
/// passes leads to no memory that is not the session's.
/// @param initial of an accumulator with the same options; null if they are not the same.
inline const char* state_fault(const SharedTakes& found, const SharedTakes* initial) {
  if (found.takers < 1 || found.takers > static_cast<int>(k_most_shared_takers) ||
      (initial && found.takers != initial->takers))
    return "it is for other takers";
  if (!found.is_intact()) return "its line is damaged";
  const int buffers = buffer_count(found.takers);
  if (found.sum < 0 || found.sum >= buffers) return "its sum is nowhere";
  std::size_t waiting = 0;
  for (std::size_t at = 0; at < found.entries.size(); ++at) {
    const SharedTakes::Entry& entry = found.entries[at];
    if (entry.is_free() ? entry.buffer != -1
                        : at >= static_cast<std::size_t>(found.takers) || !found.has_issued(entry.ticket) ||
                              entry.place < 0 || entry.place >= k_max_replicas || entry.buffer < -1 ||
                              entry.buffer >= buffers || entry.count < 0)
      return "a taker is damaged";
    if (entry.waits()) ++waiting;
  }
  if (waiting != found.waiting()) return "its takers do not fit its line";
  for (std::size_t position = 0; position < waiting; ++position)
    if (std::none_of(found.entries.begin(), found.entries.end(), [&](const SharedTakes::Entry& entry) {
          return entry.waits() && entry.ticket == found.in_line(position);
        }))
      return "its takers do not fit its line";
  return "";
}

/// @brief Where an `AccumulatorBase` between processes keeps its sum, and its results until they are
/// collected.
///
/// The session's memory is divided into buffers: one for each taker that may be in line, the sum, and a spare
/// one. A new sum is formed in the spare one, and the transition that counts the gradient makes that buffer
/// the sum; a result is the buffer that was the sum. So nothing that the state names is ever written, and who
/// is killed in the middle leaves a spare buffer that nobody looks at.
///
/// `Sum` knows what is in a buffer: `bytes()` of one; `description()`; `check(gradient)` throws if the
/// gradient does not fit; `add(gradient, sum, into)` writes the sum of both, the gradient itself if `sum` is
/// null; `result(sum, count)`.
template <class Sum, Transport Net>
class SharedStore {
 public:
  using Gradient = typename Sum::Gradient;
  using Result = typename Sum::Result;
  using State = SharedTakes;
  using Session = typename Net::template Session<State>;
  struct Seat : TakerSeat {
    std::size_t entry = 0;
  };

  /// @throws InvalidArgument if the size of a sum is not known, or `max_takers` is not from 1 to 64.
  static SessionSpec spec(const AccumulatorOptions& options) {
    if (options.max_takers < 1 || options.max_takers > static_cast<int>(k_most_shared_takers))
      throw_error<InvalidArgument>("accumulator: max_takers must be from 1 to ", k_most_shared_takers,
                                   ", got ", options.max_takers);
    const Sum sum(options);
    return {.bytes = Attendance::bytes() +
                     static_cast<std::size_t>(buffer_count(options.max_takers)) * sum.bytes(),
            .description = text(sum.description(), "\nreduction: ", static_cast<int>(options.reduction),
                                "\nmax_takers: ", options.max_takers, "\nbuild: ", build_text())};
  }
  /// What a session begins with.
  static State initial(const AccumulatorOptions& options) {
    State state;
    state.takers = options.max_takers;
    return state;
  }
  /// @throws LayoutMismatch if the session was made with other options.
  SharedStore(const AccumulatorOptions& options, Session& session, std::byte* memory)
      : sum_(options),
        buffers_(memory + Attendance::bytes()),
        attendance_(session, memory, [](State& state, int place) {
          forget_if(state, [place](int owner) { return owner == place; });
        }) {}

  void add(State& state, const Gradient& gradient) {
    sum_.check(gradient);
    const int spare = spare_buffer(state);
    fault_point("accumulate: begun");
    sum_.add(gradient, state.count() == 0 ? nullptr : buffer(state.sum), buffer(spare));
    fault_point("accumulate: added");
    state.sum = spare;
  }

  bool begin_take(State& state, Seat& seat) {
    const auto takers = static_cast<std::size_t>(state.takers);
    std::size_t free = free_entry(state);
    if (free == takers) {
      forget_the_dead(state);
      free = free_entry(state);
      if (free == takers) return false;
    }
    const auto begun = state.begin_take(seat.num_required);
    state.entries[free] = {.ticket = begun.ticket, .place = attendance_.place()};
    seat.ticket = begun.ticket;
    seat.entry = free;
    return true;
  }

  /// Nobody is served who died in line.
  bool serve(State& state) {
    while (const protocol::Ticket due = state.due()) {
      State::Entry& entry = *std::find_if(state.entries.begin(), state.entries.end(),
                                          [due](const State::Entry& one) { return one.ticket == due; });
      if (attendance_.is_there(entry.place)) {
        entry.count = state.count();
        entry.buffer = state.sum;
        state.serve();
        return true;
      }
      state.cancel(due);
      entry = {};
    }
    return false;
  }

  bool cancel(State& state, Seat& seat) {
    if (phase(state, seat) != TakerPhase::waiting) return false;
    state.cancel(seat.ticket);
    state.entries[seat.entry] = {};
    seat.phase = TakerPhase::cancelled;
    return true;
  }
  bool abandon(State& state, Seat& seat) {
    if (phase(state, seat) == TakerPhase::served) state.entries[seat.entry] = {};
    return cancel(state, seat);
  }

  TakerPhase phase(const State& state, const Seat& seat) const {
    if (seat.phase != TakerPhase::waiting) return seat.phase;
    return state.entries[seat.entry].buffer < 0 ? TakerPhase::waiting : TakerPhase::served;
  }

  /// Copied outside the exclusion: the buffer belongs to the taker until its entry is free.
  Result take(Session& session, Seat& seat) {
    const State::Entry entry =
        session.exclusive([&](const State& state) { return state.entries[seat.entry]; });
    Result result = sum_.result(buffer(entry.buffer), entry.count);
    fault_point("take: copied");
    session.exclusive([&](State& state) {
      state.entries[seat.entry] = {};
      seat.phase = TakerPhase::taken;
    });
    return result;
  }

  /// In line or not collected.
  std::size_t requests_held(const State& state) const {
    return static_cast<std::size_t>(
        std::count_if(state.entries.begin(), state.entries.end(),
                      [](const State::Entry& entry) { return !entry.is_free(); }));
  }
  /// Whether one that waits has died: those behind it would wait for what it asked for.
  bool has_dead_takers(const State& state) const {
    return std::any_of(state.entries.begin(), state.entries.end(), [this](const State::Entry& entry) {
      return entry.waits() && !attendance_.is_there(entry.place);
    });
  }
  void forget_the_dead(State& state) {
    forget_if(state, [this](int owner) { return !attendance_.is_there(owner); });
  }
  /// Names the processes that are attached, for errors.
  std::string who() const { return attendance_.who(); }

 private:
  using Attendance = SharedAttendance<Net, State>;

  std::byte* buffer(int number) const { return buffers_ + static_cast<std::size_t>(number) * sum_.bytes(); }

  /// One that neither the sum nor a result lies in; there are more buffers than can be in use.
  static int spare_buffer(const State& state) {
    const auto is_in_use = [&state](int number) {
      return (state.count() > 0 && state.sum == number) ||
             std::any_of(state.entries.begin(), state.entries.end(),
                         [number](const State::Entry& entry) { return entry.buffer == number; });
    };
    int number = 0;
    while (is_in_use(number)) ++number;
    return number;
  }

  static std::size_t free_entry(const State& state) {
    std::size_t at = 0;
    while (at < static_cast<std::size_t>(state.takers) && !state.entries[at].is_free()) ++at;
    return at;
  }

  template <class IsGone>
  static void forget_if(State& state, IsGone&& is_gone) {
    for (State::Entry& entry : state.entries) {
      if (entry.is_free() || !is_gone(entry.place)) continue;
      state.cancel(entry.ticket);
      entry = {};
    }
  }

  Sum sum_;
  std::byte* buffers_;
  Attendance attendance_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
