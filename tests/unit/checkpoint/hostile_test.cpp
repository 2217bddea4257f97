// SPDX-License-Identifier: MIT
// Files that are damaged, foreign or made to do harm.
#include "support/allocations.hpp"
#include "unit/checkpoint/scene.hpp"

#include <optional>

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::ContainsSubstring;

namespace {

const std::string k_metadata =
    R"("__metadata__":{"lockstep.format":"1","lockstep.rule":"","lockstep.generation":"0",)"
    R"("lockstep.global_step":"0","lockstep.counter":"0","lockstep.pending":"1","lockstep.updates":"0",)"
    R"("lockstep.window_unit":"1","lockstep.window_total":"1","lockstep.examples":"0"})";

/// A header with these tensors beside good metadata.
std::string header(const std::string& tensors) { return '{' + k_metadata + ',' + tensors + '}'; }

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   std::uint64_t begin, std::uint64_t end) {
  return detail::text('"', name, R"(":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":[)",
                      begin, ',', end, "]}");
}

/// What `load` says about a file; checks that the error has the path and the field.
std::string refusal(const std::string& file, const std::string& field) {
  const auto error = caught<CheckpointError>(thrown_by([&] { snapshot_of<float>(file); }));
  if (!error) return "no CheckpointError";
  CHECK(error->path() == "memory");
  CHECK(error->field() == field);
  CHECK_THAT(error->what(), Catch::Matchers::StartsWith("memory: " + field + ": expected "));
  return error->what();
}
void refused(const std::string& file, const std::string& field, const std::string& expected,
             const std::string& found) {
  CHECK_THAT(refusal(file, field),
             ContainsSubstring("expected " + expected) && ContainsSubstring("found " + found));
}
void refused_header(const std::string& tensors, const std::string& field, const std::string& expected,
                    const std::string& found) {
  refused(file_with(header(tensors), std::string(16, '\0')), field, expected, found);
}

/// A file whose text was changed.
std::string with(std::string file, const std::string& from, const std::string& to) {
  const auto at = file.find(from);
  REQUIRE(at != std::string::npos);
  file = file.substr(8).replace(at - 8, from.size(), to);
  const std::size_t end = file.rfind('}') + 1;
  return file_with(file.substr(0, end), file.substr(end));
}

/// Whether the file is refused by an error of the library, or holds a snapshot that survives another round.
template <class T>
std::string trouble(std::string_view file) {
  try {
    const Snapshot<T> read = snapshot_of<T>(file);
    if (!same(snapshot_of<T>(file_of(read)), read)) return "another round changes it";
  } catch (const Error&) {
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("hostile files: the length of the header is compared with the file", "[checkpoint]") {
  refused("", "header length", "8 bytes", "a file of 0");
  refused("1234567", "header length", "8 bytes", "a file of 7");
  const auto length = [](std::uint64_t n, std::size_t rest) {
    std::string file(8 + rest, ' ');
    std::memcpy(file.data(), &n, 8);
    return file;
  };
  refused(length(0, 10), "header length", "2 to 10", "0");
  refused(length(11, 10), "header length", "2 to 10", "11");
  refused(length(~std::uint64_t{0}, 10), "header length", "2 to 10", "18446744073709551615");
}

TEST_CASE("hostile files: a header is JSON of one shape", "[checkpoint]") {
  refused(file_with("  {}"), "header", "an object from its first byte on", "' '");
  refused(file_with("[1,2]"), "header", "an object", "'['");
  refused(file_with("{\"a\":"), "header", "JSON", "a syntax error at its byte 6");
  refused(file_with("{} {}"), "header", "JSON", "a syntax error");
  refused(file_with("{\"\xFF\":1}"), "header", "JSON", "a syntax error");
  refused(file_with(std::string(100000, '{')), "header", "JSON", "a syntax error");
  refused(file_with(std::string("{\"a\":") + std::string(100000, '[')), "'a'", "an object", "an array");
  refused(file_with(R"({"a":1})"), "'a'", "an object", "1");
  refused(file_with(R"({"a":null})"), "'a'", "an object", "null");
  refused(file_with(R"({"__metadata__":[]})"), "'__metadata__'", "an object", "an array");
  refused(file_with(R"({"__metadata__":{"a":1}})"), "__metadata__ 'a'", "a string", "1");
  refused(file_with(R"({"__metadata__":{"a":{}}})"), "__metadata__ 'a'", "a string", "an object");
  refused(file_with(R"({"__metadata__":{"a":"","a":""}})"), "__metadata__", "each key once", "'a' twice");
  refused(file_with("{}"), "__metadata__ lockstep.format", "a value", "nothing");
}

TEST_CASE("hostile files: each tensor says type, shape and place, once", "[checkpoint]") {
  refused_header(R"("w":{"dtype":"F32","shape":[4]})", "'w' data_offsets", "a value", "nothing");
  refused_header(R"("w":{"dtype":"F32","data_offsets":[0,16]})", "'w' shape", "a value", "nothing");
  refused_header(R"("w":{"shape":[4],"data_offsets":[0,16]})", "'w' dtype", "a value", "nothing");
  refused_header(R"("w":{"dtype":"F32","dtype":"F32"})", "'w' dtype", "one value", "two");
  refused_header(R"("w":{"dtype":"F32","colour":"red"})", "'w'", "dtype, shape and data_offsets", "'colour'");
  refused_header(R"("w":{"dtype":5})", "'w' dtype", "a string", "5");
  refused_header(R"("w":{"dtype":["F32"]})", "'w' dtype", "a string", "an array");
  refused_header(R"("w":{"shape":"4"})", "'w' shape", "an array", "a string");
  refused_header(R"("w":{"shape":[-4]})", "'w' shape", "integers that are not negative", "-4");
  refused_header(R"("w":{"shape":[4.0]})", "'w' shape", "integers that are not negative", "'4.0'");
  refused_header(R"("w":{"shape":[18446744073709551616]})", "'w' shape", "integers that are not negative",
                 "'18446744073709551616'");
  refused_header(R"("w":{"shape":[[4]]})", "'w' shape", "integers that are not negative", "an array");
  refused_header(R"("w":{"shape":[true]})", "'w' shape", "integers that are not negative", "true");
  refused_header(R"("w":{"data_offsets":[0]})", "'w' data_offsets", "2 numbers", "1");
  refused_header(R"("w":{"data_offsets":[0,8,16]})", "'w' data_offsets", "2 numbers", "3");
  const std::string w = tensor("w", "F32", "[2]", 0, 8);
  refused_header(w + ',' + w, "header", "each name once", "'w' twice");
}

TEST_CASE("hostile files: the data are filled without gap or overlap", "[checkpoint]") {
  const auto w = [](std::uint64_t begin, std::uint64_t end) { return tensor("w", "F32", "[2]", begin, end); };
  refused_header(w(0, 8), "data", "8 bytes in all tensors", "16");
  refused_header(w(8, 16), "'w' data_offsets", "a begin at byte 0", "8, a gap");
  refused_header(w(0, 8) + ',' + tensor("v", "F32", "[2]", 4, 12), "'v' data_offsets", "a begin at byte 8",
                 "4, an overlap");
  refused_header(w(16, 24), "'w' data_offsets", "a range within 16 bytes of data", "16 to 24");
  refused_header(w(8, 0), "'w' data_offsets", "a range within", "8 to 0");
  refused_header(w(0, 12), "'w' data_offsets", "8 bytes for F32 (2)", "12");
  refused_header(tensor("w", "U8", "[16]", 0, 16), "'w' dtype", "F64, F32, F16, BF16 or I64", "'U8'");
  const char* shapes[] = {"[9223372036854775807,2]", "[4294967296,4294967296]", "[18446744073709551615]",
                          "[2305843009213693952]", "[4294967296,4294967296,0]"};
  for (const char* shape : shapes)
    refused_header(tensor("w", "F32", shape, 0, 16), "'w' shape", "at most 2^63 - 1 bytes", "(");
}

TEST_CASE("hostile files: names and what they belong to", "[checkpoint]") {
  const std::string w = tensor("w", "F32", "[2]", 0, 8);
  for (const char* name : {"", ":m", "w:", "w:m:v", "w::m", "::window", "w%41", "w%3a", "w%"}) {
    CAPTURE(name);
    refused_header(w + ',' + tensor(name, "F32", "[2]", 8, 16), '\'' + std::string(name) + '\'',
                   "VARIABLE, VARIABLE:SLOT", "'" + std::string(name));
  }
  refused_header(w + ',' + tensor("v:m", "F32", "[2]", 8, 16), "'v:m'", "a tensor of its variable", "none");
  refused_header(w + ',' + tensor("v::window", "F32", "[2]", 8, 16), "'v::window'",
                 "a tensor of its variable", "none");
  refused_header(w + ',' + tensor("w:m", "F32", "[1,2]", 8, 16), "'w:m' shape", "(2)", "(1, 2)");
  refused_header(w + ',' + tensor("w::window", "F32", "[1,2]", 8, 16), "'w::window' shape", "(2)", "(1, 2)");
  refused_header(w + ',' + tensor("w::window_rows", "I64", "[1]", 8, 16), "'w::window_rows'",
                 "a tensor of the window's values", "none");
  refused_header(w + ',' + tensor("w::window_rows", "I64", "[1,1]", 8, 16), "'w::window_rows' shape",
                 "1 extent", "(1, 1)");
  refused_header(w + ',' + tensor("w::window_rows", "F64", "[1]", 8, 16), "'w::window_rows' dtype", "I64",
                 "F64");
  refused_header(tensor("w", "I64", "[2]", 0, 16), "'w' dtype", "F32", "I64");
}

TEST_CASE("hostile files: rows of a window are ascending and exist", "[checkpoint]") {
  const auto file = [](std::int64_t first, std::int64_t second, const char* shape, std::uint64_t end) {
    std::string data(static_cast<std::size_t>(end), '\0');
    std::memcpy(data.data(), &first, 8);
    std::memcpy(data.data() + 8, &second, 8);
    return file_with(
        header(tensor("w::window_rows", "I64", "[2]", 0, 16) + ',' + tensor("w", "F32", "[3]", 16, 28) + ',' +
               tensor("w::window", "F32", shape, 28, end)),
        data);
  };
  CHECK(snapshot_of<float>(file(0, 2, "[2]", 36)).window.at(0).rows == std::vector<Index>{0, 2});
  for (const auto& [first, second, found] : {std::tuple{1, 1, "1"}, {2, 0, "0"}, {0, 3, "3"}, {-1, 0, "-1"}})
    refused(file(first, second, "[2]", 36), "'w::window_rows'", "ascending rows within 0 to 2", found);
  refused(file(0, 2, "[3]", 40), "'w::window' shape", "(2)", "(3)");
  refused(with(file(0, 2, "[2]", 36), R"("lockstep.pending":"1")", R"("lockstep.pending":"0")"),
          "'w::window'", "no window, as lockstep.pending is 0", "one");
}

TEST_CASE("hostile files: counters are numbers that are not negative", "[checkpoint]") {
  const std::string good = file_with(header(tensor("w", "F32", "[2]", 0, 8)), std::string(8, '\0'));
  CHECK(trouble<float>(good) == "");
  CHECK_NOTHROW(snapshot_of<float>(good));
  for (const char* value :
       {"", "-1", "1.5", " 1", "1 ", "+1", "0x1", "4611686018427387905", "9223372036854775808", "one"})
    refused(with(good, R"(lockstep.updates":"0")", detail::text(R"(lockstep.updates":")", value, '"')),
            "__metadata__ lockstep.updates", "a number from 0 to ", detail::text('\'', value, '\''));
  for (const char* value : {"", "-1", "nan", "inf", "1e", "1e999", "0x1p3"})
    refused(with(good, R"(lockstep.examples":"0")", detail::text(R"(lockstep.examples":")", value, '"')),
            "__metadata__ lockstep.examples", "a number from 0 to ", detail::text('\'', value, '\''));
  refused(with(good, R"("lockstep.rule":"",)", ""), "__metadata__ lockstep.rule", "a value", "nothing");
  refused(with(good, R"("lockstep.updates":"0",)", ""), "__metadata__ lockstep.updates", "a value",
          "nothing");
  refused(with(good, R"(format":"1")", R"(format":"2")"), "__metadata__ lockstep.format", "'1'", "'2'");
  refused(with(good, R"("lockstep.rule")", R"("lockstep.mood":"good","lockstep.rule")"), "__metadata__",
          "no other key of lockstep", "'lockstep.mood'");
}

TEST_CASE("hostile files: an open window has weights", "[checkpoint]") {
  const std::string good = file_with(header(tensor("w", "F32", "[2]", 0, 8)), std::string(8, '\0'));
  for (const std::string name : {"window_unit", "window_total"}) {
    const std::string bad = with(good, name + R"(":"1")", name + R"(":"0")");
    refused(bad, "__metadata__", "counters of a training", name + " 0");
    CHECK_NOTHROW(snapshot_of<float>(with(bad, R"(pending":"1")", R"(pending":"0")")));
  }
}

TEST_CASE("hostile files: texts of errors stay short", "[checkpoint]") {
  const std::string name(100000, 'n');
  std::string shape = "[1";
  for (int i = 0; i < 50000; ++i) shape += ",1";
  for (const std::string& tensors :
       {tensor(name, "F32", "[2]", 0, 12), tensor("w", "F32", shape + ']', 0, 12),
        tensor("w", name, "[2]", 0, 8), '"' + name + "\":{\"" + name + "\":1}"}) {
    const auto thrown =
        thrown_by([&] { snapshot_of<float>(file_with(header(tensors), std::string(16, '\0'))); });
    REQUIRE(caught<CheckpointError>(thrown));
    CHECK(message_of(thrown).size() < 600);
  }
}

TEST_CASE("hostile files: a claim of size takes no memory", "[checkpoint]") {
  // Refused before the data are looked at: four terabytes that the header claims cost what the header costs.
  const std::string file = file_with(header(tensor("w", "F32", "[1000000000000]", 0, 4000000000000)));
  const auto count = [](const std::string& of) {
    const std::uint64_t before = allocations();
    (void)thrown_by([&] { snapshot_of<float>(of); });
    return allocations() - before;
  };
  refused(file, "'w' data_offsets", "a range within 0 bytes of data", "0 to 4000000000000");
  CHECK(count(file) < 200);

  const Folder folder;
  write_content(folder / "sparse", file_with("{}"));
  std::filesystem::resize_file(folder / "sparse", std::uintmax_t{1} << 40);  // a TiB that takes no space
  CHECK_THROWS_AS(load(folder / "sparse"), CheckpointError);
  write_content(folder / "sparse", std::string("\0\0\0\0\1\0\0\0{", 9));  // a header of 4 GiB
  std::filesystem::resize_file(folder / "sparse", std::uintmax_t{1} << 40);
  CHECK_THROWS_WITH(load(folder / "sparse"), ContainsSubstring("2 to 100000000"));
}

TEST_CASE("hostile files: no change of a good file does harm", "[checkpoint]") {
  const std::string good = file_of(rich_snapshot());
  std::vector<std::string> troubles;
  const auto attempt = [&](const std::string& file) {
    for (const std::string& found : {trouble<float>(file), trouble<double>(file)})
      if (!found.empty()) troubles.push_back(found);
  };
  attempt(good);
  // Every truncation that ends in the header, and some in the data.
  for (std::size_t size = 0; size < good.size(); size += size < 2500 ? 1 : 97) attempt(good.substr(0, size));
  attempt(good + '\0');

  // Every byte of the length and the header, changed in a few ways.
  const std::size_t header_end = good.find("data_offsets") == std::string::npos ? 0 : good.rfind('}') + 1;
  REQUIRE(header_end > 500);
  for (std::size_t i = 0; i < header_end; ++i)
    for (const char byte :
         {'\0', '"', '9', '-', ':', static_cast<char>(good[i] ^ 1), static_cast<char>(good[i] ^ 128)}) {
      std::string file = good;
      file[i] = byte;
      attempt(file);
    }

  // Pieces taken out, doubled or moved, the length corrected so that it is the header which is read.
  std::uint64_t state = 1;
  const auto random = [&](std::size_t below) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::size_t>(state >> 33) % below;
  };
  const std::string text = good.substr(8, header_end - 8), data = good.substr(header_end);
  for (int i = 0; i < 1500; ++i) {
    std::string changed = text;
    for (std::size_t edits = 1 + random(3); edits > 0; --edits) {
      const std::size_t from = random(changed.size()), size = std::min(random(40), changed.size() - from);
      const std::string piece = changed.substr(from, size);
      if (random(2) == 0) changed.erase(from, size);
      if (random(2) == 0) changed.insert(random(changed.size() + 1), piece);
      if (changed.empty()) changed = "{}";
    }
    attempt(file_with(changed, data));
  }
  CHECK(troubles == std::vector<std::string>{});
}
