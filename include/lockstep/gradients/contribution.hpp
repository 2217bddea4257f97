// SPDX-License-Identifier: MIT
/// @file
/// A contribution: one gradient for the whole variable set, with what is present in it and what it weighs.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/gradients/layout.hpp>
#include <lockstep/gradients/row_set.hpp>
#include <lockstep/transport/memory.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// What a contribution has for one variable. Absent is not zero.
enum class Presence : std::uint32_t { absent, dense, rows };

namespace detail {
/// In debug builds what a program is going to write, and has not yet, is NaN, so that it cannot be
/// overlooked.
#ifdef NDEBUG
constexpr bool k_fills_unwritten = false;
#else
constexpr bool k_fills_unwritten = true;
#endif
template <class G>
void fill_unwritten(G* data, Index size) {
  std::fill(data, data + size, std::numeric_limits<G>::quiet_NaN());
}
}  // namespace detail

/// Where the row set of each variable lies; the same for every contribution of a layout.
class RowLayout {
 public:
  /// Places the sets of all variables one after the other.
  explicit RowLayout(const Layout& layout) : places_(layout.count()) {
    for (const VariableInfo& info : layout.infos()) {
      places_[info.id] = {words_, numbers_};
      words_ += RowSet::memory_for(info.rows());
      numbers_ += RowSet::numbers_for(info.rows());
    }
  }
  /// Offsets of the set of variable `id` and of the numbers of its members, in words.
  struct Place {
    Index words;    ///< of the bits and their summary
    Index numbers;  ///< of the numbers of its members
  };
  /// The place of variable `id`.
  const Place& operator[](std::uint32_t id) const { return places_[id]; }
  /// Words of memory for all sets.
  Index words() const { return words_; }
  /// Words of memory for all numbers.
  Index numbers() const { return numbers_; }

 private:
  std::vector<Place> places_;
  Index words_ = 0;
  Index numbers_ = 0;
};

/// Fixed part of a contribution. The data hold \f$\sum_i (w_i/u)\, g_i\f$ over the gradients merged into it:
/// `unit` is the weight u of the first one, `total` is \f$\sum_i w_i\f$. So equal weights of any size leave
/// the bits alone.
struct alignas(k_alignment) ContributionHeader {
  double unit = 1;            ///< weight u of the first gradient merged into the data
  double total = 1;           ///< weight of all of them
  std::int64_t merged = 0;    ///< gradients merged into the data
  std::uint32_t epoch = 1;    ///< marks of older epochs mean absent
  std::uint32_t present = 0;  ///< variables with any gradient
  std::uint32_t sparse = 0;   ///< of these, with rows
};

/// One gradient in the flat layout, over memory that a transport or a trainer owns.
/// @tparam G scalar of the data.
template <class G>
class Contribution {
 public:
  Contribution() = default;

  /// Takes its arrays from `carver`; over a null base this only counts bytes.
  /// @param packs rows may lie one after the other, not at their own places: few pages are touched, but
  /// nothing can be added before they are spread.
  Contribution(Carver& carver, const Layout& layout, const RowLayout& rows, bool packs = false)
      : packs_(packs),
        layout_(&layout),
        row_layout_(&rows),
        header_(carver.array<ContributionHeader>(1)),
        marks_(carver.array<std::uint32_t>(layout.count())),
        row_words_(carver.array<std::uint64_t>(static_cast<std::size_t>(rows.words()))),
        row_numbers_(packs ? carver.array<std::uint64_t>(static_cast<std::size_t>(rows.numbers())) : nullptr),
        data_(carver.array<G>(static_cast<std::size_t>(layout.size()))) {}

  /// What the data mean: weights, and which variables are present.
  ContributionHeader& header() { return *header_; }
  /// The same, to be read.
  const ContributionHeader& header() const { return *header_; }
  /// First element, in the layout's order.
  G* data() { return data_; }
  /// The same, to be read.
  const G* data() const { return data_; }
  /// Where the variables lie.
  const Layout& layout() const { return *layout_; }

  /// What it has for variable `id`. Costs one look at a mark.
  Presence presence(std::uint32_t id) const {
    if (marks_[id] >> 2 != header_->epoch) return Presence::absent;
    return is_packed(id) ? Presence::rows : static_cast<Presence>(marks_[id] & 3);
  }
  /// Of a variable with rows: they lie one after the other, in ascending order.
  bool is_packed(std::uint32_t id) const { return (marks_[id] & 3) == k_packed; }
  /// The elements of one of its rows.
  G* row_data(std::uint32_t id, Index row) { return data_ + place_of(id, row); }
  /// The same, to be read.
  const G* row_data(std::uint32_t id, Index row) const { return data_ + place_of(id, row); }
  /// Every variable has a dense gradient.
  bool is_dense() const { return header_->present == layout_->count() && header_->sparse == 0; }
  /// No variable has a gradient.
  bool is_empty() const { return header_->present == 0; }

  /// The set of rows of variable `id`; of meaning where its presence is `rows`.
  RowSet rows(std::uint32_t id) { return row_set(id); }
  /// The same, to be read.
  const RowSet rows(std::uint32_t id) const { return row_set(id); }

  /// Forgets all gradients; the data stay as they are, unreachable.
  void clear() {
    if (header_->sparse > 0)
      for (std::uint32_t id = 0; id < layout_->count(); ++id)
        if (presence(id) == Presence::rows) rows(id).clear();
    // 30 bits of epoch stand beside 2 bits of presence; a wrap clears the marks for good.
    if (++header_->epoch >> 30 != 0) {
      std::fill(marks_, marks_ + layout_->count(), 0U);
      header_->epoch = 1;
    }
    header_->present = header_->sparse = 0;
    header_->merged = 0;
    header_->unit = header_->total = 1;
  }

  /// The same for memory that its last owner may have left at any instruction.
  void reset() {
    std::fill(marks_, marks_ + layout_->count(), 0U);
    std::fill(row_words_, row_words_ + row_layout_->words(), std::uint64_t{0});
    if (packs_) std::fill(row_numbers_, row_numbers_ + row_layout_->numbers(), std::uint64_t{0});
    *header_ = {};
  }
  /// Counts again what is present, where somebody may have died while marking.
  void recount() {
    header_->present = header_->sparse = 0;
    for (std::uint32_t id = 0; id < layout_->count(); ++id) {
      header_->present += presence(id) != Presence::absent;
      header_->sparse += presence(id) == Presence::rows;
    }
  }

  /// What is thrown where a variable has `has` and is to take `asked`.
  UsageError mixed(std::uint32_t id, const char* has, const char* asked) const {
    return UsageError(detail::text("gradient of '", (*layout_)[id].name, "': has ", has,
                                   " in this step, cannot also take ", asked));
  }
  /// Marks a variable as dense and gives its data. @throws UsageError if it has rows already.
  G* mark_dense(std::uint32_t id) {
    const Presence now = presence(id);
    if (now == Presence::rows) throw mixed(id, "rows", "a dense gradient");
    if (now == Presence::absent) mark(id, Presence::dense);
    return data_ + (*layout_)[id].offset;
  }

  /// Marks all variables as dense. @throws UsageError if one has rows already; nothing has happened then.
  void mark_all_dense() {
    if (header_->sparse > 0)
      for (std::uint32_t id = 0; id < layout_->count(); ++id)
        if (presence(id) == Presence::rows) throw mixed(id, "rows", "a dense gradient");
    std::fill(marks_, marks_ + layout_->count(), mark_of(Presence::dense));
    header_->present = static_cast<std::uint32_t>(layout_->count());
  }

  /// Marks a variable as row-sparse, with rows at their own places. @throws UsageError if it has a dense
  /// gradient already.
  void mark_rows(std::uint32_t id) {
    const Presence now = presence(id);
    if (now == Presence::dense) throw mixed(id, "a dense gradient", "rows");
    if (now == Presence::rows) return spread(id);
    mark(id, Presence::rows);
    ++header_->sparse;
  }
  /// Marks a variable without a gradient as row-sparse, with rows one after the other. False if it cannot be.
  bool mark_packed_rows(std::uint32_t id) {
    if (!packs_ || presence(id) != Presence::absent) return false;
    mark(id, Presence::rows);
    marks_[id] |= k_packed;
    ++header_->sparse;
    return true;
  }
  /// Takes back the rows of a variable that has rows: it has no gradient.
  void drop_rows(std::uint32_t id) {
    rows(id).clear();
    marks_[id] = 0;
    --header_->sparse;
    --header_->present;
  }
  /// Moves the rows of a variable to their own places, the last one first, if they are packed.
  void spread(std::uint32_t id) {
    if (presence(id) != Presence::rows || !is_packed(id)) return;
    const VariableInfo& info = (*layout_)[id];
    const RowSet members = rows(id);
    G* data = data_ + info.offset;
    members.for_each_backwards([&](Index row) {
      const Index from = members.number(row), width = info.row_size();
      if (from != row) std::copy_n(data + from * width, width, data + row * width);
    });
    marks_[id] = mark_of(Presence::rows);
  }

  /// Writes zeros where variable `id` has no gradient, so that its whole range may be looked at. Writes
  /// nothing the second time, so views that others took after the first time stay valid.
  void zero_absent(std::uint32_t id) {
    const VariableInfo& info = (*layout_)[id];
    G* data = data_ + info.offset;
    const Presence now = presence(id);
    if (now == Presence::dense) return;
    spread(id);
    const Index width = info.row_size();
    for (Index row = 0; row < info.rows(); ++row)
      if (now == Presence::absent || !rows(id).contains(row))
        for (G* element = data + row * width; element != data + (row + 1) * width; ++element)
          if (!is_plus_zero(*element)) *element = static_cast<G>(0);
  }

  /// Makes the presence of one variable the union of its own and the other's; used after data were merged.
  template <class H>
  void unite_presence(std::uint32_t id, const Contribution<H>& other) {
    const Presence theirs = other.presence(id);
    const Presence ours = presence(id);
    if (theirs == Presence::absent || ours == Presence::dense) return;
    spread(id);
    if (theirs == Presence::dense) {
      if (ours == Presence::rows) drop_rows(id);
      mark(id, Presence::dense);
      return;
    }
    mark_rows(id);
    rows(id).insert_all(other.rows(id));
  }

 private:
  RowSet row_set(std::uint32_t id) const {
    const RowLayout::Place& at = (*row_layout_)[id];
    return {row_words_ + at.words, packs_ ? row_numbers_ + at.numbers : nullptr, (*layout_)[id].rows()};
  }
  Index place_of(std::uint32_t id, Index row) const {
    const VariableInfo& info = (*layout_)[id];
    return info.offset + (is_packed(id) ? rows(id).number(row) : row) * info.row_size();
  }
  static bool is_plus_zero(const G& element) {
    const G zero{};
    return std::memcmp(&element, &zero, sizeof(G)) == 0;  // NOLINT: -0 has other bits
  }
  void mark(std::uint32_t id, Presence presence) {
    marks_[id] = mark_of(presence);
    ++header_->present;
  }
  std::uint32_t mark_of(Presence presence) const {
    return header_->epoch << 2 | static_cast<std::uint32_t>(presence);
  }

  static constexpr std::uint32_t k_packed = 3;  // beside the values of `Presence` in a mark

  bool packs_ = false;
  const Layout* layout_ = nullptr;
  const RowLayout* row_layout_ = nullptr;
  ContributionHeader* header_ = nullptr;
  std::uint32_t* marks_ = nullptr;
  std::uint64_t* row_words_ = nullptr;
  std::uint64_t* row_numbers_ = nullptr;  // only if it packs
  G* data_ = nullptr;
};

LOCKSTEP_NAMESPACE_END
