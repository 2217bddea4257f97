// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include "unit/gradients/pile.hpp"
#include <lockstep/gradients/row_set.hpp>

#include <algorithm>
#include <set>
#include <vector>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// A set over its own words, with words behind it that must stay as they are.
struct Guarded {
  explicit Guarded(Index rows)
      : words(static_cast<std::size_t>(RowSet::memory_for(rows)) + 2, 0),
        numbers(static_cast<std::size_t>(RowSet::numbers_for(rows)) + 1, 0),
        set(words.data(), numbers.data(), rows) {
    words[words.size() - 1] = words[words.size() - 2] = numbers.back() = 0xABCD;
  }
  bool guards_hold() const {
    return words[words.size() - 1] == 0xABCD && words[words.size() - 2] == 0xABCD && numbers.back() == 0xABCD;
  }
  bool all_zero() const {
    return std::all_of(words.begin(), words.end() - 2, [](auto word) { return word == 0; });
  }
  /// The members by way of summary and words, in the order of visiting.
  std::vector<Index> visited() const {
    std::vector<Index> rows;
    for (Index group = 0; group * 4096 < set.rows(); ++group)
      RowSet::for_each_bit(set.summary(group), [&](Index word) {
        RowSet::for_each_bit(set.word(group * 64 + word),
                             [&](Index bit) { rows.push_back((group * 64 + word) * 64 + bit); });
      });
    return rows;
  }
  std::vector<std::uint64_t> words, numbers;
  RowSet set;
};

}  // namespace

TEST_CASE("row_set: members at the boundaries of words and groups", "[gradients][row_set]") {
  for (const Index rows : {1, 2, 63, 64, 65, 127, 128, 4095, 4096, 4097, 8191, 8192, 8193, 262144}) {
    INFO("table of " << rows << " rows");
    Guarded table(rows);
    std::set<Index> expected;
    for (const Index row : {0, 1, 62, 63, 64, 65, 127, 128, 4094, 4095, 4096, 4097, 8191, 8192, 262143}) {
      if (row >= rows) continue;
      CHECK_FALSE(table.set.contains(row));
      CHECK(table.set.insert(row) == expected.insert(row).second);
      CHECK(table.set.contains(row));
      CHECK_FALSE(table.set.insert(row));
    }
    CHECK(table.set.insert(rows - 1) == expected.insert(rows - 1).second);
    CHECK(table.visited() == std::vector<Index>(expected.begin(), expected.end()));
    CHECK(table.guards_hold());
    table.set.clear();
    CHECK(table.all_zero());
    CHECK(table.guards_hold());
    CHECK(table.visited().empty());
  }
}

TEST_CASE("row_set: random sets agree with std::set in contents, order and union", "[gradients][row_set]") {
  Numbers numbers(7);
  for (const Index rows : {1, 64, 100, 4096, 5000, 70000}) {
    INFO("table of " << rows << " rows");
    Guarded first(rows), second(rows);
    std::set<Index> expected_first, expected_second;
    for (int i = 0; i < 200; ++i) {
      const Index row = numbers.below(rows);
      Guarded& to = numbers.chance(50) ? first : second;
      std::set<Index>& expected = &to == &first ? expected_first : expected_second;
      CHECK(to.set.insert(row) == expected.insert(row).second);
    }
    CHECK(first.visited() == std::vector<Index>(expected_first.begin(), expected_first.end()));
    first.set.insert_all(second.set);
    expected_first.insert(expected_second.begin(), expected_second.end());
    CHECK(first.visited() == std::vector<Index>(expected_first.begin(), expected_first.end()));
    CHECK(second.visited() == std::vector<Index>(expected_second.begin(), expected_second.end()));
    bool agrees = true;
    for (Index row = 0; row < rows; ++row)
      agrees = agrees && first.set.contains(row) == expected_first.contains(row);
    CHECK(agrees);
    CHECK(first.guards_hold());
    first.set.clear();
    CHECK(first.all_zero());
  }
}

TEST_CASE("row_set: needs one bit a row and one for each 64 rows", "[gradients][row_set]") {
  CHECK(RowSet::memory_for(1) == 2);
  CHECK(RowSet::memory_for(64) == 2);
  CHECK(RowSet::memory_for(65) == 3);
  CHECK(RowSet::memory_for(4096) == 65);
  CHECK(RowSet::memory_for(4097) == 67);
}

TEST_CASE("row_set: members are numbered in ascending order, and each number is taken once",
          "[gradients][row_set]") {
  Numbers random(3);
  for (const Index rows : {1, 63, 64, 65, 4096, 4097, 20000}) {
    INFO("table of " << rows << " rows");
    Guarded table(rows);
    CHECK(table.set.number_members() == 0);
    for (int round = 0; round < 3; ++round) {
      for (Index i = 0; i < 1 + rows / 3; ++i) table.set.insert(random.below(rows));
      const std::vector<Index> members = table.visited();
      const auto count = static_cast<Index>(members.size());
      CHECK(table.set.number_members() == count);
      bool in_order = true, taken_once = true;
      for (Index i = 0; i < count; ++i) {
        in_order = in_order && table.set.number(members[static_cast<std::size_t>(i)]) == i;
        taken_once = taken_once && table.set.take(i) && !table.set.take(i);
      }
      CHECK(in_order);
      CHECK(taken_once);
      bool found_from = true;
      for (Index row = 0, next = 0; row <= (count > 0 ? members.back() : -1); ++row) {
        found_from = found_from && table.set.number_from(row) == next;
        next += table.set.contains(row) ? 1 : 0;
      }
      CHECK(found_from);
      table.set.give_back(count);
      std::vector<Index> forwards, backwards;
      table.set.for_each([&](Index row) { forwards.push_back(row); });
      CHECK(forwards == members);
      table.set.for_each_backwards([&](Index row) { backwards.push_back(row); });
      CHECK(std::equal(backwards.rbegin(), backwards.rend(), members.begin(), members.end()));
      CHECK(table.guards_hold());
      table.set.clear();
    }
  }
}
