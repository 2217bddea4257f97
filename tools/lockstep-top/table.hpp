// SPDX-License-Identifier: MIT
/// @file
/// What is printed.
#pragma once

#include "look.hpp"
#include "meter.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace top {

/// A session: two lines on the whole, an empty one, and a table with a line for each replica.
std::vector<std::string> view_lines(const std::string& session, const Look& look, const Rates& rates);

/// A session in the list of all: its name, and what there is to say.
struct Entry {
  std::string name, replicas, step, condition;
};
Entry entry_of(const std::string& session, const Look& look);
std::vector<std::string> list_lines(const std::vector<Entry>& entries);

/// The text with '?' for each control character: names and notes are what other users wrote, and must not
/// give orders to the terminal.
std::string printable(std::string text);

/// What of the lines fits on a screen. The last line says how many are missing. 0: no limit.
std::vector<std::string> fitted(std::vector<std::string> lines, std::size_t rows, std::size_t columns);

}  // namespace top
