// SPDX-License-Identifier: MIT
#include "support/catch.hpp"
#include <lockstep/transport/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <span>
#include <sstream>
#include <string>
#include <utility>

using namespace lockstep;

namespace {

/// What the system says about the pages at an address: the line `VmFlags` of its mapping.
std::string flags_of(const std::byte* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (std::istringstream range(line); range >> std::hex >> begin >> dash >> end && dash == '-')
      is_here = begin <= at && at < end;
    else if (is_here && line.starts_with("VmFlags:"))
      return line + ' ';
  }
  return "";
}

}  // namespace

TEST_CASE("memory: small and large blocks are zeroed, aligned and as long as asked for",
          "[transport][memory]") {
  constexpr std::size_t large = std::size_t{64} << 20;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{4096}, large - 1, large, large + 12345}) {
    INFO(bytes << " bytes");
    ZeroedMemory memory(bytes);
    const std::span<std::byte> block = memory.bytes();
    REQUIRE(block.size() == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(block.data()) % k_alignment == 0);
    // Some places and the end, so that few pages are touched.
    for (std::size_t i = 0; i < bytes; i += std::max<std::size_t>(1, bytes / 8))
      CHECK(block[i] == std::byte{0});
    if (bytes == 0) continue;
    CHECK(block.back() == std::byte{0});
    block.front() = block.back() = std::byte{1};
  }
}

TEST_CASE("memory: arrays on different pages share none, wherever the block begins", "[transport][memory]") {
  constexpr std::uintptr_t page = 4096;
  ZeroedMemory memory(std::size_t{64} << 10);
  for (std::size_t start = 0; start < 2 * page; start += k_alignment) {
    const auto two_arrays = [&](Carver& carver) {
      std::byte* const first = carver.array<std::byte>(100);
      carver.next_page();
      return std::pair(reinterpret_cast<std::uintptr_t>(first) + 99,
                       reinterpret_cast<std::uintptr_t>(carver.array<std::byte>(100)));
    };
    Carver carver(memory.bytes().data() + start), counter;
    const auto [end, begin] = two_arrays(carver);
    CHECK(end / page < begin / page);
    (void)two_arrays(counter);
    CHECK(counter.used() == carver.used());
  }
}

TEST_CASE("memory: a block that is given back and asked for again is zeroed again", "[transport][memory]") {
  constexpr std::size_t bytes = (std::size_t{64} << 20) + 64;
  for (int round = 0; round < 3; ++round) {
    ZeroedMemory memory(bytes);
    CHECK(memory.bytes().front() == std::byte{0});
    CHECK(memory.bytes().back() == std::byte{0});
    memory.bytes().front() = memory.bytes().back() = std::byte{7};
  }
}

TEST_CASE("memory: blocks of 64 MiB and more ask for large pages", "[transport][memory]") {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage/enabled"))
    SKIP("the system has no large pages to ask for");
  const auto is_asked = [](ZeroedMemory& memory) {
    const std::string flags = flags_of(memory.bytes().data());
    INFO(flags);
    REQUIRE(!flags.empty());
    return flags.find(" hg ") != std::string::npos;
  };
  for (const std::size_t bytes : {std::size_t{64} << 20, (std::size_t{66} << 20) + 64}) {
    ZeroedMemory memory(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(memory.bytes().data()) % detail::k_large_page == 0);
    CHECK(is_asked(memory));
  }
}
