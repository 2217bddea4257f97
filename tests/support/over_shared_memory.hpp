// SPDX-License-Identifier: MIT
/// @file
/// Put before a test by -include: where it names no transport, its replicas are threads over a segment of
/// shared memory, each trainer and each accumulator with a session of its own.
#pragma once

#define LOCKSTEP_TEST_OVER_SHARED_MEMORY

#include <lockstep/extra_state.hpp>
#include <lockstep/lockstep.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <unistd.h>
#include <vector>

namespace lockstep::test {

struct InSegment {
  static constexpr bool k_survives_kill = true;

  template <class State>
  class Session : public SharedMemory::Session<State> {
   public:
    Session(const InSegment&, const State& initial, const SessionSpec& spec)
        : SharedMemory::Session<State>(SharedMemory{.name = unique_name()}, initial, spec) {}
    std::vector<int> seats_here(int total) const {
      std::vector<int> seats(static_cast<std::size_t>(total));
      std::iota(seats.begin(), seats.end(), 0);
      return seats;
    }
  };

  /// Size of the files of all sessions of this process.
  static std::int64_t bytes_of_files() {
    std::int64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(SharedMemory{}.directory))
      if (entry.path().filename().string().starts_with("lockstep." + first_part()))
        bytes += static_cast<std::int64_t>(entry.file_size());
    return bytes;
  }

 private:
  /// One count for sessions of all states.
  static std::string unique_name() {
    static std::atomic<int> count{0};
    return first_part() + std::to_string(++count);
  }
  static std::string first_part() { return "test-" + std::to_string(::getpid()) + "-"; }
};
static_assert(Transport<InSegment>);

}  // namespace lockstep::test

LOCKSTEP_NAMESPACE_BEGIN

// More constrained than the guides of the library, so these are taken.
template <class R, class T, class G>
requires Recipe<R, T> SyncReplicas(R, Variables<T, G>&, SyncOptions)
->SyncReplicas<R, test::InSegment, T, G>;
template <class R, class T>
requires Recipe<R, T> VariableReplicas(R, Variables<T>&, VariableOptions)
->VariableReplicas<R, test::InSegment, T>;

template <class T>
requires Transport<test::InSegment> ExtraState(StateRule, Variables<T>&, ExtraStateOptions)
->ExtraState<test::InSegment, T>;
template <class Rules, class T>
requires Transport<test::InSegment> ExtraState(Rules, Variables<T>&, ExtraStateOptions)
->ExtraState<test::InSegment, T>;

LOCKSTEP_NAMESPACE_END
