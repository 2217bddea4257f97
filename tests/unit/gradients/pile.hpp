// SPDX-License-Identifier: MIT
/// @file
/// Contributions over memory of their own, and numbers to fill them with.
#pragma once

#include <lockstep/error.hpp>
#include <lockstep/gradients/contribution.hpp>
#include <lockstep/transport/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <type_traits>
#include <vector>

namespace lockstep::test {

/// A scalar of variables, and one of gradients.
template <class Scalar, class Gradient>
struct Kind {
  using T = Scalar;
  using G = Gradient;
};

/// Around a register, the 64-byte unit and a tile.
inline constexpr Index k_sizes[] = {1, 3, 15, 16, 17, 31, 32, 33, 4095, 4096, 4097};

/// Variables called v0, v1, ... of elements of type T.
template <class T>
Layout layout_of(const std::vector<std::vector<Index>>& shapes) {
  Layout layout(sizeof(T));
  for (const auto& shape : shapes) layout.add(detail::text('v', layout.count()), shape);
  return layout;
}

/// Memory for all that `make(carver)` takes.
class CarvedMemory {
 public:
  template <class Make>
  explicit CarvedMemory(Make&& make) : memory_(bytes(make)), carver_(memory_.bytes().data()) {}
  Carver& carver() { return carver_; }
  auto bytes() { return memory_.bytes(); }

 private:
  template <class Make>
  static std::size_t bytes(Make& make) {
    Carver counter;
    make(counter);
    return counter.used();
  }
  ZeroedMemory memory_;
  Carver carver_;
};

/// One contribution in memory of its own, not movable.
template <class G>
class Owned {
 public:
  Owned(const Layout& layout, const RowLayout& rows, bool packs = false)
      : memory_([&](Carver& carver) { (void)Contribution<G>(carver, layout, rows, packs); }),
        contribution_(memory_.carver(), layout, rows, packs) {
    contribution_.clear();
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Contribution<G>& operator*() { return contribution_; }
  Contribution<G>* operator->() { return &contribution_; }

 private:
  CarvedMemory memory_;
  Contribution<G> contribution_;
};

/// Several contributions for one layout, whose elements have the size of T.
template <class T, class G = T>
class Pile {
 public:
  Pile(const std::vector<std::vector<Index>>& shapes, int count)
      : layout(layout_of<T>(shapes)), rows(layout) {
    for (int i = 0; i < count; ++i) members_.push_back(std::make_unique<Owned<G>>(layout, rows));
  }
  Contribution<G>& operator[](int i) { return **members_[static_cast<std::size_t>(i)]; }

  const Layout layout;
  const RowLayout rows;

 private:
  std::vector<std::unique_ptr<Owned<G>>> members_;
};

/// A plain generator whose numbers are the same everywhere.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15U + 1) {}
  std::uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  /// In [0, count).
  Index below(Index count) { return static_cast<Index>(next() >> 11) % count; }
  bool chance(int percent) { return below(100) < percent; }
  /// In (-4, 4), with more digits than any scalar type keeps.
  double real() { return (static_cast<double>(next() >> 11) * 0x1p-53 - 0.5) * 8; }
  /// A multiple of 1/8 in [-4, 4), exact in every scalar type.
  double exact() { return static_cast<double>(below(64) - 32) / 8; }

 private:
  std::uint64_t state_;
};

/// Rounds here, so that no compiler fuses an addition with the multiplication before it.
template <class T>
T rounded(T value) {
  volatile T kept = value;
  return kept;
}

/// The same bits, so -0 is not 0.
template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// Writes a dense gradient for variable `id`.
template <class G>
void fill_dense(Contribution<G>& to, std::uint32_t id, Numbers& numbers) {
  G* data = to.mark_dense(id);
  for (Index i = 0; i < to.layout()[id].size; ++i) data[i] = static_cast<G>(numbers.real());
}

/// Writes rows for variable `id`.
template <class G>
void fill_rows(Contribution<G>& to, std::uint32_t id, const std::set<Index>& rows, Numbers& numbers) {
  to.mark_rows(id);
  const VariableInfo& info = to.layout()[id];
  RowSet members = to.rows(id);
  for (const Index row : rows) {
    members.insert(row);
    for (Index j = 0; j < info.row_size(); ++j)
      to.data()[info.offset + row * info.row_size() + j] = static_cast<G>(numbers.real());
  }
}

/// Absent, dense or some rows, for each variable.
template <class G>
void fill_mixed(Contribution<G>& to, Numbers& numbers) {
  for (const VariableInfo& info : to.layout().infos()) {
    const Index kind = numbers.below(4);
    if (kind == 0) continue;
    if (kind == 1) {
      fill_dense(to, info.id, numbers);
      continue;
    }
    std::set<Index> rows;
    for (Index i = numbers.below(5); i > 0; --i) rows.insert(numbers.below(info.rows()));
    fill_rows(to, info.id, rows, numbers);
  }
}

/// Whether an element, padding not included, has a gradient.
template <class G>
bool has_element(const Contribution<G>& contribution, Index element) {
  const VariableInfo& info = contribution.layout()[contribution.layout().variable_at(element)];
  if (element >= info.offset + info.size) return false;
  const Presence presence = contribution.presence(info.id);
  return presence == Presence::dense ||
         (presence == Presence::rows &&
          contribution.rows(info.id).contains((element - info.offset) / info.row_size()));
}

}  // namespace lockstep::test
