// SPDX-License-Identifier: MIT
/// @file
/// Runs the scenarios of conformance.json: a kind says what each step does, the driver compares it with what
/// is expected.
#pragma once

#include <lockstep/error.hpp>
#include <lockstep/transport/in_process.hpp>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace conformance {

using Json = nlohmann::json;

/// The transport of accumulators, token queues and synchronous replicas. Whoever puts
/// support/over_shared_memory.hpp before the sources runs them in shared memory.
#if defined(LOCKSTEP_TEST_OVER_SHARED_MEMORY)
using Net = lockstep::test::InSegment;
#else
using Net = lockstep::InProcess;
#endif

/// |found - expected| <= atol + rtol * |expected| for numbers with a decimal point; integers are compared
/// exactly.
struct Tolerance {
  double rtol = 0;
  double atol = 0;
};

/// What the file calls an error that happens when something is built rather than run.
struct ValueError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct TypeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct RuntimeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Whether InvalidArgument is called by that name, or ValueError: bad use while building.
enum class When { running, building };

/// The exception that is being handled, in the file's words. Rethrows what the file has no word for.
inline Json outcome_of_exception(When when) {
  const auto error = [](const char* name, const std::exception& exception) {
    return Json{{"status", "error"}, {"error", name}, {"what", exception.what()}};
  };
  try {
    throw;
  } catch (const lockstep::InvalidArgument& exception) {
    return error(when == When::building ? "ValueError" : "InvalidArgument", exception);
  } catch (const lockstep::Cancelled& exception) {
    return error("Cancelled", exception);
  } catch (const lockstep::OutOfRange& exception) {
    return error("OutOfRange", exception);
  } catch (const lockstep::TimeoutError& exception) {
    return Json{{"status", "blocked"}, {"what", exception.what()}};
  } catch (const ValueError& exception) {
    return error("ValueError", exception);
  } catch (const TypeError& exception) {
    return error("TypeError", exception);
  } catch (const RuntimeError& exception) {
    return error("RuntimeError", exception);
  }
}

/// Calls `action() -> Json` and turns an exception into the outcome that the file would show for it.
template <class Action>
Json outcome_of(Action&& action, When when = When::running) {
  try {
    return std::forward<Action>(action)();
  } catch (...) {
    return outcome_of_exception(when);
  }
}

/// Collects what is wrong in one scenario.
class Report {
 public:
  Report(Tolerance float64, Tolerance float32) : float64_(float64), float32_(float32) {}

  /// Says what the following comparisons are about.
  void at(std::string place) { place_ = std::move(place); }
  /// Numbers from here on were computed in this type.
  template <class T>
  void computed_in() {
    tolerance_ = sizeof(T) >= sizeof(double) ? float64_ : float32_;
  }

  /// Everything in `expected` must be in `found` too; `found` may have more.
  void compare(const Json& expected, const Json& found) { compare(expected, found, ""); }
  void fail(const std::string& message) { failures_.push_back(place_ + ": " + message); }
  const std::vector<std::string>& failures() const { return failures_; }
  /// The scenario asks for what the transport rightly refuses, so it was not run.
  void refuse() { is_refused_ = true; }
  bool is_refused() const { return is_refused_; }

 private:
  void compare(const Json& expected, const Json& found, const std::string& path) {
    if (expected.is_object() && found.is_object()) {
      for (const auto& [key, value] : expected.items()) {
        if (key == "detail") continue;  // informational
        const std::string inner = path + "/" + key;
        if (found.contains(key))
          compare(value, found.at(key), inner);
        else
          fail(inner + ": expected " + value.dump() + ", found nothing in " + found.dump());
      }
    } else if (expected.is_array() && found.is_array() && expected.size() == found.size()) {
      for (std::size_t i = 0; i < expected.size(); ++i)
        compare(expected[i], found[i], path + "/" + std::to_string(i));
    } else if (!is_same(expected, found)) {
      fail(path + ": expected " + expected.dump() + ", found " + found.dump());
    }
  }

  bool is_same(const Json& expected, const Json& found) const {
    if (!expected.is_number_float() || !found.is_number()) return expected == found;
    const double a = expected.get<double>(), b = found.get<double>();
    return std::abs(a - b) <= tolerance_.atol + tolerance_.rtol * std::abs(a);
  }

  Tolerance float64_, float32_;
  Tolerance tolerance_ = float64_;
  std::string place_ = "scenario";
  std::vector<std::string> failures_;
  bool is_refused_ = false;
};

/// Runs the steps of a scenario one after the other. `execute(step)` returns what the step gave, in the form
/// of the step's `expect`.
template <class Execute>
void run_steps(const Json& scenario, Report& report, const std::string& variant, Execute&& execute) {
  std::size_t number = 0;
  for (const Json& step : scenario.at("steps")) {
    report.at(variant + "step " + std::to_string(number++) + " (" + step.at("op").get<std::string>() + ")");
    const Json found = outcome_of([&] { return Json(execute(step)); });
    if (step.contains("expect")) report.compare(step.at("expect"), found);
  }
}

/// Runs one scenario of its kind.
using Runner = std::function<void(const Json& scenario, Report& report)>;
using Runners = std::map<std::string, Runner>;

/// What becomes of scenarios of a kind without a runner.
enum class OtherKinds { fail, left_out };

/// Runs all scenarios of `file`: one line for each failure, then the tally.
/// @return the number of scenarios that failed.
int run_file(const std::string& file, const Runners& runners, OtherKinds others);

}  // namespace conformance
