// SPDX-License-Identifier: MIT
/// @file
/// A reference to anything that can be called.
#pragma once

#include <lockstep/config.hpp>

#include <concepts>
#include <memory>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

template <class Signature>
class FunctionRef;

/// Refers to a callable that somebody else owns, for as long as a call lasts: a parameter of functions that
/// are long and not called often, so that they are compiled once and not for each callable.
template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <class F>
  requires(!std::same_as<F, FunctionRef>) FunctionRef(const F& callable)
      : callable_(std::addressof(callable)), call_(&call<F>) {}

  Result operator()(Arguments... arguments) const {
    return call_(callable_, std::forward<Arguments>(arguments)...);
  }

 private:
  template <class F>
  static Result call(const void* callable, Arguments... arguments) {
    return (*static_cast<const F*>(callable))(std::forward<Arguments>(arguments)...);
  }

  const void* callable_;
  Result (*call_)(const void*, Arguments...);
};

}  // namespace detail

LOCKSTEP_NAMESPACE_END
