// SPDX-License-Identifier: MIT
/// @file
/// Damages the file of a session as libFuzzer says and attaches it: that must work, or be refused by an error
/// of the library. Sessions of trainers of both kinds, of accumulators and of token queues.
///
/// Input: which file of `Stage::good`, how it is used (bits of `How`), its length if it is cut, then bytes to
/// overwrite: the part in the two highest bits and the place in it (3 bytes), value.
#include "support/processes.hpp"
#include <lockstep/accumulators/conditional_accumulator.hpp>
#include <lockstep/accumulators/sparse_conditional_accumulator.hpp>
#include <lockstep/accumulators/token_queue.hpp>
#include <lockstep/lockstep.hpp>
#include <lockstep/transport/shared_memory.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

SharedMemory net_in(const std::string& folder) {
  return {.name = "fuzz", .directory = folder, .patience = 20ms};
}

/// A trainer over the session "fuzz".
struct Attached {
  Attached(const std::string& folder, int replicas)
      : w(variables.add("w", Eigen::VectorXd::Zero(5))),
        table(variables.add("table", Eigen::MatrixXd(Eigen::MatrixXd::Zero(4, 2)))),
        trainer(Momentum{0.1, 0.9}, variables, {.replicas_to_aggregate = replicas, .deadline = 20ms},
                net_in(folder)) {}
  void step(auto& replica) {
    replica.gradient(w).setConstant(1);
    replica.gradient(table).setConstant(2);
    replica.apply_gradients();
  }
  Variables<double> variables;
  Handle<Eigen::VectorXd, double> w;
  Handle<Eigen::MatrixXd, double> table;
  SyncReplicas<Momentum, SharedMemory, double> trainer;
};

/// A trainer with an accumulator per variable.
struct Pushing {
  Pushing(const std::string& folder, Driver driver)
      : w(variables.add("w", Eigen::VectorXd::Zero(k_size))),  // more than an undo area has room for
        table(variables.add("table", Rows(Rows::Zero(4, 2)))),
        trainer(Sgd{0.1}, variables,
                VariableOptions{.replicas_to_aggregate = 2,
                                .sparse = {"table"},
                                .deadline = 1ms,
                                .driver = driver,
                                .max_rows = 6},
                net_in(folder)) {}
  /// Row 1 comes twice, so it is applied in turn.
  void push(int place) {
    static constexpr std::array<Index, 3> k_indices{1, 1, 3};
    static constexpr std::array k_values{1.0, 2.0, 3.0, 4.0, 5.0, 6.0};
    static const std::vector<double> ones(k_size, 1.0);
    const std::array<NamedGradient<double>, 2> gradients{
        {{"w", TensorView<const double>(std::span(ones))},
         {"table", SparseGradient<double>{.indices = k_indices, .values = {k_values, {3, 2}}}}}};
    trainer.push(place, gradients);
  }
  static constexpr Index k_size = 700;
  using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Variables<double> variables;
  Handle<Eigen::VectorXd, double> w;
  Handle<Rows, double> table;
  VariableReplicas<Sgd, SharedMemory, double> trainer;
};

struct Dense : ConditionalAccumulator<double, SharedMemory> {
  explicit Dense(const std::string& folder)
      : ConditionalAccumulator({.shape = Shape{3}, .max_takers = 2}, net_in(folder)) {}
  bool apply() { return apply_grad(std::array{1.0, 2.0, 3.0}, step()); }
};

struct Sparse : SparseConditionalAccumulator<double, SharedMemory> {
  explicit Sparse(const std::string& folder)
      : SparseConditionalAccumulator({.shape = Shape{8, 2}, .max_takers = 2, .max_rows = 4}, net_in(folder)) {
  }
  bool apply() {
    static constexpr std::array<Index, 2> k_rows{1, 5};
    static constexpr std::array k_values{1.0, 2.0, 3.0, 4.0};
    return apply_grad({.indices = k_rows, .values = {k_values, {2, 2}}}, step());
  }
};

using Tokens = TokenQueue<SharedMemory>;

std::string bytes_of(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(bytes).str();
}

/// Where the parts of a whole file lie.
detail::SegmentPlan plan_of(const std::string& bytes) {
  alignas(detail::SegmentHeader) std::array<char, sizeof(detail::SegmentHeader)> raw;
  std::copy_n(bytes.begin(), raw.size(), raw.begin());
  return detail::SegmentPlan(reinterpret_cast<const detail::SegmentHeader*>(raw.data())->shape);
}

/// What may be attached to a session.
enum class Kind : std::uint8_t { lone_trainer, trainer_of_two, dense, sparse, tokens, pushing, with_chief };
constexpr std::size_t k_kinds = 7;

/// Calls `f` and lets pass what a damaged sum or queue may say: that nothing comes, or that nothing fits.
template <class F>
void tried(F&& f) {
  try {
    f();
  } catch (const Error&) {
  }
}

template <class Accumulator>
void use(const std::string& folder) {
  Accumulator sum(folder);
  (void)sum.num_accumulated();
  tried([&] { sum.apply(); });
  tried([&] { (void)sum.take_grad(1, 1ms); });
  tried([&] { (void)sum.begin_take(2).ready(); });
}

void use_tokens(const std::string& folder) {
  Tokens queue(net_in(folder));
  (void)queue.size();
  tried([&] { queue.enqueue_many(3, 2); });
  tried([&] { (void)queue.dequeue(1ms); });
  tried([&] { (void)queue.begin_dequeue().ready(); });
  tried([&] { queue.close(); });
}

void use_pushing(const std::string& folder, Driver driver) {
  Pushing pushing(folder, driver);
  auto& trainer = pushing.trainer;
  tried([&] { (void)trainer.global_step(); });
  tried([&] { (void)trainer.num_accumulated(1); });
  tried([&] { (void)trainer.tokens(); });
  tried([&] { trainer.while_still([] {}); });
  tried([&] { pushing.push(0); });
  if (driver == Driver::chief) tried([&] { (void)trainer.chief().step(1ms); });
  tried([&] { (void)trainer.token(0, 1ms); });
  tried([&] {
    auto replica = trainer.join();
    (void)replica.values()[0];
  });
  tried([&] { trainer.start_over(); });
}

/// Attaches and does what a program does with it.
void attach(Kind kind, const std::string& folder) {
  switch (kind) {
    case Kind::lone_trainer:
    case Kind::trainer_of_two: {
      const Attached attached(folder, kind == Kind::lone_trainer ? 1 : 2);
      (void)attached.trainer.global_step();
      (void)attached.trainer.stats(0);
      return;
    }
    case Kind::dense:
      return use<Dense>(folder);
    case Kind::sparse:
      return use<Sparse>(folder);
    case Kind::tokens:
      return use_tokens(folder);
    case Kind::pushing:
      return use_pushing(folder, Driver::cooperative);
    case Kind::with_chief:
      return use_pushing(folder, Driver::chief);
  }
}

/// Whole files of sessions, and a folder for damaged ones.
struct Stage {
  struct Good {
    Kind kind;
    std::string bytes;
  };

  Stage() {
    add_trainers();
    add_sums<Dense>(Kind::dense);
    add_sums<Sparse>(Kind::sparse);
    add_queues();
    add_pushing();
    if (good.size() != k_files) std::abort();
  }

  static constexpr std::size_t k_files = 15;
  test::SessionFolder folder;
  std::string path = folder.path() + "/lockstep.fuzz";
  std::vector<Good> good;

 private:
  void add(Kind kind) { good.push_back({kind, bytes_of(path)}); }

  void add_trainers() {
    {
      const Attached fresh(folder.path(), 1);
      add(Kind::lone_trainer);
    }
    {
      Attached trained(folder.path(), 1);
      trained.trainer.run([&](auto& replica) {
        for (int i = 0; i < 3; ++i) trained.step(replica);
      });
      add(Kind::lone_trainer);
    }
    Attached open(folder.path(), 2);
    auto replica = open.trainer.join(0);
    try {
      open.step(replica);
    } catch (const TimeoutError&) {
      add(Kind::trainer_of_two);
    }
    (void)replica.withdraw();
  }

  /// With a result that is not collected, another gradient, and one in line; and without anything.
  template <class Accumulator>
  void add_sums(Kind kind) {
    Accumulator sum(folder.path());
    add(kind);
    sum.apply();
    const auto served = sum.begin_take(1);
    sum.apply();
    const auto waiting = sum.begin_take(3);
    add(kind);
  }

  /// Empty; with one served and one in line; closed with tokens in it.
  void add_queues() {
    Tokens queue(net_in(folder.path()));
    add(Kind::tokens);
    {
      const auto served = queue.begin_dequeue();
      const auto waiting = queue.begin_dequeue();
      queue.enqueue_many(1, 1);
      add(Kind::tokens);
    }
    queue.enqueue_many(2, 5);
    queue.enqueue_many(3, 5);
    queue.close();
    add(Kind::tokens);
  }

  /// Fresh; with a gradient, a seat and one in line after an update; with a chief that has all it needs; and
  /// with an update that whoever attaches has to carry out.
  void add_pushing() {
    {
      Pushing trainer(folder.path(), Driver::cooperative);
      add(Kind::pushing);
      trainer.push(0);
      trainer.push(1);
      const auto replica = trainer.trainer.join(1);
      trainer.push(0);
      tried([&] { (void)trainer.trainer.token(0, 1ms); });
      add(Kind::pushing);
    }
    Pushing trainer(folder.path(), Driver::chief);
    trainer.trainer.init_chief(0);
    auto chief = trainer.trainer.chief();
    const auto collect = [&] {
      trainer.push(0);
      trainer.push(1);
      chief.take_begin();
    };
    collect();
    add(Kind::with_chief);
    (void)chief.finish();
    for (const int place : {0, 1}) (void)trainer.trainer.token(place);
    collect();
    add(Kind::with_chief);
    add(Kind::with_chief);
    open_update(good.back().bytes);
  }
  /// As a chief leaves it that is killed when it has opened an update.
  static void open_update(std::string& bytes) {
    const detail::SegmentPlan plan = plan_of(bytes);
    for (const std::size_t at : {plan.states, plan.states + plan.stride}) {
      detail::VariableControl control;
      std::memcpy(&control, bytes.data() + at, sizeof control);
      control.updating = control.plan.applies = true;
      control.first_unit += 1000;
      std::memcpy(bytes.data() + at, &control, sizeof control);
    }
  }
};

/// Bits of how a file is used. Without any it is whole, in use, and attached by its own kind.
enum How : std::size_t { k_cut = 1, k_left_over = 2, k_other_kind = 4 };

/// Numbers from the input; zeros after its end.
struct Input {
  const std::uint8_t* data;
  std::size_t size;
  std::size_t number(int bytes) {
    std::size_t value = 0;
    for (; bytes > 0; --bytes) {
      value = value << 8 | (size > 0 ? *data : 0);
      if (size > 0) ++data, --size;
    }
    return value;
  }
};

/// Where in a file of this many bytes: parts are the whole file, both copies of the state, the memory.
std::size_t place(const detail::SegmentPlan& plan, std::size_t word, std::size_t bytes) {
  const std::array<std::size_t, 4> parts{0, plan.states, plan.states + plan.stride, plan.memory};
  return (parts[word >> 22] + (word & 0x3fffff)) % bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Stage stage;
  Input input{data, size};
  const auto& good = stage.good[input.number(1) % stage.good.size()];
  const std::size_t how = input.number(1);
  std::string bytes = good.bytes;
  const detail::SegmentPlan plan = plan_of(bytes);
  if ((how & k_cut) != 0) bytes.resize(input.number(3) % (2 * bytes.size()));
  while (input.size > 0 && !bytes.empty()) {
    const std::size_t at = place(plan, input.number(3), bytes.size());
    bytes[at] = static_cast<char>(input.number(1));
  }
  std::ofstream(stage.path, std::ios::binary) << bytes;
  std::optional<detail::SharedFile> user;
  if ((how & k_left_over) == 0) {  // somebody is attached
    user.emplace(stage.path, 0);
    if (!user->try_share(detail::Segment::k_attached)) std::abort();
  }
  const auto kind = (how & k_other_kind) != 0 ? static_cast<Kind>((how >> 3) % k_kinds) : good.kind;
  try {
    attach(kind, stage.folder.path());
  } catch (const Error& error) {
    if (std::strlen(error.what()) > 2000) std::abort();
  }
  std::filesystem::remove(stage.path);
  return 0;
}
