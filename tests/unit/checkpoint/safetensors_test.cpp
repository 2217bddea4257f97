// SPDX-License-Identifier: MIT
// What a checkpoint file holds, and that training goes on from it with the same bits.
#include "unit/checkpoint/scene.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Rounds of four contributions each, made by as many replicas as the trainer has.
template <class Trainer>
void train(Trainer& trainer, const Model& model, std::int64_t first, std::int64_t last) {
  const std::int64_t each = 4 / trainer.replicas();
  trainer.run([&](auto& replica) {
    for (std::int64_t round = first; round < last; ++round)
      for (std::int64_t i = 0; i < each; ++i)
        contribute(replica, model, 4 * round + each * replica.index() + i);
  });
}

SyncOptions replicas(int count) { return {.replicas_to_aggregate = 4, .total_num_replicas = count}; }

Snapshot<float> with_variable(std::string name, std::string slot = "") {
  Snapshot<float> snapshot;
  snapshot.arrays.push_back({name, "", {1}, false, {1}});
  if (!slot.empty()) snapshot.arrays.push_back({name, slot, {1}, false, {2}});
  return snapshot;
}

}  // namespace

TEST_CASE("safetensors: a file has the bytes that the format asks for", "[checkpoint]") {
  Snapshot<float> snapshot;
  snapshot.rule = "momentum";
  snapshot.generation = 3;
  snapshot.counters.window = {.global_step = 12, .counter = 25, .pending = 1, .updates = 8};
  snapshot.counters.window_unit = 0.5;
  snapshot.counters.window_total = 0.1;
  snapshot.counters.examples = 96;
  // [[1, 2, 3], [4, 5, 6]] in column-major memory
  snapshot.arrays.push_back({"a/w", "", {2, 3}, true, {1, 4, 2, 5, 3, 6}});
  snapshot.arrays.push_back({"a/w", "momentum", {2, 3}, false, {7, 8, 9, 10, 11, 12}});
  snapshot.window.push_back({"a/w", Presence::rows, {1}, false, {-1, -2, -3}});
  const std::string file = file_of(snapshot);

  std::string header =
      R"({"__metadata__":{"lockstep.counter":"25","lockstep.examples":"96","lockstep.format":"1",)"
      R"("lockstep.generation":"3","lockstep.global_step":"12","lockstep.pending":"1","lockstep.rule":"momentum",)"
      R"("lockstep.updates":"8","lockstep.window_total":"0.1","lockstep.window_unit":"0.5"},)"
      R"("a/w::window_rows":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("a/w":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
      R"("a/w:momentum":{"dtype":"F32","shape":[2,3],"data_offsets":[32,56]},)"
      R"("a/w::window":{"dtype":"F32","shape":[1,3],"data_offsets":[56,68]}})";
  header.append((64 - (8 + header.size()) % 64) % 64, ' ');
  std::string data(68, '\0');
  const std::int64_t row = 1;
  const std::array<float, 15> values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, -1, -2, -3};
  std::memcpy(data.data(), &row, 8);
  std::memcpy(data.data() + 8, values.data(), 60);
  CHECK(file == file_with(header, data));
}

TEST_CASE("safetensors: everything comes back with the same bits", "[checkpoint]") {
  Snapshot<double> snapshot;
  snapshot.rule = "a \"rule\"\n\xC3\xA4";
  snapshot.generation = 2;
  snapshot.counters.window = {.global_step = 1, .counter = 2, .pending = 3, .updates = std::int64_t{1} << 62};
  snapshot.counters.window_unit = 1.0 / 3;
  snapshot.counters.window_total = std::numeric_limits<double>::denorm_min();
  snapshot.counters.examples = std::numeric_limits<double>::max();
  std::uint64_t bits = 0x7ff8'0000'0000'1234;
  double payload = 0;
  std::memcpy(&payload, &bits, 8);
  const double infinity = std::numeric_limits<double>::infinity();
  snapshot.arrays.push_back({"scalar", "", {}, false, {-0.0}});
  snapshot.arrays.push_back({"deep", "", {1, 2, 1, 3}, false, {payload, -infinity, 0.1, 5e-324, 1, 2}});
  snapshot.arrays.push_back({"deep", "m", {1, 2, 1, 3}, false, {1, 2, 3, 4, 5, 6}});
  snapshot.arrays.push_back({"table", "", {4, 2}, false, {1, 2, 3, 4, 5, 6, 7, 8}});
  snapshot.window.push_back({"scalar", Presence::rows, {0}, false, {4}});
  snapshot.window.push_back({"deep", Presence::dense, {}, false, {6, 5, 4, 3, 2, 1}});
  snapshot.window.push_back({"table", Presence::rows, {}, false, {}});
  CHECK(same(snapshot_of<double>(file_of(snapshot)), snapshot));
  snapshot.window.back() = {"table", Presence::rows, {1, 3}, false, {1, 2, 3, 4}};
  CHECK(same(snapshot_of<double>(file_of(snapshot)), snapshot));
}

TEST_CASE("safetensors: a matrix is read as what it is, whatever its order in memory", "[checkpoint]") {
  Variables<float> variables;
  const auto element = [](Index i, Index j) { return static_cast<float>(10 * i + j); };
  variables.add("columns", Eigen::MatrixXf::NullaryExpr(2, 3, element));
  variables.add("rows", Table::NullaryExpr(2, 3, element));
  Local optimizer{Sgd{}, variables};
  const auto read = snapshot_of<float>(file_of(optimizer.snapshot()));
  REQUIRE(read.arrays.size() == 2);
  for (const auto& array : read.arrays) {
    CHECK(array.shape == std::vector<Index>{2, 3});
    CHECK(array.values == std::vector<float>{0, 1, 2, 10, 11, 12});
    CHECK_FALSE(array.column_major);
  }
  optimizer.restore(read);
  CHECK(std::equal(variables.flat().begin(), variables.flat().begin() + 6,
                   std::array<float, 6>{0, 10, 1, 11, 2, 12}.begin()));
}

TEST_CASE("safetensors: colons and percent signs in names are no separators", "[checkpoint]") {
  const auto check = [](const std::string& name, const std::string& slot, const std::string& written) {
    const auto snapshot = with_variable(name, slot);
    const std::string file = file_of(snapshot);
    CHECK_THAT(file, ContainsSubstring(nlohmann::json(written).dump() + ":{\"dtype\""));
    CHECK(same(snapshot_of<float>(file), snapshot));
  };
  check("hidden/weights", "", "hidden/weights");
  check("hidden/weights", "m", "hidden/weights:m");
  check("w:0", "", "w%3A0");
  check("w:0", "m:1", "w%3A0:m%3A1");
  check("100%", "", "100%25");
  check("w::window", "", "w%3A%3Awindow");
  check("__metadata__", "m", "%5F_metadata__:m");
  check("%5F_metadata__", "m", "%255F_metadata__:m");
  check("\xE9\x87\x8D\"\\\n", "", "\xE9\x87\x8D\"\\\n");
}

TEST_CASE("safetensors: narrower types are widened, wider ones refused", "[checkpoint]") {
  const auto with = [](const auto& values) {
    using V = typename std::decay_t<decltype(values)>::value_type;
    Snapshot<V> snapshot;
    snapshot.arrays.push_back({"w", "", {3}, false, {values.begin(), values.end()}});
    return file_of(snapshot);
  };
  const std::vector<float> expected{0.5F, -2, 96};
  using Eigen::bfloat16, Eigen::half;
  const std::string of_half = with(std::array{half(0.5F), half(-2), half(96)}),
                    of_bfloat = with(std::array{bfloat16(0.5F), bfloat16(-2), bfloat16(96)}),
                    of_float = with(std::array{0.5F, -2.0F, 96.0F}),
                    of_double = with(std::array{0.5, -2.0, 96.0});
  CHECK_THAT(of_half, ContainsSubstring("\"F16\""));
  CHECK_THAT(of_bfloat, ContainsSubstring("\"BF16\""));
  for (const auto& file : {of_half, of_bfloat, of_float})
    CHECK(snapshot_of<float>(file).arrays[0].values == expected);
  for (const auto& file : {of_half, of_bfloat, of_float, of_double})
    CHECK(snapshot_of<double>(file).arrays[0].values == std::vector<double>{0.5, -2, 96});
  CHECK_THROWS_AS(snapshot_of<float>(of_double), CheckpointError);
  CHECK_THROWS_WITH(snapshot_of<float>(of_double),
                    ContainsSubstring("'w' dtype: expected F32") && ContainsSubstring("found F64"));
  CHECK_THROWS_AS(snapshot_of<half>(of_bfloat), CheckpointError);
  CHECK_THROWS_AS(snapshot_of<bfloat16>(of_half), CheckpointError);
}

TEST_CASE("safetensors: metadata of others does not disturb", "[checkpoint]") {
  std::string file = file_of(with_variable("w"));
  std::string header = file.substr(8, file.size() - 12);
  header.insert(header.find("{\"lockstep") + 1, R"("format":"pt","note":"by hand",)");
  CHECK(same(snapshot_of<float>(file_with(header, file.substr(file.size() - 4))), with_variable("w")));
}

TEST_CASE("safetensors: a snapshot that makes no sense is refused, and the old file stays", "[checkpoint]") {
  const Folder folder;
  const auto path = folder / "model.safetensors";
  save(path, with_variable("w"));
  const std::string before = content_of(path);
  const auto refused = [&](const Snapshot<float>& snapshot, const char* text) {
    CHECK_THROWS_AS(save(path, snapshot), InvalidArgument);
    CHECK_THROWS_WITH(save(path, snapshot), ContainsSubstring(text));
    CHECK(content_of(path) == before);
    CHECK(folder.files() == std::vector<std::string>{"model.safetensors"});
  };
  auto bad = with_variable("w", "m");
  bad.arrays[1].values.pop_back();
  refused(bad, "'w:m' has shape (1) and 0 elements");
  bad = with_variable("w");
  bad.arrays[0].shape = {-1};
  refused(bad, "'w' has shape");
  bad = with_variable("w");
  bad.arrays.push_back(bad.arrays[0]);
  refused(bad, "'w' twice");
  bad = with_variable("w");
  bad.window.push_back({"v", Presence::dense, {}, false, {1}});
  refused(bad, "no variable 'v'");
  refused(with_variable("w\xFF"), "not UTF-8");
}

TEST_CASE("safetensors: what load would refuse is not written, with the text of load", "[checkpoint]") {
  const Folder folder;
  const auto path = folder / "model.safetensors";
  const auto refused = [&](auto&& spoil, const std::string& text) {
    Snapshot<float> bad;
    bad.arrays.push_back({"w", "", {3, 2}, false, {1, 2, 3, 4, 5, 6}});
    bad.window.push_back({"w", Presence::rows, {0, 2}, false, {1, 2, 3, 4}});
    bad.counters.window.pending = 1;
    bad.counters.window_total = 1;
    CHECK_NOTHROW(save(folder / "good.safetensors", bad));
    spoil(bad);
    const auto at_save = thrown_by([&] { save(path, bad); });
    CHECK(caught<InvalidArgument>(at_save));
    CHECK(message_of(at_save) == "save: " + text);
    CHECK(folder.files() == std::vector<std::string>{"good.safetensors"});
    // What is written by force is refused with the same text.
    write_content(folder / "bad.safetensors", file_of(bad));
    const auto at_load = thrown_by([&] { load(folder / "bad.safetensors"); });
    CHECK(caught<CheckpointError>(at_load));
    CHECK(message_of(at_load) == (folder / "bad.safetensors").string() + ": " + text);
    std::filesystem::remove(folder / "bad.safetensors");
  };
  using S = Snapshot<float>;
  const std::string numbers = ": expected a number from 0 to 4611686018427387904, found ";
  refused([](S& s) { s.generation = -1; }, "__metadata__ lockstep.generation" + numbers + "'-1'");
  refused([](S& s) { s.counters.window.updates = (std::int64_t{1} << 62) + 1; },
          "__metadata__ lockstep.updates" + numbers + "'4611686018427387905'");
  refused([](S& s) { s.counters.examples = -1; },
          "__metadata__ lockstep.examples: expected a number from 0 to 1.79769e+308, found '-1'");
  refused([](S& s) { s.counters.window_total = 0; },
          "__metadata__: expected counters of a training, found window_total 0, which is no positive weight, "
          "with pending 1");
  refused([](S& s) { s.counters.window.pending = 0; },
          "'w::window': expected no window, as lockstep.pending is 0, found one");
  for (const auto& [first, second, found] : {std::tuple{2, 0, "0"}, {1, 1, "1"}, {0, 3, "3"}, {-1, 0, "-1"}})
    refused(
        [&, f = first, l = second](S& s) {
          s.window[0].rows = {f, l};
        },
        detail::text("'w::window_rows': expected ascending rows within 0 to 2, found ", found));
  refused(
      [](S& s) {
        s.window[0] = {"w", Presence::absent, {}, false, {}};
      },
      "'w::window' shape: expected (3, 2), found (0, 2)");
  refused(
      [](S& s) {
        s.arrays.push_back({"w", "m", {6}, false, {1, 2, 3, 4, 5, 6}});
      },
      "'w:m' shape: expected (3, 2), found (6)");
  refused(
      [](S& s) {
        s.arrays.push_back({"v", "m", {1}, false, {1}});
      },
      "'v:m': expected a tensor of its variable, found none");
  refused(
      [](S& s) {
        s.arrays.push_back({"", "", {1}, false, {1}});
      },
      "'': expected VARIABLE, VARIABLE:SLOT, VARIABLE::window or VARIABLE::window_rows, found ''");
}

TEST_CASE("safetensors: training resumed from a file goes on as if it had never stopped",
          "[checkpoint][thread]") {
  const Watchdog watchdog;
  const Folder folder;
  const auto path = folder / "model.safetensors";
  for (const std::int64_t stop : {0, 1, 3, 5}) {  // micro-batches: nothing, a window open, closed, open again
    Model whole, first;
    SyncReplicas never{recipe(), whole.variables, replicas(4)},
        before{recipe(), first.variables, replicas(4)};
    train(never, whole, 0, stop);
    train(before, first, 0, stop);
    save(path, before.snapshot());
    train(never, whole, stop, stop + 8);
    for (const int count : {4, 2, 1}) {
      Model second;
      SyncReplicas after{recipe(), second.variables, replicas(count)};
      after.restore(load(path));
      CHECK(second.bits() == first.bits());
      CHECK(after.global_step() == stop / 3);
      train(after, second, stop, stop + 8);
      CHECK(second.bits() == whole.bits());
      CHECK(after.global_step() == never.global_step());
      for (const char* slot : {"m", "v", "average"}) {
        CHECK(after.slot(slot, second.weights) == never.slot(slot, whole.weights));
        CHECK(after.slot(slot, second.table) == never.slot(slot, whole.table));
      }
      auto a = after.snapshot(), b = never.snapshot();
      a.generation = b.generation;  // one was restored
      CHECK(same(a, b));
    }
  }
}

TEST_CASE("safetensors: what four replicas saved one optimizer goes on with", "[checkpoint][thread]") {
  const Watchdog watchdog;
  const Folder folder;
  const auto path = folder / "model.safetensors";
  Model first;
  SyncReplicas of_four{recipe(), first.variables, replicas(4)};
  train(of_four, first, 0, 5);
  save(path, of_four.snapshot());
  Model direct, through_file;
  Local in_memory{recipe(), direct.variables}, from_file{recipe(), through_file.variables};
  in_memory.restore(of_four.snapshot());
  from_file.restore(load(path));
  CHECK(from_file.pending() == 2);
  for (std::int64_t number = 20; number < 27; ++number) {
    contribute(in_memory, direct, number);
    contribute(from_file, through_file, number);
  }
  CHECK(from_file.global_step() == 4);
  CHECK(same(from_file.snapshot(), in_memory.snapshot()));

  save(path, from_file.snapshot());  // and back to replicas
  Model last;
  SyncReplicas of_two{recipe(), last.variables, replicas(2)};
  of_two.restore(load(path));
  CHECK(last.bits() == through_file.bits());
  train(of_two, last, 7, 10);
  CHECK(of_two.global_step() == 5);
}

TEST_CASE("safetensors: a window fits another length, and gradients of sixteen bits", "[checkpoint]") {
  const Folder folder;
  const auto path = folder / "model.safetensors";
  Variables<float, Eigen::half> variables, others;
  const auto w = variables.add("w", Eigen::VectorXf::Zero(3));
  const auto v = others.add("w", Eigen::VectorXf::Zero(3));
  const auto with = [](int k) { return GradientAggregation{Sgd{.learning_rate = 1}, {.grad_steps = k}}; };
  Local three{with(3), variables}, two{with(2), others};
  step(three, w, 1);
  save(path, three.snapshot());
  two.restore(load(path));
  step(two, v, 3);
  CHECK(two.global_step() == 1);
  CHECK(two.value(v) == Eigen::VectorXf::Constant(3, -2));
}
