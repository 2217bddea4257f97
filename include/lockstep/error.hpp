// SPDX-License-Identifier: MIT
/// @file
/// The exceptions of the library. Each text says the subject, what was asked and what was found.
#pragma once

#include <lockstep/config.hpp>

#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

LOCKSTEP_NAMESPACE_BEGIN

/// Base of every exception that the library throws.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An argument or option has a value that means nothing: k <= 0, a negative weight, a rate that is not
/// finite.
struct InvalidArgument : Error {
  using Error::Error;
};

/// A tensor has another shape than the variable it belongs to. Both shapes are in the text.
struct ShapeMismatch : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

/// A handle or slot name that this variable set does not know.
struct UnknownVariable : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

/// Replicas disagree on names, shapes, types, rule or options.
struct LayoutMismatch : Error {
  using Error::Error;
};

/// A call at a moment when it is not allowed: before join, twice, after leave, while a contribution is
/// pending.
struct UsageError : Error {
  using Error::Error;
};

/// `apply_gradients` without a gradient for any variable.
struct NoGradients : UsageError {
  using UsageError::UsageError;
};

/// A wait was ended from outside: stop token, closed queue, cancelled taker.
struct Cancelled : Error {
  using Error::Error;
};

/// A closed queue has nothing left to take.
struct OutOfRange : Error {
  using Error::Error;
};

/// A table of fixed capacity is full.
struct CapacityExceeded : Error {
  using Error::Error;
};

/// The operating system refused something: memory, a file, a lock. The text has its reason.
struct SystemError : Error {
  using Error::Error;
};

/// A file is no checkpoint, or a damaged one. The text begins with the path and the field, and says what was
/// expected there and what was found.
struct CheckpointError : Error {
  /// @param field what of the file: "header length", "'w' shape", "__metadata__ lockstep.pending" and so on
  CheckpointError(std::string path, std::string field, const std::string& text)
      : Error(path + ": " + field + ": " + text), path_(std::move(path)), field_(std::move(field)) {}
  const std::string& path() const { return path_; }
  const std::string& field() const { return field_; }

 private:
  std::string path_, field_;
};

/// One replica that a wait is for.
struct Missing {
  enum class Why { not_joined, slow, left, dead };
  int replica;
  Why why;
  friend bool operator==(const Missing&, const Missing&) = default;
};

constexpr const char* to_string(Missing::Why why) {
  switch (why) {
    case Missing::Why::not_joined:
      return "has not joined";
    case Missing::Why::slow:
      return "is alive but slow";
    case Missing::Why::left:
      return "has left";
    case Missing::Why::dead:
      return "is dead";
  }
  return "?";
}

/// "replica 1 has not joined, replica 3 is alive but slow"
inline std::string to_string(std::span<const Missing> missing) {
  std::string text;
  for (const Missing& one : missing)
    text +=
        (text.empty() ? "replica " : ", replica ") + std::to_string(one.replica) + ' ' + to_string(one.why);
  return text;
}

/// A deadline passed. `missing()` lists exactly the replicas that the wait was for.
struct TimeoutError : Error {
  TimeoutError(const std::string& text, std::vector<Missing> missing_replicas)
      : Error(text), missing_(std::move(missing_replicas)) {}
  const std::vector<Missing>& missing() const { return missing_; }

 private:
  std::vector<Missing> missing_;
};

/// Another replica failed (an exception left its loop, or it died), so this round cannot be completed.
struct PeerFailed : Error {
  PeerFailed(const std::string& text, int replica) : Error(text), replica_(replica) {}
  int replica() const { return replica_; }

 private:
  int replica_;
};

namespace detail {

/// Joins its arguments into one text by `operator<<`.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

/// "(2, 3)" for a shape.
template <class Range>
std::string shape_text(const Range& shape) {
  std::ostringstream out;
  out << '(';
  const char* separator = "";
  for (const auto extent : shape) {
    out << separator << extent;
    separator = ", ";
  }
  out << ')';
  return std::move(out).str();
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
