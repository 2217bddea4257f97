// SPDX-License-Identifier: MIT
/// @file
/// The chief of `VariableReplicas` with Driver::chief: takes from all accumulators, applies, gives out
/// tokens.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/optimizers/step_result.hpp>
#include <lockstep/per_variable/engine_choice.hpp>

#include <chrono>
#include <stop_token>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Carries out updates, on whatever thread calls it. There is one at a time. Destroying it withdraws its
/// requests; aggregates that it has taken and not applied are lost, as when a chief dies. If it runs out of
/// memory, or anything else than an `Error` of the library leaves one of its calls, the trainer has failed:
/// all who wait get PeerFailed with the text.
/// @par Thread safety One thread at a time.
/// @par Source TensorFlow's chief queue runner of SyncReplicasOptimizer.
template <class R, class Net, class T>
class VariableChief {
  using Engine = detail::variable_engine_t<R, Net, T>;

 public:
  /// Used by `VariableReplicas::chief`.
  explicit VariableChief(Engine& engine) : engine_(engine), takes_(engine.takes()) {
    if (engine.cooperative())
      throw UsageError("chief: the replicas write updates themselves; ask for Driver::chief");
    if (!engine.claim_chief()) throw UsageError("chief: there is one already");
  }
  ~VariableChief() {
    if (!engine_.is_in_forked_child()) engine_.release_chief();
  }
  VariableChief(const VariableChief&) = delete;
  VariableChief& operator=(const VariableChief&) = delete;

  /// Gets in line at every accumulator for R gradients, without waiting; nothing where a request stands
  /// already.
  /// @return `taken()`.
  std::vector<bool> take_begin() {
    return guarded([&] {
      takes_.begin(engine_.options().replicas_to_aggregate);
      return taken();
    });
  }

  /// By variable number: whether the aggregate has been taken.
  std::vector<bool> taken() const {
    std::vector<bool> result;
    for (const VariableInfo& info : engine_.layout().infos()) result.push_back(takes_.is_served(info.id));
    return result;
  }

  /// Waits until all requests are served; then updates the variables, counts the step and gives out max(R, N)
  /// tokens.
  /// @throws TimeoutError, Cancelled: what was asked for and taken so far is kept, call again.
  /// @throws OutOfRange after `close()`; PeerFailed; UsageError before `take_begin()`.
  /// @throws what a schedule throws; the trainer then has failed.
  VariableUpdate finish(std::chrono::milliseconds timeout = {}, const std::stop_token& stop = {}) {
    if (!takes_.is_begun()) throw UsageError("finish: call take_begin() first");
    const auto longest = detail::timeout_or("chief", timeout, engine_.options().deadline);
    return guarded([&] {
      takes_.begin(engine_.options().replicas_to_aggregate);  // those that a stop has withdrawn
      engine_.collect(takes_, longest, stop);
      return engine_.update(takes_, longest);
    });
  }

  /// `take_begin()` and `finish()`.
  VariableUpdate step(std::chrono::milliseconds timeout = {}, const std::stop_token& stop = {}) {
    take_begin();
    return finish(timeout, stop);
  }

  /// Leaves all lines. Aggregates that were taken are lost.
  void abort() { takes_.abort(); }

  /// Updates until a stop is requested or training ends, however long it takes.
  /// @throws PeerFailed, and what a schedule throws. Whatever it throws, the trainer then has failed.
  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      try {
        (void)step({}, stop);
      } catch (const TimeoutError&) {
        continue;  // its requests still stand
      } catch (const Cancelled&) {
        return;
      } catch (const OutOfRange&) {
        return;
      } catch (...) {  // nobody calls it again
        tell_all();
        throw;
      }
    }
  }

 private:
  /// After an error of the library the caller may go on; of another one nobody would learn.
  template <class F>
  auto guarded(F&& f) {
    try {
      return f();
    } catch (const Error&) {
      throw;
    } catch (...) {
      tell_all();
      throw;
    }
  }
  /// Inside a handler.
  void tell_all() {
    if (!engine_.is_in_forked_child()) engine_.chief_failed(detail::text_of_exception());
  }

  Engine& engine_;
  typename Engine::Takes takes_;
};

LOCKSTEP_NAMESPACE_END
