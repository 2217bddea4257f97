// SPDX-License-Identifier: MIT
/// @file
/// Scenarios of the token queue.
#include "driver.hpp"
#include <lockstep/accumulators/token_queue.hpp>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace conformance {

void run_token_queue(const Json& scenario, Report& report) {
  using Queue = lockstep::TokenQueue<Net>;
  Queue queue;
  std::map<std::string, Queue::Waiter> waiters;
  const auto waiter = [&](const Json& step) -> Queue::Waiter& {
    return waiters.at(step.at("tag").get<std::string>());
  };
  const auto poll = [](Queue::Waiter& polled) -> Json {
    if (!polled.ready()) return {{"status", "pending"}};
    return {{"status", "ok"}, {"value", polled.get()}};
  };
  const std::map<std::string, std::function<Json(const Json&)>> operations{
      {"enqueue_many",
       [&](const Json& step) -> Json {
         queue.enqueue_many(step.at("values").get<std::vector<lockstep::Index>>());
         return {{"status", "ok"}};
       }},
      {"dequeue_begin",
       [&](const Json& step) {
         return poll(waiters.emplace(step.at("tag").get<std::string>(), queue.begin_dequeue()).first->second);
       }},
      {"dequeue_poll", [&](const Json& step) { return poll(waiter(step)); }},
      {"dequeue_cancel",
       [&](const Json& step) -> Json {
         return {{"status", waiter(step).cancel() ? "ok" : "not_waiting"}};
       }},
      {"close",
       [&](const Json&) -> Json {
         queue.close();
         return {{"status", "ok"}};
       }},
      {"size",
       [&](const Json&) -> Json {
         return {{"value", queue.size()}};
       }},
  };
  run_steps(scenario, report, "",
            [&](const Json& step) { return operations.at(step.at("op").get<std::string>())(step); });
  report.at("final state");
  report.compare(scenario.at("expected"), {{"size", queue.size()}, {"closed", queue.is_closed()}});
}

}  // namespace conformance
