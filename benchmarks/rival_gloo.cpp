// SPDX-License-Identifier: MIT
// gloo's all-reduce between two processes, then the update in each, beside a step of two lockstep replicas.
#include "support/child.hpp"
#include "support/ranks.hpp"

#include <filesystem>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <optional>

namespace {

using namespace lockstep::bench;

/// Over TCP on the loopback interface, the transport that gloo has for every machine.
class Gloo {
 public:
  Gloo(int rank, const std::string& folder)
      : store_(folder), context_(std::make_shared<gloo::rendezvous::Context>(rank, k_processes)) {
    auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
    context_->connectFullMesh(store_, device);
  }
  int rank() const { return context_->rank; }
  void sum(float* from, float* to, lockstep::Index size) {
    gloo::AllreduceOptions options(context_);
    options.setInput(from, static_cast<std::size_t>(size));
    options.setOutput(to, static_cast<std::size_t>(size));
    void (*const add)(void*, const void*, const void*, std::size_t) = &gloo::sum<float>;
    options.setReduceFunction(add);
    gloo::allreduce(options);
  }
  void barrier() {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }

 private:
  gloo::rendezvous::FileStore store_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace

int main(int argc, char** argv) {
  std::string folder = (std::filesystem::temp_directory_path() / "lockstep-gloo-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  int status = 1;
  {
    Child other([&folder](int descriptor) {
      Lines lines(descriptor);
      Gloo gloo(1, folder);
      Rank rank(gloo);
      for (std::string command = lines.read(); !command.empty(); command = lines.read())
        lines.write(std::to_string(rank.run(command)));
      std::_Exit(0);
    });
    std::optional<Gloo> gloo(std::in_place, 0, folder);
    Rank rank(*gloo);
    status = RankProgram("gloo", [&](const std::string& command) {
               other.tell(command);
               const double here = rank.run(command);
               return std::max(here, std::stod(other.answer()));
             }).run(argc, argv);
  }
  std::filesystem::remove_all(folder);
  return status;
}
