// SPDX-License-Identifier: MIT
/// @file
/// Named state that is no gradient, such as running statistics, with a stated rule for how replicas agree on
/// it.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/enumerator.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/rule.hpp>
#include <lockstep/optimizers/step_result.hpp>
#include <lockstep/sync_replicas.hpp>
#include <lockstep/transport/in_process.hpp>
#include <lockstep/transport/memory.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// What `ExtraState` does with one state.
enum class StateRule : std::uint8_t {
  own,    ///< each replica keeps its own
  mean,   ///< all get the weighted mean over the replicas, formed in replica order
  first,  ///< all get that of replica 0, bit by bit
};

/// Options of `ExtraState`.
struct ExtraStateOptions {
  int replicas = 1;                                         ///< N: all take part in each exchange
  std::chrono::milliseconds deadline = k_default_deadline;  ///< longest wait of one exchange
};

namespace detail {

/// The variable becomes what the replicas agreed on.
struct Assign {
  static constexpr std::array<Slot, 0> slots{};
  LOCKSTEP_ALWAYS_INLINE void update(const StepInfo&, auto& w, auto g) const { w = g; }
};

}  // namespace detail

/// State beside the variables that replicas change on their own, and on which they agree now and then:
/// whenever each of them calls `synchronise`. Every replica starts with the values in the set. Underneath it
/// is a trainer of its own, so waits have a deadline, errors name who is missing, and replicas may leave:
/// then the mean is over those who are there, and states of rule `first` stay as they were agreed on last.
/// @code{.cpp}
/// Variables<float> statistics;
/// const auto mean = statistics.add("batch_norm/mean", Eigen::VectorXf::Zero(32));
/// ExtraState extra{StateRule::mean, statistics, {.replicas = 4}};
/// trainer.run([&](auto& replica) {
///   auto state = extra.join(replica.index());
///   while (replica.global_step() < 1000) {
///     state.value(mean) = 0.9F * state.value(mean) + 0.1F * batch_mean;   // this replica's own
///     replica.apply_gradients();
///     if (replica.global_step() % 10 == 0) state.synchronise();           // now the same everywhere
///   }
/// });
/// @endcode
/// @tparam Net models lockstep::Transport; between processes it needs a session name of its own.
/// @par Thread safety Of `ExtraState` any thread; a replica belongs to one thread.
/// @par Cost of an exchange: that of a step of `SyncReplicas` with these variables, and two copies of them.
template <Transport Net = InProcess, class T = float>
class ExtraState {
  using Trainer = SyncReplicas<detail::Assign, Net, T>;

 public:
  /// Which rule a state has; every replica must give the same answers.
  using Rules = std::function<StateRule(const VariableInfo&)>;

  /// A rule for each state. @throws InvalidArgument, UsageError as SyncReplicas does.
  ExtraState(const Rules& rules, Variables<T>& variables, const ExtraStateOptions& options,
             const Net& net = {})
      : trainer_(detail::Assign{}, variables,
                 {.replicas_to_aggregate = options.replicas,
                  .departure = Departure::shrink,
                  .absent = Absent::excluded,
                  .deadline = options.deadline},
                 net) {
    for (const VariableInfo& info : variables.infos()) {
      rules_.push_back(rules(info));
      detail::expect_enumerator("rule", rules_.back(), StateRule::first);
    }
  }
  /// The same rule for all.
  ExtraState(StateRule rule, Variables<T>& variables, const ExtraStateOptions& options, const Net& net = {})
      : ExtraState([rule](const VariableInfo&) { return rule; }, variables, options, net) {}

  /// The states as one replica has them.
  class Replica {
   public:
    /// Used by `ExtraState::join`.
    Replica(const ExtraState& state, typename Trainer::Replica&& replica)
        : state_(&state), replica_(std::move(replica)), memory_(bytes()) {
      std::copy_n(replica_.values(), layout().size(), data());
    }

    /// Its replica number.
    int index() const { return replica_.index(); }
    /// The set of states.
    const Variables<T>& variables() const { return replica_.variables(); }

    /// This replica's own, to be read and written in place at any time.
    template <class M>
    typename TensorTraits<M, T>::View value(const Handle<M, T>& handle) {
      variables().check(handle);
      return TensorTraits<M, T>::view(data() + handle.offset, handle.shape);
    }

    /// Waits for the others' call and takes over what the rules give. @param options its weight counts in the
    /// means.
    /// @throws InvalidArgument for the weight; TimeoutError, PeerFailed, Cancelled as `apply_gradients`: the
    /// own values are as they were then, and after the first and the last `resume()` or `withdraw()`.
    void synchronise(const ApplyOptions& options = {}) {
      detail::expect_options(options);
      Contribution<T>& staged = replica_.staging();
      staged.clear();
      for (const VariableInfo& info : layout().infos())
        if (gives(info.id)) std::copy_n(data() + info.offset, info.size, staged.mark_dense(info.id));
      staged.header().unit = staged.header().total = options.weight;
      replica_.apply_merged(options, 1);
      take_over();
    }
    /// Waits on after a TimeoutError or Cancelled.
    void resume(const ApplyOptions& options = {}) {
      replica_.resume(options);
      take_over();
    }
    /// Takes the call back after a TimeoutError or Cancelled. False if all have called meanwhile: `resume()`
    /// then.
    bool withdraw() { return replica_.withdraw(); }

   private:
    const Layout& layout() const { return replica_.variables().layout(); }
    std::size_t bytes() const { return static_cast<std::size_t>(layout().size()) * sizeof(T); }
    T* data() { return reinterpret_cast<T*>(memory_.bytes().data()); }
    void take_over() {
      for (const VariableInfo& info : layout().infos())
        if (state_->rules_[info.id] != StateRule::own)
          std::copy_n(replica_.values() + info.offset, info.size, data() + info.offset);
    }
    bool gives(std::uint32_t id) const {
      const StateRule rule = state_->rules_[id];
      return rule == StateRule::mean || (rule == StateRule::first && index() == 0);
    }

    const ExtraState* state_;
    typename Trainer::Replica replica_;
    ZeroedMemory memory_;
  };

  /// Takes a replica number, usually that of the trainer's replica. It leaves when the object dies.
  /// @throws InvalidArgument if there is no such number; UsageError if somebody sits there.
  Replica join(int place, std::stop_token stop = {}) {
    return Replica(*this, trainer_.join(place, std::move(stop)));
  }

  /// Forgets who has joined, left or failed, for a new run. @throws UsageError while a replica is active.
  void start_over() { trainer_.start_over(); }

 private:
  Trainer trainer_;
  std::vector<StateRule> rules_;  // by variable
};

/// Deduces the scalar.
template <class Rules, class T>
ExtraState(Rules, Variables<T>&, ExtraStateOptions) -> ExtraState<InProcess, T>;
/// Deduces the transport and the scalar.
template <class Rules, class T, Transport Net>
ExtraState(Rules, Variables<T>&, ExtraStateOptions, Net) -> ExtraState<Net, T>;

LOCKSTEP_NAMESPACE_END
