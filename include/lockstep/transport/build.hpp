// SPDX-License-Identifier: MIT
/// @file
/// How this program was built, as text: part of what the processes of one session must agree on.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <Eigen/Core>

#include <string>
#include <type_traits>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// How this program computes: what decides the layout of a session, and the bits of an update beside
/// the rule.
inline std::string build_text() {
  std::string build =
      text("lockstep ", LOCKSTEP_VERSION_MAJOR, ".", LOCKSTEP_VERSION_MINOR, ".", LOCKSTEP_VERSION_PATCH,
           ", Eigen ", EIGEN_WORLD_VERSION, ".", EIGEN_MAJOR_VERSION, ".", EIGEN_MINOR_VERSION,
           ", registers of ", sizeof(Eigen::internal::packet_traits<float>::type), " bytes");
#if defined(__clang__)
  build += text(", clang ", __clang_major__);
#elif defined(__GNUC__)
  build += text(", gcc ", __GNUC__);
#endif
#if defined(__FMA__)
  build += ", FMA";
#endif
#if defined(__FAST_MATH__)
  build += ", fast-math";
#endif
  return build;
}

/// Such as "float32".
template <class T>
std::string scalar_text() {
  const char* const kind = std::is_same_v<T, Eigen::bfloat16> ? "bfloat" : "float";
  return kind + std::to_string(8 * sizeof(T));
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
