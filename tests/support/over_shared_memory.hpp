// SPDX-License-Identifier: MIT
/// @file
/// Put before a test by -include: where it names no transport, its replicas are threads over a segment of
/// shared memory, each trainer and each accumulator with a session of its own.
#pragma once

#define LOCKSTEP_TEST_OVER_SHARED_MEMORY

#include <lockstep/lockstep.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <atomic>
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

 private:
  /// One count for sessions of all states.
  static std::string unique_name() {
    static std::atomic<int> count{0};
    return "test-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
  }
};
static_assert(Transport<InSegment>);

}  // namespace lockstep::test

LOCKSTEP_NAMESPACE_BEGIN

// More constrained than the guides of the library, so these are taken.
template <class R, class T, class G>
requires Recipe<R, T> SyncReplicas(R, Variables<T, G>&, SyncOptions)
->SyncReplicas<R, test::InSegment, T, G>;

LOCKSTEP_NAMESPACE_END
