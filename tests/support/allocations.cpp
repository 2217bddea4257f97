// SPDX-License-Identifier: MIT
/// @file
/// Replaces operator new and delete by ones that allocation_count. The array and nothrow forms of the library
/// call these. They are weak, because the sanitizers of clang bring their own, which then win and
/// allocation_count nothing.
#include "support/allocations.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local std::uint64_t allocation_count = 0;
thread_local std::uint64_t failing_allocation = 0;  // none

void* allocate(std::size_t bytes) noexcept {
  if (++allocation_count == failing_allocation) return nullptr;
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* allocate(std::size_t bytes, std::align_val_t alignment) noexcept {
  if (++allocation_count == failing_allocation) return nullptr;
  const auto unit = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(unit, (bytes / unit + 1) * unit);
}

}  // namespace

std::uint64_t lockstep::test::allocations() { return allocation_count; }
bool lockstep::test::are_allocations_counted() {
  const std::uint64_t before = allocation_count;
  ::operator delete(::operator new(1));
  return allocation_count != before;
}
lockstep::test::FailingAllocation::FailingAllocation(std::uint64_t n) {
  failing_allocation = allocation_count + n;
}
lockstep::test::FailingAllocation::~FailingAllocation() { failing_allocation = 0; }

[[gnu::weak]] void* operator new(std::size_t bytes) {
  if (void* memory = allocate(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::weak]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  if (void* memory = allocate(bytes, alignment)) return memory;
  throw std::bad_alloc();
}
[[gnu::weak]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
[[gnu::weak]] void* operator new(std::size_t bytes, std::align_val_t alignment,
                                 const std::nothrow_t&) noexcept {
  return allocate(bytes, alignment);
}

[[gnu::weak]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::weak]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::weak]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::weak]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::weak]] void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
[[gnu::weak]] void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(memory);
}
