// SPDX-License-Identifier: MIT
/// @file
/// A first-in, first-out line of fixed capacity, and the tickets of those who stand in one.
#pragma once

#include <lockstep/config.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

LOCKSTEP_NAMESPACE_BEGIN

namespace protocol {

/// Names one request for its whole life; never reused. 0 names nothing.
using Ticket = std::uint64_t;

/// False for numbers that nobody counts to: they are damage, and the ones after them are 0.
constexpr bool is_ticket(Ticket number) { return number != 0 && number <= Ticket{1} << 62; }

/// Whether a request was let into the line.
enum class Admission {
  admitted,
  bad_request,  ///< the request itself means nothing; the state is unchanged
  full,         ///< no room in the line; the state is unchanged
};

/// At most `Capacity` values in order of arrival. Trivially copyable, so it may lie in a shared state. Two
/// lines are equal if they hold equal values in the same order.
template <class T, std::size_t Capacity>
class Fifo {
  static_assert(Capacity > 0);

 public:
  /// Most elements that it holds.
  static constexpr std::size_t capacity() { return Capacity; }
  /// Elements in it.
  constexpr std::size_t size() const { return size_; }
  /// Nothing is in it.
  constexpr bool is_empty() const { return size_ == 0; }
  /// `push_back` is not possible now.
  constexpr bool is_full() const { return size_ == Capacity; }

  /// The value at `position`, 0 = the head. @pre position < size()
  constexpr T& operator[](std::size_t position) { return ring_[wrapped(first_ + position)]; }
  /// The element at this position, 0 for the oldest. @pre position < size()
  constexpr const T& operator[](std::size_t position) const { return ring_[wrapped(first_ + position)]; }
  /// The oldest element. @pre not empty
  constexpr T& front() { return (*this)[0]; }
  /// The same, to be read.
  constexpr const T& front() const { return (*this)[0]; }
  /// The newest element. @pre not empty
  constexpr T& back() { return (*this)[size_ - 1]; }
  /// The same, to be read.
  constexpr const T& back() const { return (*this)[size_ - 1]; }

  /// @pre !is_full()
  constexpr void push(const T& value) {
    ring_[wrapped(first_ + size_)] = value;
    ++size_;
  }
  /// @pre !is_empty()
  constexpr void pop() {
    first_ = wrapped(first_ + 1);
    --size_;
  }
  /// Takes out the value at `position`; those behind it move up. @pre position < size()
  constexpr void erase(std::size_t position) {
    for (std::size_t i = position; i + 1 < size_; ++i) (*this)[i] = (*this)[i + 1];
    --size_;
  }

  /// False for bytes that are no line: its elements would lie outside of it.
  constexpr bool is_intact() const { return first_ < Capacity && size_ <= Capacity; }

  /// Equal elements in the same order.
  friend constexpr bool operator==(const Fifo& a, const Fifo& b) {
    if (a.size_ != b.size_) return false;
    for (std::size_t i = 0; i < a.size_; ++i)
      if (!(a[i] == b[i])) return false;
    return true;
  }

 private:
  static constexpr std::size_t wrapped(std::size_t at) { return at < Capacity ? at : at - Capacity; }

  std::array<T, Capacity> ring_{};
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace protocol

LOCKSTEP_NAMESPACE_END
