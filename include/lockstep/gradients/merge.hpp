// SPDX-License-Identifier: MIT
/// @file
/// Merging one contribution into another: weighted sums, presence and weights.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/gradients/finite.hpp>
#include <lockstep/gradients/mean.hpp>
#include <lockstep/gradients/own_contribution.hpp>
#include <lockstep/gradients/runs.hpp>

#include <Eigen/Core>

#include <concepts>
#include <memory>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Forms `first + c * second` in the memory of `target`, which is one of the two; c is the ratio of their
/// units. The target becomes a contribution with the presence and the weight of both. `first` keeps
/// coefficient 1, so a chain of merges gives the same bits as one sum in the same order.
/// @param scratch only spares an allocation.
template <class T>
void merge(const Contribution<T>& first, const Contribution<T>& second, Contribution<T>& target,
           Contributors<T, T>& scratch) {
  const ContributionHeader ahead = first.header(), behind = second.header();
  for (std::uint32_t id = 0; id < target.layout().count(); ++id) target.spread(id);
  scratch.clear();
  scratch.scale = 1;
  scratch.by_present = false;
  scratch.add(first, 1, 0);
  scratch.add(second, behind.unit / ahead.unit, 0);
  const Layout& layout = target.layout();
  const auto add = [&](Index start, Index size, const Sources<T, T>& sources) {
    if (sources.count == 1 && sources.data[0] == target.data() && !sources.weighted) return;
    sum_elements(sources, target.data(), start, size);
  };
  Runs<T, T> runs(layout, scratch);
  if (runs.is_dense()) {
    add(0, layout.size(), runs.all_sources());
  } else {
    for (std::uint32_t id = 0; id < layout.count(); ++id)
      for (runs.start(id, layout[id].offset, layout.end_of(id)); runs.next();)
        if (runs.has_gradient()) add(runs.begin(), runs.size(), runs.sources());
  }
  const Contribution<T>& other = &target == &first ? second : first;
  if (!target.is_dense())
    for (std::uint32_t id = 0; id < layout.count(); ++id) target.unite_presence(id, other);
  target.header().unit = ahead.unit;
  target.header().total = ahead.total + behind.total;
  target.header().merged = ahead.merged + behind.merged;
}

/// `sum += c * addend`, or `sum = addend` if it is the first, for sums of a wider scalar than the addends.
template <class T, class G>
void add_wide(Contribution<T>& sum, const Contribution<G>& addend, bool first, Contributors<T, G>& scratch) {
  if (first) {
    sum.clear();
    sum.header().unit = addend.header().unit;
    sum.header().total = 0;
  }
  scratch.clear();
  scratch.scale = 1;
  scratch.by_present = false;
  if (!first) scratch.window = &sum;
  scratch.add(addend, addend.header().unit / sum.header().unit, 0);
  Runs<T, G> runs(sum.layout(), scratch);
  for (std::uint32_t id = 0; id < sum.layout().count(); ++id)
    for (runs.start(id, sum.layout()[id].offset, sum.layout().end_of(id)); runs.next();)
      if (runs.has_gradient() && runs.sources().count > 0)
        sum_elements(runs.sources(), sum.data(), runs.begin(), runs.size());
  for (std::uint32_t id = 0; id < sum.layout().count(); ++id) sum.unite_presence(id, addend);
  sum.header().total += addend.header().total;
}

/// Writes `scale * sum` to a contribution of narrower scalars: the only rounding of a window.
template <class T, class G>
void narrow(const Contribution<T>& sum, Contribution<G>& to, double scale) {
  to.clear();
  for_each_present(sum, [&](const T* data, Index size) {
    G* target = to.data() + (data - sum.data());
    for (Index i = 0; i < size; ++i) target[i] = static_cast<G>(static_cast<T>(scale) * data[i]);
  });
  for (std::uint32_t id = 0; id < sum.layout().count(); ++id) to.unite_presence(id, sum);
}

/// Adds each contribution of one replica to a round to those that it has given before. Sums of gradients that
/// are narrower than the variables are kept wide, so that what is published has been rounded once, however
/// many there are.
template <class T, class G>
class Merger {
 public:
  /// `latest` becomes the sum of both. @param earlier the sum of those before, as it is published.
  void operator()(const Contribution<G>& earlier, Contribution<G>& latest) {
    if constexpr (std::same_as<T, G>) {
      merge(earlier, latest, latest, scratch_);
    } else {
      const ContributionHeader ahead = earlier.header(), behind = latest.header();
      if (!wide_) wide_ = std::make_unique<OwnContribution<T>>(latest.layout());
      Contribution<T>& sum = wide_->get();
      // It is another sum if the last one was refused or withdrawn, and the first merge of each round begins
      // one.
      if (sum.header().merged != ahead.merged || ahead.merged == 1) add_wide(sum, earlier, true, scratch_);
      add_wide(sum, latest, false, scratch_);
      narrow(sum, latest, 1);
      sum.header().merged = latest.header().merged = ahead.merged + behind.merged;
      latest.header().unit = ahead.unit;
      latest.header().total = ahead.total + behind.total;
    }
  }

 private:
  Contributors<T, G> scratch_;
  std::unique_ptr<OwnContribution<T>> wide_;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
