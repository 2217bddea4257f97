// SPDX-License-Identifier: MIT
/// @file
/// Lines of text that arrives in pieces.
#include "lockstep-run/line_splitter.hpp"

#include "support/catch.hpp"

#include <random>
#include <string>
#include <vector>

using launcher::LineSplitter;
using Lines = std::vector<std::string>;

namespace {

/// The lines of a text that arrives in these pieces.
Lines lines_of(const std::vector<std::string>& pieces, LineSplitter splitter = LineSplitter{}) {
  Lines lines;
  const auto add = [&](std::string_view line) { lines.emplace_back(line); };
  for (const std::string& piece : pieces) splitter.feed(piece, add);
  splitter.finish(add);
  return lines;
}

}  // namespace

TEST_CASE("line_splitter: a text has a line for each newline", "[tools][lines]") {
  CHECK(lines_of({}) == Lines{});
  CHECK(lines_of({""}) == Lines{});
  CHECK(lines_of({"one\n"}) == Lines{"one"});
  CHECK(lines_of({"one\ntwo\n"}) == Lines{"one", "two"});
  CHECK(lines_of({"\n\none\n\n"}) == Lines{"", "", "one", ""});
}

TEST_CASE("line_splitter: a line is kept until its end arrives", "[tools][lines]") {
  LineSplitter splitter;
  Lines lines;
  const auto add = [&](std::string_view line) { lines.emplace_back(line); };
  splitter.feed("beg", add);
  splitter.feed("inning", add);
  CHECK(lines.empty());
  splitter.feed(" and end\nnext", add);
  CHECK(lines == Lines{"beginning and end"});
  splitter.feed("\n", add);
  CHECK(lines == Lines{"beginning and end", "next"});
}

TEST_CASE("line_splitter: a last line without newline comes at the end, once", "[tools][lines]") {
  LineSplitter splitter;
  Lines lines;
  const auto add = [&](std::string_view line) { lines.emplace_back(line); };
  splitter.feed("one\ntwo", add);
  splitter.finish(add);
  splitter.finish(add);
  CHECK(lines == Lines{"one", "two"});
}

TEST_CASE("line_splitter: other bytes are passed on as they are", "[tools][lines]") {
  const std::string odd("a\r\0\t\xff\x1b[0m", 9);
  CHECK(lines_of({odd + "\n" + odd}) == Lines{odd, odd});
}

TEST_CASE("line_splitter: a line that is too long is cut", "[tools][lines]") {
  const LineSplitter splitter(4);
  CHECK(lines_of({"abcd\n"}, splitter) == Lines{"abcd"});
  CHECK(lines_of({"abcd", "\n"}, splitter) == Lines{"abcd"});
  CHECK(lines_of({"abcde\n"}, splitter) == Lines{"abcd", "e"});
  CHECK(lines_of({"abcdefghi"}, splitter) == Lines{"abcd", "efgh", "i"});
  CHECK(lines_of({"abc", "defg", "h\nx\n"}, splitter) == Lines{"abcd", "efgh", "x"});
}

TEST_CASE("line_splitter: the pieces do not matter", "[tools][lines][property]") {
  std::mt19937 random(11);
  int differences = 0;
  for (int trial = 0; trial < 500; ++trial) {
    std::string text;
    for (auto i = random() % 60; i > 0; --i) text += "ab\n"[random() % 3];
    const LineSplitter splitter(1 + random() % 8);
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = random() % 7;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    if (lines_of(pieces, splitter) != lines_of({text}, splitter)) ++differences;
  }
  CHECK(differences == 0);
}
