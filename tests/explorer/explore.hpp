// SPDX-License-Identifier: MIT
/// @file
/// Breadth-first search through every order of events of a small model, with the shortest way to a broken
/// invariant.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::test {

/// Thrown by a model: the name of the invariant that does not hold, and what was seen instead.
struct Violation {
  std::string_view invariant;
  std::string seen;
};

/// Throws a `Violation` unless `holds`.
inline void expect(bool holds, std::string_view invariant, const char* seen) {
  if (!holds) throw Violation{invariant, seen};
}

struct Exploration {
  std::size_t states = 0;
  std::size_t transitions = 0;
  std::string_view violated;  ///< name of the broken invariant; empty if all hold
  std::string report;         ///< what was seen, and the events that lead there
};

/// Whether an event belongs to the undisturbed course of things, and whether it completes it.
enum class Role : std::uint8_t { disturbance, progress, goal };

/// Small non-negative numbers, packed: two states are the same if their bits are.
template <std::size_t Words>
class Bits {
 public:
  /// Appends `value` with `width` bits. @throws std::logic_error if it does not fit: the model's bounds are
  /// wrong then.
  void put(std::int64_t value, unsigned width) {
    if (value < 0 || value >> width != 0 || used_ + width > 64 * Words)
      throw std::logic_error("Bits: no room for a value");
    const unsigned word = used_ / 64, shift = used_ % 64;
    words_[word] |= static_cast<std::uint64_t>(value) << shift;
    if (shift + width > 64) words_[word + 1] |= static_cast<std::uint64_t>(value) >> (64 - shift);
    used_ += width;
  }
  std::uint64_t hash() const {
    std::uint64_t h = 0x9E3779B97F4A7C15U;
    for (const std::uint64_t word : words_) {
      h = (h ^ word) * 0xBF58476D1CE4E5B9U;
      h ^= h >> 31;
    }
    return h;
  }
  friend bool operator==(const Bits& a, const Bits& b) { return a.words_ == b.words_; }

 private:
  std::array<std::uint64_t, Words> words_{};
  unsigned used_ = 0;
};

/// Numbers keys in order of insertion.
template <class Key>
class KeyTable {
 public:
  /// The number of `key`, and whether it is new.
  std::pair<std::uint32_t, bool> insert(const Key& key) {
    if (2 * (keys_.size() + 1) > table_.size()) grow();
    std::uint32_t& cell = find(key);
    if (cell != 0) return {cell - 1, false};
    keys_.push_back(key);
    cell = static_cast<std::uint32_t>(keys_.size());
    return {cell - 1, true};
  }
  std::size_t size() const { return keys_.size(); }

 private:
  std::uint32_t& find(const Key& key) {
    std::size_t i = key.hash() & (table_.size() - 1);
    while (table_[i] != 0 && !(keys_[table_[i] - 1] == key)) i = (i + 1) & (table_.size() - 1);
    return table_[i];
  }
  void grow() {
    table_.assign(std::max<std::size_t>(1024, 2 * table_.size()), 0);
    for (std::size_t i = 0; i < keys_.size(); ++i) find(keys_[i]) = static_cast<std::uint32_t>(i + 1);
  }

  std::vector<Key> keys_;
  std::vector<std::uint32_t> table_;  // number + 1; 0: empty
};

/// Sums of the whole program, printed at its end.
class Totals {
 public:
  ~Totals() { std::printf("explorer: %zu states, %zu transitions\n", states_, transitions_); }
  void add(std::size_t states, std::size_t transitions) {
    states_ += states;
    transitions_ += transitions;
  }

 private:
  std::size_t states_ = 0, transitions_ = 0;
};
inline Totals totals;

/// Visits every state that `model` can reach, until an invariant breaks.
///
/// A model has `State`, `Event`, and a `Key` that tells states apart by all that matters to their future;
/// `initial()`; `is_bound(state)`: it is not followed further; `events(state, list)`: what can happen,
/// progress in the order of preference; `after(state, event)`: throws `Violation`; `role(state, event,
/// next)`; `check_stuck(state)`: throws if a state without progress should have some; `text(event)`.
///
/// Beside the model's own invariants, following the first progress event of each state must end: at a goal,
/// at a bound or in a state that may be stuck.
template <class Model>
class Explorer {
  using State = typename Model::State;
  using Event = typename Model::Event;

 public:
  explicit Explorer(Model& model) : model_(model) {}

  Exploration run() {
    try {
      search();
      follow();
    } catch (const Violation& violation) {
      result_.violated = violation.invariant;
      result_.report = std::string(violation.invariant) + ": " + violation.seen + "; after:" + way_to(at_);
      if (during_) result_.report += "\n  " + model_.text(*during_);
    }
    result_.states = keys_.size();
    return result_;
  }

 private:
  static constexpr std::size_t k_most_states = 20'000'000;
  static constexpr std::uint32_t k_ends = 0xFFFFFFFFU;  // the course of things ends here, as it should

  struct Arrival {
    std::uint32_t from;
    Event by;
  };

  void search() {
    arrivals_.push_back({k_ends, Event{}});
    courses_.push_back(k_ends);
    std::vector<State> level{model_.initial()}, next;
    std::vector<Event> events;
    keys_.insert(model_.key(level.front()));
    for (std::uint32_t first = 0; !level.empty();
         first += static_cast<std::uint32_t>(level.size()), level.swap(next)) {
      next.clear();
      for (std::size_t i = 0; i < level.size(); ++i) {
        at_ = first + static_cast<std::uint32_t>(i);
        expand(level[i], events, next);
      }
    }
  }

  void expand(const State& state, std::vector<Event>& events, std::vector<State>& next) {
    if (model_.is_bound(state)) return;
    events.clear();
    model_.events(state, events);
    bool is_first = true;
    for (const Event& event : events) {
      during_ = event;
      State after = model_.after(state, event);
      ++result_.transitions;
      const auto [number, is_new] = keys_.insert(model_.key(after));
      const Role role = model_.role(state, event, after);
      if (role != Role::disturbance && std::exchange(is_first, false))
        courses_[at_] = role == Role::goal ? k_ends : number;
      if (!is_new) continue;
      if (keys_.size() > k_most_states)
        throw std::runtime_error("explore: the bounds of the model are too wide");
      arrivals_.push_back({at_, event});
      courses_.push_back(k_ends);
      next.push_back(std::move(after));
    }
    during_.reset();
    if (is_first) model_.check_stuck(state);
  }

  /// From every state, the undisturbed course of things ends.
  void follow() {
    std::vector<std::uint32_t> seen(courses_.size(), 0);
    for (std::uint32_t start = 0; start < courses_.size(); ++start) {
      std::uint32_t i = start;
      for (; i != k_ends && seen[i] == 0; i = courses_[i]) seen[i] = start + 1;
      if (i != k_ends && seen[i] == start + 1) {
        at_ = i;
        throw Violation{Model::k_can_go_on, "the same states come again and again"};
      }
    }
  }

  std::string way_to(std::uint32_t number) const {
    std::vector<std::string> lines;
    for (; arrivals_[number].from != k_ends; number = arrivals_[number].from)
      lines.push_back("\n  " + model_.text(arrivals_[number].by));
    std::string text;
    for (auto line = lines.rbegin(); line != lines.rend(); ++line) text += *line;
    return text;
  }

  Model& model_;
  Exploration result_;
  KeyTable<typename Model::Key> keys_;
  std::vector<Arrival> arrivals_;       // per state: how it was reached first
  std::vector<std::uint32_t> courses_;  // per state: where its first progress event leads
  std::uint32_t at_ = 0;
  std::optional<Event> during_;
};

/// Explores and prints one line. The states of runs that stop at a violation do not count in the totals.
template <class Model>
Exploration explore(Model model, const std::string& name) {
  const Exploration result = Explorer<Model>(model).run();
  if (result.violated.empty()) totals.add(result.states, result.transitions);
  std::printf("%s: %zu states, %zu transitions%s\n", name.c_str(), result.states, result.transitions,
              result.violated.empty() ? "" : ", objects");
  return result;
}

}  // namespace lockstep::test
