// SPDX-License-Identifier: MIT
// Which types are observers, and that the one that observes nothing takes nothing.
#include "support/catch.hpp"
#include <lockstep/lockstep.hpp>
#include <lockstep/observe/chrome_trace.hpp>
#include <lockstep/observe/metrics.hpp>

#include <string>
#include <type_traits>

using namespace lockstep;

namespace {

struct Spans {
  void on(const Span&) noexcept {}
};
struct Steps {
  void on(const StepEnd&) noexcept {}
};
static_assert(Observer<NoObserver> && !SeesSpans<NoObserver> && !SeesSteps<NoObserver>);
static_assert(Observer<Spans> && SeesSpans<Spans> && !SeesSteps<Spans>);
static_assert(Observer<Steps> && !SeesSpans<Steps> && SeesSteps<Steps>);
static_assert(IsTold<Spans> && IsTold<Steps> && !IsTold<NoObserver>);
// Told by address, and not moved into a trainer, where nobody could read them.
static_assert(IsTold<ChromeTrace> && SeesSpans<ChromeTrace> && SeesSteps<ChromeTrace> &&
              !Observer<ChromeTrace>);
static_assert(IsTold<Metrics> && SeesSpans<Metrics> && SeesSteps<Metrics> && !Observer<Metrics>);

static_assert(Observer<ObservedBy<ChromeTrace, Metrics>>);
static_assert(SeesSpans<ObservedBy<Spans>> && !SeesSteps<ObservedBy<Spans>>);
static_assert(!SeesSpans<ObservedBy<Steps>> && SeesSteps<ObservedBy<Steps>>);
static_assert(SeesSpans<ObservedBy<Steps, Spans>> && SeesSteps<ObservedBy<Steps, Spans>>);
static_assert(std::is_same_v<decltype(ObservedBy{std::declval<Spans&>(), std::declval<Steps&>()}),
                             ObservedBy<Spans, Steps>>);

struct Misspelt {
  void no(const Span&) noexcept {}
};
struct Throws {
  void on(const Span&) {}
};
struct ThrowsInOne {
  void on(const Span&) noexcept {}
  void on(const StepEnd&) {}
};
struct Pinned : Spans {
  Pinned() = default;
  Pinned(Pinned&&) = delete;
};
static_assert(IsTold<Pinned> && !IsTold<Throws> && !IsTold<Misspelt>);
static_assert(!Observer<int> && !Observer<std::string> && !Observer<Misspelt>);
static_assert(!Observer<Throws> && !Observer<ThrowsInOne> && !Observer<Pinned>);

// Off, there is nothing: no state, and nothing to do when a timer ends.
using Off = detail::SpanTimer<NoObserver>;
static_assert(std::is_empty_v<Off> && std::is_trivially_destructible_v<Off> &&
              std::is_trivially_default_constructible_v<Off>);
static_assert(!std::is_empty_v<detail::SpanTimer<Spans>>);
template <class O>
using EngineOf = detail::RoundEngine<Adam, InProcess, float, float, O>;
template <class O>
constexpr std::size_t participant_size = sizeof(detail::Participant<EngineOf<O>>);
static_assert(participant_size<NoObserver> == participant_size<Steps> &&
              participant_size<NoObserver> + sizeof(detail::SpanTimer<Spans>) == participant_size<Spans>);
static_assert(sizeof(EngineOf<NoObserver>) <= sizeof(EngineOf<ObservedBy<Spans>>));

// Trainers are written as before, and the observer is the last parameter.
static_assert(std::is_same_v<SyncReplicas<Adam>, SyncReplicas<Adam, InProcess, float, float, NoObserver>>);
static_assert(std::is_same_v<decltype(SyncReplicas{Adam{}, std::declval<Variables<double>&>(), SyncOptions{},
                                                   InProcess{}, Spans{}}),
                             SyncReplicas<Adam, InProcess, double, double, Spans>>);
static_assert(Trainer<SyncReplicas<Adam, InProcess, float, float, Spans>>);
static_assert(
    Trainer<GradientAggregation<SyncReplicas<Adam, SharedMemory, float, float, ObservedBy<Spans>>>>);

}  // namespace

TEST_CASE("observer: the concept is checked when this file is compiled", "[observe][static]") { SUCCEED(); }
