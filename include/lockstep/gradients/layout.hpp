// SPDX-License-Identifier: MIT
/// @file
/// The flat layout: where each variable lies in every array that belongs to the variables.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>
#include <lockstep/tensor/element_count.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Name and place of one variable. Offsets and sizes are in elements.
struct VariableInfo {
  std::string name;           ///< unique in its set, not empty
  std::uint32_t id;           ///< number in the order of `add`, from 0
  Index offset;               ///< first element; a multiple of the alignment
  Index size;                 ///< elements without padding
  std::vector<Index> shape;   ///< extents, outermost first; empty for a scalar
  bool column_major = false;  ///< in memory the first index runs fastest, not the last

  /// Number of dimensions: 0 for a scalar.
  int rank() const { return static_cast<int>(shape.size()); }
  /// Rows are the entries of the first dimension; a scalar is one row.
  Index rows() const { return shape.empty() ? 1 : shape.front(); }
  /// Elements per row.
  Index row_size() const { return rows() == 0 ? 0 : size / rows(); }
};

/// Variables one after the other, each on a 64-byte boundary and padded to the next one, so that a loop over
/// registers has no scalar head or tail.
class Layout {
 public:
  /// @param element_bytes size of the scalar type.
  explicit Layout(std::size_t element_bytes) : unit_(static_cast<Index>(k_alignment / element_bytes)) {}

  /// @throws InvalidArgument if the name is empty or taken, the shape has no elements, or there are
  /// 2^46 in all.
  const VariableInfo& add(std::string name, std::vector<Index> shape, bool column_major = false) {
    if (name.empty()) throw InvalidArgument("variables: a variable needs a name, got ''");
    const auto place = place_of(name);
    if (is_at(place, name)) detail::throw_error<InvalidArgument>("variables: the name '", name, "' is taken");
    const Index size = detail::element_count(shape);
    if (size <= 0)
      detail::throw_error<InvalidArgument>("variables: '", name, "' has shape ", detail::shape_text(shape),
                                           ", which has no elements");
    if (size > detail::k_most_elements - size_)
      detail::throw_error<InvalidArgument>("variables: '", name, "' has shape ", detail::shape_text(shape),
                                           ", which is too large: all variables may have ",
                                           detail::k_most_elements, " elements");
    const auto named = by_name_.insert(place, count());
    try {
      infos_.push_back({std::move(name), count(), size_, size, std::move(shape), column_major});
    } catch (...) {  // no memory
      by_name_.erase(named);
      throw;
    }
    size_ += (size + unit_ - 1) / unit_ * unit_;
    return infos_.back();
  }

  /// All variables, in the order of `add`.
  const std::vector<VariableInfo>& infos() const { return infos_; }
  /// The variable with this number. @pre id < count()
  const VariableInfo& operator[](std::uint32_t id) const { return infos_[id]; }
  /// Number of variables.
  std::uint32_t count() const { return static_cast<std::uint32_t>(infos_.size()); }
  /// Elements of one array of this layout, padding included.
  Index size() const { return size_; }
  /// Elements per alignment unit: 16 for float, 8 for double.
  Index unit() const { return unit_; }

  /// The variable whose padded range holds this element.
  std::uint32_t variable_at(Index element) const {
    const auto next = std::upper_bound(infos_.begin(), infos_.end(), element,
                                       [](Index at, const VariableInfo& info) { return at < info.offset; });
    return static_cast<std::uint32_t>(next - infos_.begin() - 1);
  }
  /// One past the padded range of a variable.
  Index end_of(std::uint32_t id) const { return id + 1 < count() ? infos_[id + 1].offset : size_; }

  /// The variable of this name; null if there is none.
  const VariableInfo* known(std::string_view name) const {
    const auto place = place_of(name);
    return is_at(place, name) ? &infos_[*place] : nullptr;
  }
  /// The variable of this name. @throws UnknownVariable
  const VariableInfo& find(std::string_view name) const {
    if (const VariableInfo* info = known(name)) return *info;
    detail::throw_error<UnknownVariable>("variables: no variable is called '", name, "'");
  }

 private:
  using ByName = std::vector<std::uint32_t>;

  /// Where the variable of this name is in their order by name, or would be.
  ByName::const_iterator place_of(std::string_view name) const {
    return std::lower_bound(
        by_name_.begin(), by_name_.end(), name,
        [&](std::uint32_t id, std::string_view other) { return infos_[id].name < other; });
  }
  bool is_at(ByName::const_iterator place, std::string_view name) const {
    return place != by_name_.end() && infos_[*place].name == name;
  }

  Index unit_;
  Index size_ = 0;
  std::vector<VariableInfo> infos_;
  ByName by_name_;
};

LOCKSTEP_NAMESPACE_END
