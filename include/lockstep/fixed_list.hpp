// SPDX-License-Identifier: MIT
/// @file
/// A list of bounded length.
#pragma once

#include <lockstep/config.hpp>

#include <array>
#include <cstddef>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// At most `capacity` values, in place: appending takes no memory and cannot fail. A contiguous range.
template <class T, std::size_t capacity>
class FixedList {
 public:
  /// @pre size() < capacity
  void push_back(const T& value) { values_[size_++] = value; }
  void clear() { size_ = 0; }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T* data() const { return values_.data(); }
  const T& operator[](std::size_t i) const { return values_[i]; }
  const T* begin() const { return values_.data(); }
  const T* end() const { return values_.data() + size_; }

 private:
  std::array<T, capacity> values_;
  std::size_t size_ = 0;
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
