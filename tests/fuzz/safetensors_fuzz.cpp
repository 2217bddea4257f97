// SPDX-License-Identifier: MIT
/// @file
/// Feeds the checkpoint reader with what libFuzzer makes up: it must refuse by an error of the library, or
/// give a snapshot that stays the same when it is written and read again.
#include <lockstep/checkpoint/safetensors.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <span>
#include <vector>

namespace ls = lockstep;

namespace {

using Bytes = std::span<const std::byte>;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::cerr << what << '\n';
  std::abort();
}

template <class T>
std::vector<std::byte> written(const ls::Snapshot<T>& snapshot) {
  ls::detail::MemorySink sink;
  ls::detail::CheckpointWriter<T>(snapshot).write(sink);
  return std::move(sink.bytes);
}

template <class T>
void read(Bytes file) {
  try {
    const auto snapshot = ls::detail::read_checkpoint<T>(ls::detail::MemorySource{file});
    const auto once = written(snapshot);
    const auto twice = written(ls::detail::read_checkpoint<T>(ls::detail::MemorySource{once}));
    expect(once == twice, "another round changes the file");
  } catch (const ls::CheckpointError& error) {
    expect(!error.field().empty(), "an error without a field");
    expect(std::strlen(error.what()) < 1000, "an error without end");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes input = std::as_bytes(std::span(data, size));
  read<float>(input);
  read<double>(input);
  if (input.size() < 8) return 0;
  // The same with a length that fits, so that mutations of the header are not all refused by the first check.
  // Its end is the first zero byte, or that of the input.
  std::vector<std::byte> file(input.begin(), input.end());
  const auto end = std::find(file.begin() + 8, file.end(), std::byte{0});
  const auto length = static_cast<std::uint64_t>(end - file.begin()) - 8;
  std::memcpy(file.data(), &length, 8);
  read<float>(file);
  return 0;
}
