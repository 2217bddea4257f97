// SPDX-License-Identifier: MIT
/// @file
/// The conformance suite: runs every scenario of the file named on the command line, or of the one built in.
/// In shared memory, those of accumulators, token queues and synchronous replicas.
#include "driver.hpp"

#include <exception>
#include <iostream>

namespace conformance {

void run_dense_accumulator(const Json& scenario, Report& report);
void run_sparse_accumulator(const Json& scenario, Report& report);
void run_token_queue(const Json& scenario, Report& report);
void run_init_tokens(const Json& scenario, Report& report);
void run_sharding_rule(const Json& scenario, Report& report);
void run_sync_replicas(const Json& scenario, Report& report);
void run_grad_aggregation(const Json& scenario, Report& report);
void run_optimizer(const Json& scenario, Report& report);
void run_ema(const Json& scenario, Report& report);
void run_api_order(const Json& scenario, Report& report);

}  // namespace conformance

int main(int argc, char** argv) {
  const conformance::Runners runners {
    {"dense_accumulator", conformance::run_dense_accumulator},
        {"sparse_accumulator", conformance::run_sparse_accumulator},
        {"token_queue", conformance::run_token_queue}, {"sync_replicas", conformance::run_sync_replicas},
#if !defined(LOCKSTEP_TEST_OVER_SHARED_MEMORY)
        {"init_tokens", conformance::run_init_tokens}, {"sharding_rule", conformance::run_sharding_rule},
        {"grad_aggregation", conformance::run_grad_aggregation}, {"optimizer", conformance::run_optimizer},
        {"ema", conformance::run_ema}, {"api_order", conformance::run_api_order},
#endif
  };
#if defined(LOCKSTEP_TEST_OVER_SHARED_MEMORY)
  constexpr auto others = conformance::OtherKinds::left_out;
#else
  constexpr auto others = conformance::OtherKinds::fail;
#endif
  try {
#if defined(LOCKSTEP_CONFORMANCE_JSON)
    const char* const built_in = LOCKSTEP_CONFORMANCE_JSON;
#else
    const char* const built_in = "tests/conformance/conformance.json";
#endif
    return conformance::run_file(argc > 1 ? argv[1] : built_in, runners, others) == 0 ? 0 : 1;
  } catch (const std::exception& exception) {
    std::cerr << exception.what() << std::endl;
    return 2;
  }
}
