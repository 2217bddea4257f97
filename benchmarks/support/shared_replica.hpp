// SPDX-License-Identifier: MIT
/// @file
/// One of two processes that train over shared memory.
#pragma once

#include "sync_step.hpp"
#include <lockstep/transport/shared_memory.hpp>

#include <memory>
#include <string>
#include <utility>

namespace lockstep::bench {

/// Both processes get the same commands at the same time. Keeps the arrays of the last size of each rule.
class SharedReplica {
 public:
  /// @param session the same for both, and of nobody else. @param place 0 or 1.
  SharedReplica(std::string session, int place) : session_(std::move(session)), place_(place) {}

  /// Seconds per step on this process. @param rule "sgd" or "adam".
  double run(const std::string& rule, Index elements, int steps) {
    move_to_own_core(place_);
    return rule == "sgd" ? run(sgd_, rule, elements, steps) : run(adam_, rule, elements, steps);
  }

 private:
  template <class R>
  struct Kept {
    Index elements = 0;
    std::unique_ptr<SyncStep<R, SharedMemory>> step;
  };
  template <class R>
  double run(Kept<R>& kept, const std::string& rule, Index elements, int steps) {
    if (kept.elements != elements) {
      kept.step.reset();
      const SharedMemory net{.name = session_ + '-' + rule + '-' + std::to_string(elements),
                             .replica = place_};
      kept.step = std::make_unique<SyncStep<R, SharedMemory>>(elements, 2, 1, net, 1);
      kept.elements = elements;
    }
    return (*kept.step)(steps);
  }

  std::string session_;
  int place_;
  Kept<Sgd> sgd_;
  Kept<Adam> adam_;
};

}  // namespace lockstep::bench
