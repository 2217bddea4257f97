// SPDX-License-Identifier: MIT
// One thread: a micro-batch, and the last micro-batch of a window fused with the rule; beside the raw loop,
// plain Eigen, and PyTorch where it is installed (`--torch SCRIPT`).
#include "support/child.hpp"
#include "support/floors.hpp"
#include "support/program.hpp"
#include "support/textbook.hpp"
#include <lockstep/gradients/finite.hpp>
#include <lockstep/gradients/variables.hpp>
#include <lockstep/optimizers/local.hpp>

#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace lockstep;
using namespace lockstep::bench;

template <class R>
inline const std::string rule_name = std::same_as<R, Sgd> ? "sgd" : "adam";

/// A window of gradient aggregation whose micro-batches lie in place already.
/// @tparam G scalar of the gradients
template <class R, class G = float>
class Window {
 public:
  /// @param grad_steps micro-batches per update
  Window(Index elements, int grad_steps)
      : handle_(variables_.add("w", Eigen::VectorXf::NullaryExpr(
                                        elements, [](Eigen::Index i) { return pattern(i, k_values_seed); }))),
        trainer_({R{}, {.grad_steps = grad_steps}}, variables_) {
    for (int k = 0; k < 2; ++k) {
      auto gradient = trainer_.gradient(handle_);
      for (Index i = 0; i < elements; ++i) gradient(i) = static_cast<G>(pattern(i, k));
      trainer_.apply_gradients();
    }
    if (grad_steps == 2)
      expect_updated<R>(variables_.value(handle_).data(), elements, 1, 2, "window of two");
    else
      expect_sum(elements);
  }

  /// Seconds per micro-batch that is neither the first nor the last.
  double accumulate(int micro_batches) {
    return seconds_of([&] {
             for (int i = 0; i < micro_batches; ++i) micro_batch();
           }) /
           micro_batches;
  }
  /// Seconds per pass of the raw loop over the same arrays: where arrays lie makes more of a difference.
  double accumulate_by_raw_loop(int passes) {
    float* const sum = const_cast<float*>(trainer_.slot("grad_accum", handle_).data());
    const auto gradient = trainer_.gradient(handle_);
    return seconds_of([&] {
             for (int i = 0; i < passes; ++i)
               lockstep::bench::accumulate(sum, gradient.data(), 0.5F, gradient.size());
           }) /
           passes;
  }
  /// Seconds of the last micro-batch of a window of two, the update included. The accumulator is what the
  /// last update has left there.
  double close(int windows) {
    double seconds = 0;
    for (int i = 0; i < windows; ++i) {
      micro_batch();
      seconds += seconds_of([&] { micro_batch(); });
    }
    return seconds / windows;
  }

 private:
  void micro_batch() {
    (void)trainer_.gradient(handle_);
    trainer_.apply_gradients();
  }
  void expect_sum(Index elements) {
    const auto sum = trainer_.slot("grad_accum", handle_);
    const auto given = [](Index i, int k) { return static_cast<double>(static_cast<G>(pattern(i, k))); };
    for (Index i = 0; i < elements; i += elements / 50'000 + 1)
      expect_close(static_cast<double>(sum(i)), given(i, 0) + given(i, 1),
                   "accumulator, element " + std::to_string(i));
  }

  Variables<float, G> variables_;
  Handle<Eigen::VectorXf, float> handle_;
  Local<GradientAggregation<R>, float, G> trainer_;
};

/// The same in plain Eigen: accumulate, divide, update, clear.
template <class R>
class EigenWindow {
 public:
  explicit EigenWindow(Index elements)
      : optimizer_(elements),
        accumulator_(Eigen::ArrayXf::Zero(elements)),
        mean_(elements),
        gradient_(elements) {
    for (int k = 0; k < 2; ++k) {
      fill_with_pattern(gradient_.data(), elements, k);
      accumulator_ += gradient_;
    }
    update();
    expect_updated<R>(optimizer_.values.data(), elements, 1, 2, "window in Eigen");
  }
  double close(int windows) {
    return seconds_of([&] {
             for (int i = 0; i < windows; ++i) {
               accumulator_ += gradient_;
               update();
             }
           }) /
           windows;
  }

 private:
  void update() {
    mean_ = accumulator_ / 2;
    optimizer_.apply(mean_);
    accumulator_.setZero();
  }
  EigenOptimizer<R> optimizer_;
  Eigen::ArrayXf accumulator_, mean_, gradient_;
};

constexpr int k_many = 1 << 30;  // a window that never closes

/// Micro-batches of 16 bits against those of float. They are 10 bytes per element instead of 12.
template <class G>
void compare_narrow(const std::string& scalar) {
  constexpr Index elements = 25'000'000;
  Window<Sgd, G> narrow(elements, k_many);
  Window<Sgd> wide(elements, k_many);
  Interleaved rounds;
  rounds.add(scalar, [&] { return narrow.accumulate(1); });
  rounds.add("float", [&] { return wide.accumulate(1); });
  rounds.run(31);
  report("kernels/accumulate/" + scalar, rounds.ratio(scalar, "float"), "x the time of float", rounds);
}

/// Passes that only read, for clipping and for gradients that are not finite, against a raw loop that reads
/// as much.
void compare_reading() {
  constexpr Index elements = 25'000'000;
  Floors floors(elements, 1);
  Floats first(elements), second(elements);
  fill_with_pattern(first.data(), elements, 0);
  fill_with_pattern(second.data(), elements, 1);
  Sources<float, float> sources;
  sources.add(first.data(), 1);
  sources.add(second.data(), 1);
  sources.scale = 0.5F;
  const auto squares = [&] { return squared_norm(sources, 0, elements); };
  const auto harmful = [&] {
    return detail::any_non_finite(first.data(), elements) || detail::any_non_finite(second.data(), elements);
  };
  double expected = 0;
  for (Index i = 0; i < elements; ++i) expected += mean_gradient(i, 2) * mean_gradient(i, 2);
  expect_close(squares(), expected, "squared norm");
  float& last = second.data()[elements - 1];
  const float given = std::exchange(last, std::numeric_limits<float>::infinity());
  if (!harmful()) throw std::runtime_error("an infinite gradient was not found");
  last = given;
  if (harmful()) throw std::runtime_error("finite gradients were taken for others");

  Interleaved rounds;
  floors.add_reading_to(rounds);
  double sum = 0;
  rounds.add("squared norm", [&] { return seconds_of([&] { sum += squares(); }); });
  rounds.add("finite", [&] { return seconds_of([&] { sum += harmful() ? 1 : 0; }); });
  rounds.run(31);
  if (!(sum > 0)) throw std::runtime_error("nothing was summed");
  report("kernels/squared_norm", rounds.ratio("squared norm", "reading"), "x the time of reading as much",
         rounds);
  report("kernels/finite", rounds.ratio("finite", "reading"), "x the time of reading as much");
}

void compare(const char* torch_script) {
  constexpr Index elements = 25'000'000;
  Floors floors(elements, 1);
  Window<Sgd> open(elements, k_many), sgd(elements, 2);
  Window<Adam> adam(elements, 2);
  EigenWindow<Sgd> eigen_sgd(elements);
  EigenWindow<Adam> eigen_adam(elements);
  std::optional<Child> torch;

  Interleaved rounds;
  floors.add_to(rounds);
  rounds.add("micro-batch", [&] { return open.accumulate(4); });
  rounds.add("last with sgd", [&] { return sgd.close(2); });
  rounds.add("last with adam", [&] { return adam.close(2); });
  rounds.add("eigen last with sgd", [&] { return eigen_sgd.close(1); });
  rounds.add("eigen last with adam", [&] { return eigen_adam.close(1); });
  if (torch_script != nullptr) {
    torch.emplace(std::vector<std::string>{"python3", torch_script, std::to_string(elements), "1"});
    for (const char* what : {"accumulate", "sgd", "adam"})
      rounds.add(std::string("torch ") + what, [&torch, what] { return std::stod(torch->ask(what)); });
  }
  rounds.run(15);

  // Only these two in turn, pass by pass: a large cache may still have parts of the arrays.
  Interleaved pair;
  pair.add("micro-batch", [&] { return open.accumulate(1); });
  pair.add("raw loop", [&] { return open.accumulate_by_raw_loop(1); });
  pair.run(61);

  const double pass = 3.0 * sizeof(float) * elements;
  report("kernels/accumulate/raw_loop", pair.ratio("raw loop", "micro-batch"), "of the raw loop", pair);
  report("kernels/accumulate/roofline", floors.roofline(rounds, "micro-batch", pass), "of peak", rounds);
  report("kernels/last/sgd/roofline", floors.roofline(rounds, "last with sgd", floor_bytes<Sgd>(elements, 2)),
         "of peak");
  report("kernels/last/adam/roofline",
         floors.roofline(rounds, "last with adam", floor_bytes<Adam>(elements, 2)), "of peak");
  report("kernels/last/sgd/eigen", rounds.ratio("eigen last with sgd", "last with sgd"), "x");
  report("kernels/last/adam/eigen", rounds.ratio("eigen last with adam", "last with adam"), "x");
  if (torch) {
    report("kernels/last/sgd/torch", rounds.ratio("torch sgd", "last with sgd"), "x");
    report("kernels/last/adam/torch", rounds.ratio("torch adam", "last with adam"), "x");
  }
  compare_narrow<Eigen::bfloat16>("bfloat16");
  compare_narrow<Eigen::half>("half");
  compare_reading();
}

template <class R>
struct Accumulating : Window<R> {
  explicit Accumulating(Index elements) : Window<R>(elements, k_many) {}
  double operator()(int operations) { return this->accumulate(operations); }
};
template <class R>
struct Closing : Window<R> {
  explicit Closing(Index elements) : Window<R>(elements, 2) {}
  double operator()(int operations) { return this->close(operations); }
};
template <class R>
struct EigenClosing : EigenWindow<R> {
  using EigenWindow<R>::EigenWindow;
  double operator()(int operations) { return this->close(operations); }
};
/// One operation of the PyTorch script.
class Torch {
 public:
  Torch(const char* script, Index elements, std::string what)
      : child_({"python3", script, std::to_string(elements), "1"}), what_(std::move(what)) {}
  double operator()(int operations) {
    double seconds = 0;
    for (int i = 0; i < operations; ++i) seconds += std::stod(child_.ask(what_));
    return seconds / operations;
  }

 private:
  Child child_;
  std::string what_;
};

void register_all(const char* torch_script) {
  for (Index elements = 100; elements <= 100'000'000; elements *= 10) {
    const std::string size = "/elements:" + std::to_string(elements);
    const auto batch = static_cast<int>(std::clamp<Index>(10'000'000 / elements, 1, 1'000));
    const double pass = 3.0 * sizeof(float) * static_cast<double>(elements);
    register_workload("floor/accumulate/one_thread/f32" + size, pass, batch,
                      [=] { return std::make_unique<Floors>(elements, 1); });
    register_workload("local/micro_batch/one_thread/f32" + size, pass, batch,
                      [=] { return std::make_unique<Accumulating<Sgd>>(elements); });
    const auto add_rule = [&]<class R>(std::type_identity<R>) {
      const std::string name = "/last_micro_batch/one_thread/f32/" + rule_name<R> + size;
      const double bytes = floor_bytes<R>(elements, 2);
      register_workload("local" + name, bytes, batch, [=] { return std::make_unique<Closing<R>>(elements); });
      register_workload("eigen" + name, bytes, batch,
                        [=] { return std::make_unique<EigenClosing<R>>(elements); });
      if (torch_script != nullptr)
        register_workload("torch" + name, bytes, std::min(batch, 20),
                          [=] { return std::make_unique<Torch>(torch_script, elements, rule_name<R>); });
    };
    add_rule(std::type_identity<Sgd>());
    add_rule(std::type_identity<Adam>());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* torch_script = nullptr;
  for (int i = 1; i + 1 < argc; ++i)
    if (std::string(argv[i]) == "--torch") torch_script = argv[i + 1];
  return run_program(
      argc, argv, [&] { compare(torch_script); }, [&] { register_all(torch_script); });
}
