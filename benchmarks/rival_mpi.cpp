// SPDX-License-Identifier: MIT
// MPI_Allreduce between two processes, then the update in each, beside a step of two lockstep replicas in one
// of them while the other one sleeps. Run with `mpirun -np 2`.
#include "support/ranks.hpp"

#include <chrono>
#include <cstdio>
#include <mpi.h>
#include <thread>

namespace {

using namespace lockstep::bench;

class Mpi {
 public:
  Mpi(int& argc, char**& argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~Mpi() { MPI_Finalize(); }
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  void sum(const float* from, float* to, lockstep::Index size) {
    MPI_Allreduce(from, to, static_cast<int>(size), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void barrier() { MPI_Barrier(MPI_COMM_WORLD); }

  void send(const std::string& text) {
    MPI_Send(text.data(), static_cast<int>(text.size()), MPI_CHAR, 1 - rank_, 0, MPI_COMM_WORLD);
  }
  /// Sleeps until there is something: MPI's own wait would burn a core that lockstep needs.
  std::string receive() {
    MPI_Status status;
    for (int there = 0;;) {
      MPI_Iprobe(1 - rank_, 0, MPI_COMM_WORLD, &there, &status);
      if (there != 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    int length = 0;
    MPI_Get_count(&status, MPI_CHAR, &length);
    std::string text(static_cast<std::size_t>(length), ' ');
    MPI_Recv(text.data(), length, MPI_CHAR, 1 - rank_, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return text;
  }

 private:
  int rank_ = 0, size_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Mpi mpi(argc, argv);
  if (mpi.size() != k_processes) {
    std::fprintf(stderr, "run this with mpirun -np %d\n", k_processes);
    return 1;
  }
  Rank rank(mpi);
  if (mpi.rank() == 1) {
    for (std::string command = mpi.receive(); command != "end"; command = mpi.receive())
      mpi.send(std::to_string(rank.run(command)));
    return 0;
  }
  const int status = RankProgram("mpi_allreduce", [&](const std::string& command) {
                       mpi.send(command);
                       const double here = rank.run(command);
                       return std::max(here, std::stod(mpi.receive()));
                     }).run(argc, argv);
  mpi.send("end");
  return status;
}
