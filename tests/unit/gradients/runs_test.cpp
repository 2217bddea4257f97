// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/gradients/runs.hpp>

#include <algorithm>
#include <map>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// What a visit said about one element.
template <class T, class G>
struct Seen {
  int times = 0;
  bool with = false, in_present_variable = false;
  Sources<T, G> sources;
};

/// Visits every variable, cut at `cuts` elements, and compares each element with a plain test of presence.
/// @return what is wrong, or "".
template <class T, class G>
std::string disagreement(const Layout& layout, const Contributors<T, G>& from, Index cut) {
  Runs<T, G> runs(layout, from);
  std::vector<Seen<T, G>> seen(static_cast<std::size_t>(layout.size()));
  std::string trouble;
  for (std::uint32_t id = 0; id < layout.count(); ++id) {
    Index last = layout[id].offset;
    for (Index begin = layout[id].offset; begin < layout.end_of(id); begin += cut) {
      const Index end = std::min(begin + cut, layout.end_of(id));
      const auto note = [&](Index start, Index size, bool with, bool in_present,
                            const Sources<T, G>* sources) {
        if (start < begin || size < 1 || start + size > end) trouble += "run outside of the range; ";
        if (start < last) trouble += "runs out of order; ";
        last = start + size;
        for (Index i = start; i < start + size; ++i) {
          Seen<T, G>& element = seen[static_cast<std::size_t>(i)];
          ++element.times;
          element.with = with;
          element.in_present_variable = in_present;
          if (sources) element.sources = *sources;
        }
      };
      for (runs.start(id, begin, end); runs.next();)
        note(runs.begin(), runs.size(), runs.has_gradient(), runs.in_present_variable(),
             runs.has_gradient() ? &runs.sources() : nullptr);
    }
  }
  for (const VariableInfo& info : layout.infos()) {
    bool variable_present = from.window && from.window->presence(info.id) != Presence::absent;
    for (const auto* c : from.all)
      variable_present = variable_present || c->presence(info.id) != Presence::absent;
    for (Index i = info.offset; i < info.offset + info.size; ++i) {
      const Seen<T, G>& element = seen[static_cast<std::size_t>(i)];
      if (element.times != 1)
        return trouble + detail::text("element ", i, " visited ", element.times, " times");
      std::vector<const G*> data;
      std::vector<T> coefficients;
      double total = 0;
      for (std::size_t k = 0; k < from.all.size(); ++k) {
        if (!has_element(*from.all[k], i)) continue;
        data.push_back(from.all[k]->data());
        coefficients.push_back(static_cast<T>(from.coefficient[k]));
        total += from.total[k];
      }
      const bool has_window = from.window && has_element(*from.window, i);
      if (element.with != (has_window || !data.empty()))
        return trouble + detail::text("element ", i, " has the wrong kind");
      if (element.in_present_variable != variable_present)
        return trouble + detail::text("element ", i, ": presence of its variable");
      if (!element.with) continue;
      const Sources<T, G>& sources = element.sources;
      if (sources.wide != (has_window ? from.window->data() : nullptr))
        return trouble + detail::text("element ", i, ": window");
      if (sources.count != static_cast<int>(data.size()) ||
          !std::equal(data.begin(), data.end(), sources.data.begin()) ||
          !std::equal(coefficients.begin(), coefficients.end(), sources.coefficient.begin()))
        return trouble + detail::text("element ", i, ": sources");
      if (sources.scale != static_cast<T>(from.by_present ? from.factor / total : from.scale))
        return trouble + detail::text("element ", i, ": scale");
    }
  }
  return trouble;
}

template <class T, class G>
Contributors<T, G> contributors(Pile<T, G>& pile, int count) {
  Contributors<T, G> from;
  for (int i = 0; i < count; ++i) from.add(pile[i], i == 0 ? 1 : 0.5 * i, 1 + i);
  from.scale = 0.25;
  from.factor = 0.5;
  return from;
}

}  // namespace

TEST_CASE("runs: random presences agree with a test of each element", "[gradients][runs]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Numbers numbers(seed);
    const int count = static_cast<int>(1 + numbers.below(5));
    Pile<float> pile({{1}, {17}, {5, 3}, {64, 2}, {65}, {130, 1}, {}, {3, 5, 2}}, count);
    for (int i = 0; i < count; ++i) fill_mixed(pile[i], numbers);
    Contributors<float, float> from = contributors(pile, count);
    from.by_present = numbers.chance(50);
    for (const Index cut : {16, 32, 48, 100000}) CHECK(disagreement(pile.layout, from, cut) == "");
  }
}

TEST_CASE("runs: rows beside the boundaries of words and groups", "[gradients][runs]") {
  const std::set<Index> edges{0, 63, 64, 127, 128, 4095, 4096, 4097, 8191, 8192, 9000};
  for (const Index width : {1, 3, 16}) {
    Pile<float> pile({{2}, {9001, width}, {3}}, 3);
    Numbers numbers(3);
    fill_rows(pile[0], 1, edges, numbers);
    fill_rows(pile[1], 1, {63, 65, 4095, 8192}, numbers);
    fill_dense(pile[2], 0, numbers);
    const auto from = contributors(pile, 3);
    for (const Index cut : {16, 4096, 1 << 20}) {
      INFO("rows of " << width << ", cut " << cut);
      CHECK(disagreement(pile.layout, from, cut) == "");
    }
  }
}

TEST_CASE("runs: a dense gradient beside rows of another covers all rows", "[gradients][runs]") {
  Pile<double> pile({{70, 3}}, 2);
  Numbers numbers(4);
  fill_dense(pile[0], 0, numbers);
  fill_rows(pile[1], 0, {0, 64, 69}, numbers);
  CHECK(disagreement(pile.layout, contributors(pile, 2), 8) == "");
}

TEST_CASE("runs: row sets without members leave every row without a gradient", "[gradients][runs]") {
  Pile<float> pile({{70, 3}, {5}}, 1);
  Numbers numbers(4);
  fill_rows(pile[0], 0, {}, numbers);
  const auto from = contributors(pile, 1);
  CHECK(disagreement(pile.layout, from, 1 << 20) == "");
  CHECK(disagreement(pile.layout, from, 16) == "");
}

TEST_CASE("runs: where everything is dense one run may span variables", "[gradients][runs]") {
  Pile<float> pile({{3}, {20}, {}}, 2);
  Numbers numbers(6);
  for (int i = 0; i < 2; ++i)
    for (std::uint32_t id = 0; id < 3; ++id) fill_dense(pile[i], id, numbers);
  const auto from = contributors(pile, 2);
  Runs<float, float> runs(pile.layout, from);
  CHECK(runs.is_dense());
  CHECK(runs.all_sources().count == 2);
  CHECK(runs.all_sources().scale == 0.25F);
  CHECK(disagreement(pile.layout, from, 16) == "");
  pile[1].clear();
  CHECK_FALSE(Runs<float, float>(pile.layout, from).is_dense());
}

TEST_CASE("runs: a window of wider scalars comes first", "[gradients][runs]") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    INFO("seed " << seed);
    Numbers numbers(seed + 100);
    const std::vector<std::vector<Index>> shapes{{1}, {17}, {5, 3}, {65, 2}, {130}};
    Pile<float, Eigen::half> pile(shapes, 2);
    Owned<float> window(pile.layout, pile.rows);
    fill_mixed(*window, numbers);
    for (int i = 0; i < 2; ++i) fill_mixed(pile[i], numbers);
    Contributors<float, Eigen::half> from = contributors(pile, 2);
    from.window = &*window;
    for (const Index cut : {16, 1 << 20}) CHECK(disagreement(pile.layout, from, cut) == "");
  }
}
