// SPDX-License-Identifier: MIT
/// @file
/// Lines on their way to two streams.
#include "lockstep-run/output_queue.hpp"

#include "lockstep-run/file_descriptor.hpp"
#include "support/catch.hpp"

#include <csignal>

using launcher::OutputQueue;
using launcher::Pipe;

namespace {

/// Writes all that waits for a pipe, and what arrives at its other end.
std::string pass_through(OutputQueue& queue, const Pipe& pipe) {
  std::string text;
  char bytes[8192];
  while (!queue.is_empty()) {
    REQUIRE(queue.write_some());
    const ssize_t size = read(pipe.read_end.number(), bytes, sizeof bytes);
    REQUIRE(size > 0);
    text.append(bytes, static_cast<std::size_t>(size));
  }
  return text;
}

}  // namespace

TEST_CASE("output_queue: writes lines with their prefix, in order", "[tools][output]") {
  const Pipe pipe = Pipe::open();
  OutputQueue queue;
  CHECK(queue.is_empty());
  queue.add_line(pipe.write_end.number(), "[0] ", "one");
  queue.add_line(pipe.write_end.number(), "[1] ", "");
  queue.add_line(pipe.write_end.number(), "", "two");
  CHECK(pass_through(queue, pipe) == "[0] one\n[1] \ntwo\n");
}

TEST_CASE("output_queue: lines for two descriptors of one pipe are not mixed", "[tools][output]") {
  const Pipe pipe = Pipe::open();
  const launcher::FileDescriptor second(dup(pipe.write_end.number()));
  OutputQueue queue;
  std::string expected;
  for (const char c : {'a', 'b', 'c', 'd'}) {
    const std::string line(10'000, c);  // more than is written at once
    queue.add_line(c % 2 == 0 ? second.number() : pipe.write_end.number(), "> ", line);
    expected += "> " + line + "\n";
  }
  CHECK(pass_through(queue, pipe) == expected);
}

TEST_CASE("output_queue: does not block where poll finds room", "[tools][output]") {
  const Pipe pipe = Pipe::open();
  OutputQueue queue;
  queue.add_line(pipe.write_end.number(), "", std::string(1'000'000, 'x'));
  // Non-blocking, so that a write for which there is no room would be seen as a short one.
  REQUIRE(fcntl(pipe.write_end.number(), F_SETFL, O_NONBLOCK) == 0);
  REQUIRE(fcntl(pipe.write_end.number(), F_SETPIPE_SZ, 4096) == 4096);
  REQUIRE(queue.write_some());
  char bytes[8192];
  CHECK(read(pipe.read_end.number(), bytes, sizeof bytes) == 4096);
}

TEST_CASE("output_queue: is full at its capacity and then keeps what still comes", "[tools][output]") {
  const Pipe pipe = Pipe::open();
  OutputQueue queue;
  queue.add_line(pipe.write_end.number(), "", std::string(OutputQueue::k_capacity - 2, 'x'));
  CHECK_FALSE(queue.is_full());
  queue.add_line(pipe.write_end.number(), "", "");
  CHECK(queue.is_full());
  queue.add_line(pipe.write_end.number(), "", "last");
  const std::string text = pass_through(queue, pipe);
  CHECK(text.size() == OutputQueue::k_capacity + 5);
  CHECK(text.ends_with("\nlast\n"));
  CHECK_FALSE(queue.is_full());
}

TEST_CASE("output_queue: a descriptor that nobody reads is lost, the other is not", "[tools][output]") {
  const auto handler_before = std::signal(SIGPIPE, SIG_IGN);
  Pipe gone = Pipe::open();
  const Pipe pipe = Pipe::open();
  gone.read_end.close();
  OutputQueue queue;
  queue.add_line(gone.write_end.number(), "", "one");
  queue.add_line(pipe.write_end.number(), "", "two");
  queue.add_line(gone.write_end.number(), "", "three");
  CHECK(queue.descriptor() == gone.write_end.number());
  CHECK_FALSE(queue.write_some());
  queue.add_line(gone.write_end.number(), "", "four");
  CHECK(pass_through(queue, pipe) == "two\n");
  std::signal(SIGPIPE, handler_before);
}
