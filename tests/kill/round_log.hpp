// SPDX-License-Identifier: MIT
/// @file
/// Shared memory that notes of which gradients each update was made, for a replay of them.
#pragma once

#include "support/processes.hpp"
#include <lockstep/lockstep.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <utility>

namespace lockstep::test {

/// Of each round: how many contributions of each place were in it, and how many that place had made up to its
/// end.
template <std::size_t Rounds, std::size_t Places>
struct RoundLog {
  struct Entry {
    std::int32_t spare_tokens = 0;
    std::array<std::int32_t, Places> served{};
    std::array<std::int64_t, Places> sequence{};
  };
  std::array<Entry, Rounds> rounds{};

  using State = detail::Control;
  struct Before {
    std::size_t round;
    Entry entry;
  };
  static Before before(const State& state) {
    Before result{static_cast<std::size_t>(state.round.id), {.spare_tokens = state.round.spare_tokens}};
    for (std::size_t place = 0; place < Places; ++place) {
      result.entry.served[place] = state.round.places[place].served;
      result.entry.sequence[place] = state.round.places[place].sequence;
    }
    return result;
  }
  void note(const Before& before, const State& after) {
    if (static_cast<std::size_t>(after.round.id) != before.round)
      rounds[before.round % rounds.size()] = before.entry;
  }
};

/// Every push of a trainer that has one accumulator per variable, in order.
template <std::size_t Pushes, std::size_t Places>
struct PushLog {
  struct Entry {
    std::int32_t place = 0;
    std::int64_t sequence = 0, local_step = 0;
  };
  std::array<Entry, Pushes> pushes{};
  std::size_t count = 0;  ///< as of the last transition

  using State = detail::VariableControl;
  using Before = std::array<std::int64_t, Places>;  // batches that each place had handed over
  static Before before(const State& state) {
    Before result{};
    for (std::size_t place = 0; place < Places; ++place) result[place] = state.places[place].sequence;
    return result;
  }
  void note(const Before& before, const State& after) {
    count = static_cast<std::size_t>(std::accumulate(before.begin(), before.end(), std::int64_t{0}));
    for (std::size_t place = 0; place < Places; ++place)
      if (after.places[place].sequence != before[place])
        pushes.at(count++) = {static_cast<std::int32_t>(place), before[place],
                              after.places[place].local_step};
  }
};

/// Each transition is noted before it is committed: if its process is killed in between, the next one
/// overwrites the note.
template <class Log>
struct Noted {
  static constexpr bool k_survives_kill = true;

  SharedMemory net;
  Log* log;  ///< in memory that all processes share

  template <class State>
  class Session : public SharedMemory::Session<State> {
    using Base = SharedMemory::Session<State>;

   public:
    Session(const Noted& net, const State& initial, const SessionSpec& spec)
        : Base(net.net, initial, spec), log_(net.log) {}

    template <class F>
    decltype(auto) exclusive(F&& transition) {
      return exclusive(std::forward<F>(transition), [](const State&) {});
    }
    template <class F, class Then>
    decltype(auto) exclusive(F&& transition, Then&& then) {
      if constexpr (std::is_invocable_v<F, const State&> || !std::is_same_v<State, typename Log::State>) {
        return Base::exclusive(std::forward<F>(transition), std::forward<Then>(then));
      } else {
        return Base::exclusive(
            [&](State& state) -> decltype(auto) {
              const auto before = Log::before(state);
              return detail::call_and_then(std::forward<F>(transition), state,
                                           [&] { log_->note(before, state); });
            },
            std::forward<Then>(then));
      }
    }

   private:
    Log* log_;
  };
};

}  // namespace lockstep::test
