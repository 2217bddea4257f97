// SPDX-License-Identifier: MIT
/// @file
/// The exceptions of the library. Each text says the subject, what was asked and what was found.
#pragma once

#include <lockstep/config.hpp>

#include <array>
#include <cerrno>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
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
  /// The file.
  const std::string& path() const { return path_; }
  /// What is wrong in it.
  const std::string& field() const { return field_; }

 private:
  std::string path_, field_;
};

/// One replica that a wait is for.
struct Missing {
  /// What is known of it.
  enum class Why {
    not_joined,  ///< its place was never taken
    slow,        ///< it is alive, and has not contributed
    left,        ///< it has left, and its place is kept
    dead,        ///< it has failed, and its place is kept
  };
  int replica;  ///< its number
  Why why;      ///< why it is waited for
  /// Member by member.
  friend bool operator==(const Missing&, const Missing&) = default;
};

/// "has not joined", "is alive but slow" and so on.
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
  /// @param text what was asked, and for how long. @param missing_replicas what `missing()` gives.
  TimeoutError(const std::string& text, std::vector<Missing> missing_replicas)
      : Error(text), missing_(std::move(missing_replicas)) {}
  /// Whom the wait was for, by ascending number.
  const std::vector<Missing>& missing() const { return missing_; }

 private:
  std::vector<Missing> missing_;
};

/// Another replica failed (an exception left its loop, or it died), so this round cannot be completed.
struct PeerFailed : Error {
  /// @param text what happened. @param replica what `replica()` gives.
  PeerFailed(const std::string& text, int replica) : Error(text), replica_(replica) {}
  /// Number of the replica that failed; negative if it was none.
  int replica() const { return replica_; }

 private:
  int replica_;
};

namespace detail {

/// One piece of an error text: a string or a number. Made wherever an error may be thrown, so it is small and
/// only refers to strings.
class TextPart {
 public:
  TextPart(const char* text) : kind_(Kind::c_string) { value_.string = text; }
  TextPart(std::string_view text) : kind_(Kind::string), size_(text.size()) { value_.string = text.data(); }
  TextPart(const std::string& text) : TextPart(std::string_view(text)) {}
  template <std::signed_integral I>
  TextPart(I number) : kind_(Kind::whole) {
    value_.whole = number;
  }
  template <std::unsigned_integral I>
  TextPart(I number) : kind_(Kind::natural) {
    value_.natural = number;
  }
  TextPart(char character) : kind_(Kind::character) { value_.character = character; }
  TextPart(double number) : kind_(Kind::real) { value_.real = number; }

  /// Numbers are written as streams write them.
  [[gnu::cold]] void append_to(std::string& text) const {
    std::array<char, 32> digits;
    switch (kind_) {
      case Kind::c_string:
        text += value_.string;
        break;
      case Kind::string:
        text.append(value_.string, size_);
        break;
      case Kind::character:
        text += value_.character;
        break;
      case Kind::whole:
        text += std::to_string(value_.whole);
        break;
      case Kind::natural:
        text += std::to_string(value_.natural);
        break;
      case Kind::real:
        (void)std::snprintf(digits.data(), digits.size(), "%g", value_.real);
        text += digits.data();
        break;
    }
  }

 private:
  enum class Kind : std::uint8_t { c_string, string, character, whole, natural, real };
  union Value {
    const char* string;
    char character;
    std::int64_t whole;
    std::uint64_t natural;
    double real;
  };
  Kind kind_;
  std::size_t size_ = 0;  // of a `string`
  Value value_;
};

/// Out of line and marked as cold, because there are many errors and none of them is on a fast path.
[[gnu::cold, gnu::noinline]] inline std::string join(std::initializer_list<TextPart> parts) {
  std::string text;
  for (const TextPart& part : parts) part.append_to(text);
  return text;
}

/// Joins strings and numbers into one text.
template <class... Parts>
LOCKSTEP_ALWAYS_INLINE std::string text(const Parts&... parts) {
  return join({TextPart(parts)...});
}

template <class E>
[[noreturn, gnu::cold, gnu::noinline]] void throw_joined(std::initializer_list<TextPart> parts) {
  throw E(join(parts));
}
/// Throws an error with this text. Less code than a `throw` where it stands.
template <class E, class... Parts>
[[noreturn]] LOCKSTEP_ALWAYS_INLINE void throw_error(const Parts&... parts) {
  throw_joined<E>({TextPart(parts)...});
}

/// "No such file or directory" for the error of the last system call.
inline std::string reason(int error = errno) { return std::generic_category().message(error); }

/// Inside a handler: what the exception says.
[[gnu::cold, gnu::noinline]] inline std::string text_of_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

/// "(2, 3)" for a shape.
[[gnu::cold, gnu::noinline]] inline std::string shape_text(std::span<const Index> shape) {
  std::string text = "(";
  for (const Index extent : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(extent);
  }
  return text += ')';
}

}  // namespace detail

LOCKSTEP_NAMESPACE_END
