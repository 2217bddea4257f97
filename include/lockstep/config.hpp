// SPDX-License-Identifier: MIT
/// @file
/// Version, ABI namespace and the few compile-time facts that every other header may use.
#pragma once

#if !defined(_MSVC_LANG) && __cplusplus < 202002L
#error "lockstep needs C++20: compile with -std=c++20 or later"
#endif

#include <cstddef>
#include <cstdint>

/// Parts of the version: a change of the major one may break programs, until 1.0 also one of the minor one.
#define LOCKSTEP_VERSION_MAJOR 0
/// As above.
#define LOCKSTEP_VERSION_MINOR 1
/// As above.
#define LOCKSTEP_VERSION_PATCH 0

/// g++ may warn of a local name in a template that is also a name of the program's, declared after the
/// header. Programs may name things as they like; true cases are found by clang++, which tells them apart.
#if defined(__GNUC__) && !defined(__clang__)
#define LOCKSTEP_WARNINGS_BEGIN _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wshadow\"")
/// Ends what LOCKSTEP_WARNINGS_BEGIN begins.
#define LOCKSTEP_WARNINGS_END _Pragma("GCC diagnostic pop")
#else
#define LOCKSTEP_WARNINGS_BEGIN
#define LOCKSTEP_WARNINGS_END
#endif

/// The inline namespace keeps two versions in one program apart at link time.
#define LOCKSTEP_NAMESPACE_BEGIN \
  LOCKSTEP_WARNINGS_BEGIN        \
  namespace lockstep {           \
  inline namespace v0_1 {
/// Ends what LOCKSTEP_NAMESPACE_BEGIN begins.
#define LOCKSTEP_NAMESPACE_END \
  }                            \
  }                            \
  LOCKSTEP_WARNINGS_END

/// Before a function whose call would cost more than its work. Without optimization a plain function, which
/// compilers get through faster.
#if defined(__GNUC__) && defined(__OPTIMIZE__)
#define LOCKSTEP_ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define LOCKSTEP_ALWAYS_INLINE inline
#endif

LOCKSTEP_NAMESPACE_BEGIN

/// Every array of the layout starts on this boundary, in bytes; also the size of a cache line.
inline constexpr std::size_t k_alignment = 64;

/// Signed type of sizes, offsets and row numbers.
using Index = std::int64_t;

/// Most replicas of one trainer.
inline constexpr int k_max_replicas = 128;
/// Most contributions of one update of `SyncReplicas`.
inline constexpr int k_max_contributions = 500'000;

/// A version, by its parts.
struct Version {
  int major;  ///< LOCKSTEP_VERSION_MAJOR
  int minor;  ///< LOCKSTEP_VERSION_MINOR
  int patch;  ///< LOCKSTEP_VERSION_PATCH
};
/// The version of these headers.
constexpr Version version() {
  return {LOCKSTEP_VERSION_MAJOR, LOCKSTEP_VERSION_MINOR, LOCKSTEP_VERSION_PATCH};
}

LOCKSTEP_NAMESPACE_END
