// SPDX-License-Identifier: MIT
// Replicas that wait for others who, as lockstep-run says, do not come any more.
#include "processes/scenario.hpp"
#include <lockstep/transport/launcher.hpp>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sys/stat.h>

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Says what lockstep-run would say: a character for each replica. Written by renaming, so whole.
void say(const SessionFolder& folder, const std::string& ended, const std::string& session = "run") {
  const std::string path = folder.path() + "/ended";
  std::ofstream(path + ".new", std::ios::binary) << detail::ended_file_title(session) << ended;
  std::filesystem::rename(path + ".new", path);
}

/// What lockstep-run gives to replica `number`.
void enter(const SessionFolder& folder, int number) {
  ::setenv("LOCKSTEP_ENDED", (folder.path() + "/ended").c_str(), 1);
  ::setenv("LOCKSTEP_SESSION", "run", 1);
  ::setenv("LOCKSTEP_REPLICA", std::to_string(number).c_str(), 1);
}

Plan plan_of(const SessionFolder& folder, int required, int total, std::chrono::milliseconds deadline) {
  return {{.replicas_to_aggregate = required, .total_num_replicas = total, .deadline = deadline},
          folder.path()};
}

/// A launcher that says once of each replica that it has ended; then it is gone itself.
struct ToldOnce {
  static constexpr bool k_survives_kill = true;
  SharedMemory net;

  template <class State>
  class Session : public SharedMemory::Session<State> {
   public:
    Session(const ToldOnce& told, const State& initial, const SessionSpec& spec)
        : SharedMemory::Session<State>(told.net, initial, spec) {}
    std::string gone(int place) {
      return asked_.insert(place).second ? detail::text("replica ", place, " is over") : "";
    }

   private:
    std::set<int> asked_;
  };
};
static_assert(Transport<ToldOnce>);

}  // namespace

TEST_CASE("one that is restarted when the others have finished learns it at once", "[processes][launcher]") {
  const Watchdog watchdog(100s);  // less than the deadline
  for (const int restarted : {0, 1, 2}) {
    const SessionFolder folder;
    const Shared<FoundByAll<3>> all;
    const Plan plan = plan_of(folder, 3, 3, 1000s);
    std::string ended = "+++";
    ended[static_cast<std::size_t>(restarted)] = '.';
    say(folder, ended);
    Process process([&] {
      enter(folder, restarted);
      return train(plan, restarted, all->replica[restarted], steps(1, 5));
    });
    CHECK(process.wait() == 1);
    const Found& found = all->replica[restarted];
    INFO(found.text());
    CHECK(found.blamed == (restarted == 0 ? 1 : 0));
    CHECK(has(found.text(), "its program has ended with status 0: the training is over"));
    CHECK(folder.files() == std::vector<std::string>{"ended"});
  }
}

TEST_CASE("those who wait learn it when it happens", "[processes][launcher]") {
  const Watchdog watchdog(100s);
  const SessionFolder folder;
  const Shared<FoundByAll<3>> all;
  const Plan plan = plan_of(folder, 3, 3, 1000s);
  say(folder, "...");
  std::vector<Process> replicas;
  for (const int i : {0, 1})
    replicas.emplace_back([&, i] {
      enter(folder, i);
      return train(plan, i, all->replica[i], [](auto& replica, const auto& w, Found& found) {
        ++found.rounds;
        steps(1, 5)(replica, w, found);
      });
    });
  wait_until([&] { return all->replica[0].rounds + all->replica[1].rounds == 2; });  // at their only one
  std::this_thread::sleep_for(100ms);
  CHECK_FALSE(replicas[0].has_ended());
  CHECK_FALSE(replicas[1].has_ended());
  say(folder, "..-");
  for (const std::size_t i : {0U, 1U}) {
    CHECK(replicas[i].wait() == 1);
    INFO(all->replica[i].text());
    CHECK(all->replica[i].blamed == 2);
    CHECK(has(all->replica[i].text(), "its program has ended and is not started again"));
  }
}

TEST_CASE("a round that needs nobody else goes on without those who have ended", "[processes][launcher]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  const Shared<FoundByAll<2>> all;
  const Plan plan = plan_of(folder, 2, 3, 30s);
  say(folder, "..+");
  std::vector<Process> replicas;
  for (const int i : {0, 1})
    replicas.emplace_back([&, i] {
      enter(folder, i);
      if (i == 1) std::this_thread::sleep_for(200ms);  // the other one waits and looks
      return train(plan, i, all->replica[i], steps(1, 5));
    });
  for (const std::size_t i : {0U, 1U}) {
    CHECK(replicas[i].wait() == 0);
    CHECK(all->replica[i].text() == "");
  }
}

TEST_CASE("what is not of this lockstep-run is not believed", "[processes][launcher]") {
  const Watchdog watchdog;
  const auto waits_in_vain = [](auto&& prepare, int place = 1) {
    const SessionFolder folder;
    const Shared<FoundByAll<2>> all;
    const Plan plan = plan_of(folder, 2, 2, 200ms);
    Process process([&] {
      enter(folder, 1);
      prepare(folder);
      return train(plan, place, all->replica[place], steps(1, 5));
    });
    CHECK(process.wait() == 1);
    INFO(all->replica[place].text());
    return all->replica[place].missing == 1 - place;
  };
  CHECK(waits_in_vain([](const SessionFolder&) {}));  // there is no file
  CHECK(waits_in_vain([](const SessionFolder& folder) { say(folder, ".."); }));
  CHECK(waits_in_vain([](const SessionFolder& folder) { say(folder, ""); }));
  CHECK(waits_in_vain([](const SessionFolder& folder) { say(folder, "+.", "another"); }));
  CHECK(waits_in_vain(
      [](const SessionFolder& folder) { REQUIRE(::mkfifo((folder.path() + "/ended").c_str(), 0600) == 0); }));
  // Its replicas have other numbers than those of lockstep-run.
  CHECK(waits_in_vain([](const SessionFolder& folder) { say(folder, "++"); }, 0));
}

TEST_CASE("what the launcher has said once is enough", "[processes][launcher]") {
  const Watchdog watchdog;
  const SessionFolder folder;
  Variables<double> variables;
  const auto w = variables.add("w", Eigen::VectorXd::Zero(1));
  const ToldOnce told{{.name = "test", .replica = 0, .directory = folder.path()}};
  SyncReplicas trainer{Sgd{1.0}, variables, SyncOptions{.replicas_to_aggregate = 3, .deadline = 30s}, told};
  const auto thrown = thrown_by([&] {
    trainer.run([&](auto& replica) {
      replica.gradient(w).setOnes();
      replica.apply_gradients();
    });
  });
  const auto failed = caught<PeerFailed>(thrown);
  REQUIRE(failed);
  CHECK(failed->replica() == 1);
  CHECK(has(failed->what(), "replica 1 is over"));
}
