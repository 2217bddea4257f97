// SPDX-License-Identifier: MIT
/// @file
/// A thread, or an exception of the library that says why there is none.
#pragma once

#include <lockstep/config.hpp>
#include <lockstep/error.hpp>

#include <exception>
#include <string_view>
#include <thread>
#include <utility>

LOCKSTEP_NAMESPACE_BEGIN

namespace detail {

/// Calls `f`, with a stop token if it takes one, on a new thread.
/// @param subject what error texts begin with. @param number of the thread, from 1. @param count of them all.
/// @throws SystemError with the reason if the system gives no thread.
template <class F>
std::jthread start_thread(std::string_view subject, int number, int count, F&& f) {
  try {
    return std::jthread(std::forward<F>(f));
  } catch (const std::exception& error) {
    throw SystemError(text(subject, ": cannot start thread ", number, " of ", count, ": ", error.what()));
  }
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
