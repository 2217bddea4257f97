// SPDX-License-Identifier: MIT
// Which types are transports, and which are not: a minimal model, and one near miss per requirement.
#include "support/catch.hpp"
#include <lockstep/transport/explain.hpp>
#include <lockstep/transport/in_process.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace lockstep;

namespace {

/// What a session must have and nothing more: neither copyable nor default constructible.
template <class Net, class State>
struct MinimalSession {
  MinimalSession(const Net&, const State& initial, const SessionSpec&) : state(initial) {}
  MinimalSession(const MinimalSession&) = delete;
  MinimalSession& operator=(const MinimalSession&) = delete;
  std::string disagreement() const { return {}; }
  std::span<std::byte> memory() { return {}; }
  auto exclusive(auto&& f) { return f(state); }
  auto exclusive(auto&& f, auto&& then) {
    const auto result = f(state);
    then(state);
    return result;
  }
  void wait(WaitWord&, std::uint32_t, Clock::time_point, int) {}
  void wake(WaitWord&, int) {}
  bool alive(int) const { return true; }
  struct Lease {
    bool take() { return true; }
  };
  Lease lease(int) { return {}; }
  void leave_note(std::string_view) {}
  std::string note() const { return {}; }
  void clear_note() {}
  std::vector<int> seats_here(int) const { return {}; }
  State state;
};

struct Minimal {
  static constexpr bool k_survives_kill = false;
  template <class State>
  struct Session : MinimalSession<Minimal, State> {
    using MinimalSession<Minimal, State>::MinimalSession;
  };
};
static_assert(Transport<Minimal>);
static_assert(Transport<InProcess> && !InProcess::k_survives_kill);
static_assert(Transport<SharedMemory> && SharedMemory::k_survives_kill);

static_assert(!Transport<int> && !Transport<std::string> && !Transport<Minimal&> &&
              !Transport<const Minimal>);

struct NotCopyable : Minimal {
  std::unique_ptr<int> owned;
};
static_assert(!Transport<NotCopyable>);

struct WithoutCrashSafety {
  template <class State>
  using Session = MinimalSession<WithoutCrashSafety, State>;
};
static_assert(!Transport<WithoutCrashSafety> && HasSession<WithoutCrashSafety> &&
              OpensSession<WithoutCrashSafety>);

struct CrashSafetyIsNumber {
  [[maybe_unused]] static constexpr int k_survives_kill = 1;
  template <class State>
  using Session = MinimalSession<CrashSafetyIsNumber, State>;
};
static_assert(!Transport<CrashSafetyIsNumber> && !StatesCrashSafety<CrashSafetyIsNumber>);

struct WithoutSession {
  [[maybe_unused]] static constexpr bool k_survives_kill = false;
};
static_assert(!Transport<WithoutSession> && !HasSession<WithoutSession> && !SharesMemory<WithoutSession>);

struct SessionIsNoTemplate {
  [[maybe_unused]] static constexpr bool k_survives_kill = false;
  struct Session {};
};
static_assert(!Transport<SessionIsNoTemplate> && !HasSession<SessionIsNoTemplate>);

struct OpensWithoutBytes {
  [[maybe_unused]] static constexpr bool k_survives_kill = false;
  template <class State>
  struct Session : MinimalSession<OpensWithoutBytes, State> {
    Session(const OpensWithoutBytes& net, const State& initial)
        : MinimalSession<OpensWithoutBytes, State>(net, initial, SessionSpec{}) {}
  };
};
static_assert(!Transport<OpensWithoutBytes> && !OpensSession<OpensWithoutBytes> &&
              SharesMemory<OpensWithoutBytes>);

/// A transport whose session lacks one thing, or has it in another form.
template <template <class> class Broken>
struct With {
  static constexpr bool k_survives_kill = false;
  template <class State>
  struct Session : Broken<MinimalSession<With, State>> {
    using Broken<MinimalSession<With, State>>::Broken;
  };
};

template <class Base>
struct Inherited : Base {
  using Base::Base;
};
static_assert(Transport<With<Inherited>>);

template <class Base>
struct MemoryIsPointer : Base {
  using Base::Base;
  std::byte* memory() { return nullptr; }
};
static_assert(!Transport<With<MemoryIsPointer>> && !SharesMemory<With<MemoryIsPointer>>);

template <class Base>
struct MemoryIsReadOnly : Base {
  using Base::Base;
  std::span<const std::byte> memory() { return {}; }
};
static_assert(!Transport<With<MemoryIsReadOnly>> && !SharesMemory<With<MemoryIsReadOnly>>);

template <class Base>
struct ExclusiveReturnsNothing : Base {
  using Base::Base;
  void exclusive(auto&& f) { f(this->state); }
};
static_assert(!Transport<With<ExclusiveReturnsNothing>> && !ExcludesOthers<With<ExclusiveReturnsNothing>>);

template <class Base>
struct ExclusiveTellsNobody : Base {
  using Base::Base;
  auto exclusive(auto&& f) { return f(this->state); }
};
static_assert(!Transport<With<ExclusiveTellsNobody>> && !ExcludesOthers<With<ExclusiveTellsNobody>>);

template <class Base>
struct ExclusiveIsPrivate : Base {
  using Base::Base;

 private:
  using Base::exclusive;
};
static_assert(!Transport<With<ExclusiveIsPrivate>> && !ExcludesOthers<With<ExclusiveIsPrivate>>);

template <class Base>
struct WaitWithoutDeadline : Base {
  using Base::Base;
  void wait(WaitWord&, std::uint32_t) {}
};
static_assert(!Transport<With<WaitWithoutDeadline>> && !WaitsOnWords<With<WaitWithoutDeadline>>);

template <class Base>
struct WakeReturnsCount : Base {
  using Base::Base;
  int wake(WaitWord&, int count) { return count; }
};
static_assert(!Transport<With<WakeReturnsCount>> && !WaitsOnWords<With<WakeReturnsCount>>);

template <class Base>
struct AliveIsCount : Base {
  using Base::Base;
  int alive(int) const { return 1; }
};
static_assert(!Transport<With<AliveIsCount>> && !KnowsLiveness<With<AliveIsCount>>);

template <class Base>
struct LeaseIsFlag : Base {
  using Base::Base;
  bool lease(int) { return true; }
};
static_assert(!Transport<With<LeaseIsFlag>> && !KnowsLiveness<With<LeaseIsFlag>>);

template <class Base>
struct DisagreementIsFlag : Base {
  using Base::Base;
  bool disagreement() const { return false; }
};
static_assert(!Transport<With<DisagreementIsFlag>> && !ComparesDescriptions<With<DisagreementIsFlag>>);

template <class Base>
struct NoteIsView : Base {
  using Base::Base;
  std::string_view note() const { return {}; }
};
static_assert(!Transport<With<NoteIsView>> && !KeepsNote<With<NoteIsView>>);

template <class Base>
struct SeatsAreCounted : Base {
  using Base::Base;
  int seats_here(int total) const { return total; }
};
static_assert(!Transport<With<SeatsAreCounted>> && !SeatsReplicas<With<SeatsAreCounted>>);

// What is a transport needs no explanation.
[[maybe_unused]] constexpr explain_transport<InProcess> explained_in_process;
[[maybe_unused]] constexpr explain_transport<SharedMemory> explained_shared_memory;
[[maybe_unused]] constexpr explain_transport<Minimal> explained_minimal;

}  // namespace

TEST_CASE("transports: the truth table of Transport holds at compile time", "[static][transport]") {
  SUCCEED();
}
