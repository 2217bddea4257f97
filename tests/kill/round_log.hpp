// SPDX-License-Identifier: MIT
/// @file
/// Shared memory that notes of which contributions each update was made, for a replay of them.
#pragma once

#include "support/processes.hpp"
#include <lockstep/lockstep.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
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

  static Entry entry_of(const protocol::Round& round) {
    Entry entry{.spare_tokens = round.spare_tokens};
    for (std::size_t place = 0; place < Places; ++place) {
      entry.served[place] = round.places[place].served;
      entry.sequence[place] = round.places[place].sequence;
    }
    return entry;
  }
};

/// The note is taken by the transition that ends the round, before it is committed: if its process is killed
/// in between, whoever ends the round in its stead overwrites the note.
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
      if constexpr (std::is_invocable_v<F, const State&> || !std::is_same_v<State, detail::Control>) {
        return Base::exclusive(std::forward<F>(transition), std::forward<Then>(then));
      } else {
        return Base::exclusive(
            [&](State& state) -> decltype(auto) {
              const auto before = static_cast<std::size_t>(state.round.id);
              const auto entry = Log::entry_of(state.round);
              return detail::call_and_then(std::forward<F>(transition), state, [&] {
                if (static_cast<std::size_t>(state.round.id) != before)
                  log_->rounds[before % log_->rounds.size()] = entry;
              });
            },
            std::forward<Then>(then));
      }
    }

   private:
    Log* log_;
  };
};

}  // namespace lockstep::test
