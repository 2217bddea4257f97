// SPDX-License-Identifier: MIT
/// @file
/// The in-process transport with a hook after each critical section, so that a test can make the race that it
/// wants.
#pragma once

#include <lockstep/transport/in_process.hpp>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::test {

struct Hooked {
  static constexpr bool k_survives_kill = false;

  struct Script {
    int countdown = 0;             // critical sections until `action` runs, once
    std::function<void()> action;  // may not throw
    std::atomic<int> wakes{0};
    std::atomic<const WaitWord*> woken{nullptr};  // the word of the last wake

    void after_section() {
      if (countdown > 0 && --countdown == 0) action();
    }
  };
  std::shared_ptr<Script> script = std::make_shared<Script>();

  template <class State>
  class Session {
   public:
    Session(const Hooked& net, const State& initial, const SessionSpec& spec)
        : script_(net.script), inner_(InProcess{}, initial, spec) {}

    std::string disagreement() const { return inner_.disagreement(); }
    std::span<std::byte> memory() { return inner_.memory(); }
    template <class F>
    decltype(auto) exclusive(F&& transition) {
      return exclusive(std::forward<F>(transition), [](const State&) {});
    }
    template <class F, class Then>
    decltype(auto) exclusive(F&& transition, Then&& then) {
      struct After {
        Script& script;
        ~After() { script.after_section(); }
      };
      const After after{*script_};
      return inner_.exclusive(std::forward<F>(transition), std::forward<Then>(then));
    }
    /// Without slices: it ends when somebody has changed the word.
    void wait(WaitWord& word, std::uint32_t seen, Clock::time_point deadline, int participants) {
      while (word.seen() == seen && Clock::now() < deadline) inner_.wait(word, seen, deadline, participants);
    }
    void wake(WaitWord& word, int count) {
      ++script_->wakes;
      script_->woken = &word;
      inner_.wake(word, count);
    }
    bool alive(int place) const { return inner_.alive(place); }
    auto lease(int place) const { return inner_.lease(place); }
    void leave_note(std::string_view text) { inner_.leave_note(text); }
    std::string note() const { return inner_.note(); }
    void clear_note() { inner_.clear_note(); }
    std::vector<int> seats_here(int total) const { return inner_.seats_here(total); }

   private:
    std::shared_ptr<Script> script_;
    InProcess::Session<State> inner_;
  };
};

static_assert(Transport<Hooked>);

}  // namespace lockstep::test
