// SPDX-License-Identifier: MIT
// Who waits for an update helps with it, if it is large enough.
#include "support/hooked_transport.hpp"
#include "unit/sync/scene.hpp"

#include <array>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Threads that come in one by one and go on together, or after a while alone.
class Meeting {
 public:
  void enter() {
    std::unique_lock lock(mutex_);
    here_.insert(std::this_thread::get_id());
    if (here_.size() > 1) changed_.notify_all();
    is_over_ = is_over_ || !changed_.wait_for(lock, 20s, [this] { return here_.size() > 1 || is_over_; });
  }
  std::size_t count() const { return here_.size(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::thread::id> here_;
  bool is_over_ = false;  // nobody else has come
};

/// SGD by threads that meet in the update.
struct MeetingRule {
  Meeting* meeting;
  static constexpr std::array<Slot, 0> slots{};
  struct Step {
    Meeting* meeting;
  };
  Step prepare(const StepInfo&) const { return {meeting}; }
  void update(const Step& step, auto& w, auto g) const {
    step.meeting->enter();
    w -= g;
  }
};

constexpr Index k_two_items = 8192;

}  // namespace

TEST_CASE("helpers: who waits is told of an update of three items and takes part in it",
          "[sync][helpers][thread]") {
  const Watchdog watchdog;
  Net<> net(k_two_items + 8);
  const Hooked hooked;
  Meeting meeting;
  SyncReplicas trainer{MeetingRule{&meeting}, net.variables, SyncOptions{.replicas_to_aggregate = 2}, hooked};
  trainer.run([&](auto& replica) { step(replica, net.w, 1); });
  CHECK(meeting.count() == 2);
  CHECK(net.value() == -1);
  CHECK(net.value(k_two_items + 7) == -1);
}

TEST_CASE("helpers: who waits is told of the end only where one does an update alone",
          "[sync][helpers][thread]") {
  const Watchdog watchdog;
  Net<> net(k_two_items);
  const Hooked hooked;
  SyncReplicas trainer{Sgd{1.0}, net.variables, SyncOptions{.replicas_to_aggregate = 2}, hooked};
  constexpr std::int64_t steps = 50;
  std::int64_t told = 0;
  trainer.run([&](auto& replica) {
    for (int i = 0; i < 2; ++i) step(replica, net.w, 1);  // by now somebody has been woken
    const std::int64_t before = hooked.script->woken.load()->seen();
    for (int i = 0; i < steps; ++i) step(replica, net.w, 1);
    if (replica.index() == 0) told = hooked.script->woken.load()->seen() - before;
  });
  CHECK(told >= steps - 1);  // the variables are there before those who sleep are told
  CHECK(told <= steps + 9);  // the other one leaves
  CHECK(net.value() == -2 - steps);
}
