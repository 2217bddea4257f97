# SPDX-License-Identifier: MIT
"""Runs lockstep-run with small programs as replicas: lockstep_run_test.py LOCKSTEP_RUN TRAINER WITHOUT_FORK [TEST...]"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import harness
from harness import PATIENCE, children_of, process_status, wait_until

TRAINER = pathlib.Path(sys.argv.pop(2)).resolve()  # top_session.cpp
WITHOUT_FORK = pathlib.Path(sys.argv.pop(2)).resolve()  # lockstep-run with failing_fork.cpp
TOO_LONG = "1000"  # seconds that no test waits for
LOOP = "while :; do sleep 0.05; done"


class Test(harness.ProgramTest):
    def summary_of(self, result, replica):
        """Runs, seconds, and how they ended."""
        found = re.search(rf"^lockstep-run: +{replica} +(\d+) +([\d.]+)  (.*)$", result.err, re.MULTILINE)
        self.assertIsNotNone(found, result.err)
        return int(found[1]), float(found[2]), found[3]

    def wait_for_each(self, replicas, pattern):
        """Waits until the output of each replica has such a line."""
        for replica in range(replicas):
            self.wait_for(rf"^\[{replica}\] {pattern}")


def lines_of(result, replica):
    """What this replica has printed."""
    prefix = f"[{replica}] "
    return [line[len(prefix):] for line in result.lines if line.startswith(prefix)]


class CommandLine(Test):
    def expect_refusal(self, arguments, sentence):
        result = self.run_it(*arguments)
        self.assertEqual(result.status, 125)
        self.assertEqual(result.out, "")
        self.assertIn(sentence, result.err)
        self.assertIn("--help", result.err)

    def test_no_arguments(self):
        self.expect_refusal([], "the number of replicas is missing")

    def test_no_command(self):
        self.expect_refusal(["-n", "2"], "the command is missing")

    def test_no_command_after_dashes(self):
        self.expect_refusal(["-n", "2", "--"], "the command is missing")

    def test_zero_replicas(self):
        self.expect_refusal(["-n", "0", "--", "true"], "-n needs a whole number from 1 to 128, not '0'")

    def test_negative_replicas(self):
        self.expect_refusal(["-n", "-3", "--", "true"], "-n needs a whole number from 1 to 128, not '-3'")

    def test_unknown_option(self):
        self.expect_refusal(["-n", "1", "--twice", "true"], "there is no option '--twice'")

    def test_help_names_every_option(self):
        result = self.run_it("--help")
        self.assertEqual((result.status, result.err), (0, ""))
        for option in ["-n", "--restart", "--bind", "--session", "--timeout", "--grace", "--version"]:
            self.assertIn(option, result.out)

    def test_version(self):
        self.assertRegex(self.run_it("--version").out, r"^lockstep-run \d+\.\d+\.\d+\n$")

    def test_command_without_dashes_and_its_options(self):
        result = self.run_it("-n", 1, "printf", "%s|", "-n", "--", "a b")
        self.assertEqual(result.out, "[0] -n|--|a b|\n")


class Environment(Test):
    SHOW = 'echo "$LOCKSTEP_SESSION $LOCKSTEP_REPLICA $LOCKSTEP_REPLICAS $LOCKSTEP_RESTART"'

    def test_each_replica_has_its_number(self):
        result = self.run_it("-n", 3, "--session", "named", "--", "sh", "-c", self.SHOW)
        self.assertEqual(result.status, 0)
        self.assertEqual(sorted(result.lines), [f"[{i}] named {i} 3 0" for i in range(3)])

    def test_session_is_unique_unless_it_is_named(self):
        sessions = []
        for _ in range(2):
            result = self.run_it("-n", 2, "--", "sh", "-c", self.SHOW)
            names = {line.split()[1] for line in result.lines}
            self.assertEqual(len(names), 1)
            sessions += names
            self.assertIn(f"session {sessions[-1]}, 2 replica", result.err)
        self.assertNotEqual(*sessions)

    def test_a_session_of_an_outer_run_is_not_taken_over(self):
        self.environment["LOCKSTEP_SESSION"] = "outer"
        self.assertNotIn("outer", self.run_it("-n", 1, "--", "sh", "-c", self.SHOW).out)

    def test_who_has_ended_for_good_can_be_read(self):
        script = ('case $LOCKSTEP_REPLICA in 0) exit 0 ;; 1) exit 3 ;; 2) [ $LOCKSTEP_RESTART = 1 ]; exit ;; esac; '
                  'until tail -n 1 $LOCKSTEP_ENDED | grep -q "^[+]-[+]"; do sleep 0.01; done; cat $LOCKSTEP_ENDED')
        result = self.run_it("-n", 4, "--session", "named", "--restart", 1, "--", "sh", "-c", script)
        self.assertEqual(lines_of(result, 3), ["lockstep-run named", "+-+."])

    def test_who_is_restarted_has_not_ended(self):
        script = f"tail -n 1 $LOCKSTEP_ENDED; echo; [ $LOCKSTEP_RESTART = 2 ]"
        result = self.run_it("-n", 1, "--restart", 2, "--", "sh", "-c", script)
        self.assertEqual([line for line in result.lines if line], ["[0] ."] * 3)

    def test_input_is_empty(self):
        process = self.start("-n", 1, "--", "sh", "-c", "cat; echo end", stdin=subprocess.PIPE)
        self.assertEqual(self.finish(process).out, "[0] end\n")
        process.stdin.close()

    def test_signals_and_descriptors_are_as_without_lockstep_run(self):
        show = "grep -E 'Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd | tr '\\n' ' '"
        alone = subprocess.run(["sh", "-c", show], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                               check=True)
        result = self.run_it("-n", 2, "--", "sh", "-c", show)
        for replica in range(2):
            self.assertEqual(lines_of(result, replica), alone.stdout.splitlines())

    def test_runs_with_closed_standard_streams(self):
        def close_all():
            for number in range(3):
                os.close(number)
        file = self.folder / "ran"
        script = f"echo text && echo text >&2 && touch {file}"
        result = self.run_it("-n", 1, "--", "sh", "-c", script, preexec_fn=close_all)
        self.assertEqual(result.status, 0)
        self.assertTrue(file.exists())

    def test_children_are_noticed_where_sigchld_was_ignored(self):
        ignore = lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        self.assertEqual(self.run_it("-n", 1, "--", "sh", "-c", "exit 3", preexec_fn=ignore).status, 3)

    def test_no_file_is_left(self):
        inside = self.folder / "inside"
        inside.mkdir()
        self.environment["TMPDIR"] = str(inside)
        self.run_it("-n", 2, "--restart", 1, "--", "sh", "-c", "exit 1", cwd=inside)
        self.assertEqual(list(inside.iterdir()), [])


class Bind(Test):
    SHOW = "grep Cpus_allowed_list /proc/self/status"

    def cores(self, *options, allowed):
        result = self.run_it("-n", 5, *options, "--", "sh", "-c", self.SHOW,
                             preexec_fn=lambda: os.sched_setaffinity(0, allowed))
        return [lines_of(result, i)[0].split()[-1] for i in range(5)]

    def test_round_robin_over_all_allowed_cores(self):
        allowed = sorted(os.sched_getaffinity(0))
        self.assertEqual(self.cores("--bind", allowed=allowed), [str(allowed[i % len(allowed)]) for i in range(5)])

    def test_only_allowed_cores(self):
        last = max(os.sched_getaffinity(0))
        self.assertEqual(self.cores("--bind", allowed={last}), [str(last)] * 5)

    def test_not_pinned_unless_asked_for(self):
        allowed = os.sched_getaffinity(0)
        plain = subprocess.run(["sh", "-c", self.SHOW], capture_output=True, text=True, check=True).stdout.split()[-1]
        self.assertEqual(self.cores(allowed=allowed), [plain] * 5)


class ExitStatus(Test):
    def test_all_good(self):
        result = self.run_it("-n", 3, "--", "true")
        self.assertEqual(result.status, 0)
        self.assertIn("lockstep-run: exit status 0\n", result.err)

    def test_one_failure(self):
        self.assertEqual(self.run_it("-n", 3, "--", "sh", "-c", "exit $((LOCKSTEP_REPLICA * 7 % 11 % 7))").status, 3)

    def test_signal(self):
        self.assertEqual(self.run_it("-n", 1, "--", "sh", "-c", "kill -SEGV $$").status, 128 + signal.SIGSEGV)

    def test_first_failure_in_time(self):
        # Replica 0 fails when replica 1 has been waited for: a process that was not is still found by kill.
        script = ('if [ $LOCKSTEP_REPLICA = 1 ]; then echo $$ >pid.new; mv pid.new pid; exit 5; fi; '
                  'until [ -e pid ]; do sleep 0.01; done; '
                  'while kill -0 $(cat pid) 2>/dev/null; do sleep 0.01; done; exit 3')
        self.assertEqual(self.run_it("-n", 2, "--", "sh", "-c", script, cwd=self.folder).status, 5)

    def test_others_go_on_after_a_failure(self):
        result = self.run_it("-n", 2, "--", "sh", "-c", "[ $LOCKSTEP_REPLICA = 1 ] || exit 4; sleep 0.2; echo done")
        self.assertEqual(result.status, 4)
        self.assertEqual(result.lines, ["[1] done"])

    def test_missing_program(self):
        result = self.run_it("-n", 2, "--restart", 3, "--", "./no-such-trainer", cwd=self.folder)
        self.assertEqual(result.status, 127)
        self.assertIn("cannot start './no-such-trainer' as replica 0: No such file or directory", result.err)
        self.assertEqual(self.summary_of(result, 1)[0], 0)

    def test_program_that_cannot_be_executed(self):
        (self.folder / "data").write_text("no program")
        result = self.run_it("-n", 1, "--", "./data", cwd=self.folder)
        self.assertEqual(result.status, 126)
        self.assertIn("Permission denied", result.err)

    def test_time_limit(self):
        result = self.run_it("-n", 2, "--timeout", 0.3, "--", "sleep", TOO_LONG)
        self.assertEqual(result.status, 124)
        self.assertIn("--timeout is reached", result.err)
        self.assertEqual(self.summary_of(result, 1)[::2], (1, "SIGTERM"))

    def test_time_limit_that_is_not_reached(self):
        self.assertEqual(self.run_it("-n", 2, "--timeout", TOO_LONG, "--", "true").status, 0)


class Restart(Test):
    def test_keeps_the_number_and_counts(self):
        script = ('echo "$LOCKSTEP_REPLICA $LOCKSTEP_RESTART"; '
                  '[ $LOCKSTEP_REPLICA != 1 ] || [ $LOCKSTEP_RESTART = 2 ]')
        result = self.run_it("-n", 3, "--restart", 2, "--", "sh", "-c", script)
        self.assertEqual(result.status, 0)
        self.assertEqual(lines_of(result, 1), ["1 0", "1 1", "1 2"])
        self.assertEqual(lines_of(result, 0) + lines_of(result, 2), ["0 0", "2 0"])
        self.assertEqual(self.summary_of(result, 1)[::2], (3, "status 1 x 2, status 0"))
        self.assertIn("replica 1 ended with status 1, restart 2 of 2", result.err)

    def test_limit_is_for_each_replica(self):
        result = self.run_it("-n", 2, "--restart", 3, "--", "sh", "-c", "echo run; kill -9 $$")
        self.assertEqual(result.status, 137)
        for replica in range(2):
            self.assertEqual(lines_of(result, replica), ["run"] * 4)
            self.assertEqual(self.summary_of(result, replica)[::2], (4, "SIGKILL x 4"))

    def test_not_without_being_asked_for(self):
        self.assertEqual(self.run_it("-n", 1, "--", "sh", "-c", "echo run; exit 1").lines, ["[0] run"])

    def test_not_after_success(self):
        self.assertEqual(self.run_it("-n", 1, "--restart", 3, "--", "echo", "run").lines, ["[0] run"])

    def test_killed_from_outside(self):
        script = f'echo "pid $$"; [ $LOCKSTEP_REPLICA$LOCKSTEP_RESTART = 00 ] && {LOOP}; exit 0'
        process = self.start("-n", 2, "--restart", 1, "--", "sh", "-c", script)
        os.kill(int(self.wait_for(r"^\[0\] pid (\d+)")[1]), signal.SIGKILL)
        result = self.finish(process)
        self.assertEqual(result.status, 0)
        self.assertEqual(self.summary_of(result, 0)[::2], (2, "SIGKILL, status 0"))

    def test_what_the_dead_one_had_started_is_killed(self):
        script = f'if [ $LOCKSTEP_RESTART = 0 ]; then sleep {TOO_LONG} & echo "pid $!"; exit 1; fi; {LOOP}'
        process = self.start("-n", 1, "--restart", 1, "--", "sh", "-c", script)
        left = int(self.wait_for(r"^\[0\] pid (\d+)")[1])
        wait_until(lambda: process_status(left) is None, "what the dead replica had started is gone")
        process.terminate()
        self.finish(process)

    def test_not_while_stopping(self):
        process = self.start("-n", 1, "--restart", 3, "--", "sh", "-c", f"echo run; {LOOP}")
        self.wait_for("run")
        process.terminate()
        result = self.finish(process)
        self.assertEqual(result.lines, ["[0] run"])
        self.assertEqual(result.status, 128 + signal.SIGTERM)
        self.assertNotIn("restart 1 of 3", result.err)

    def test_others_go_on_if_the_program_has_vanished(self):
        trainer = self.folder / "trainer"
        trainer.write_text("#!/bin/sh\necho running\n"
                           "[ $LOCKSTEP_REPLICA = 1 ] || { until [ -e gone ]; do sleep 0.01; done; exit 1; }\n"
                           "until [ -e go ]; do sleep 0.01; done; echo done\n")
        trainer.chmod(0o700)
        process = self.start("-n", 2, "--restart", 3, "--", "./trainer", cwd=self.folder)
        self.wait_for_each(2, "running")
        trainer.rename(self.folder / "gone")
        self.wait_for("cannot start './trainer' as replica 0", "err")
        (self.folder / "go").touch()
        result = self.finish(process)
        self.assertEqual(lines_of(result, 1), ["running", "done"])
        self.assertEqual(result.status, 127)
        self.assertEqual(self.summary_of(result, 0)[2], "status 1, not started (No such file or directory)")

    def run_short_of_processes(self, failures):
        """A replica that ends with 1, and with 0 once it is started again, which fails before. See failing_fork.cpp."""
        self.program = WITHOUT_FORK
        self.environment["LOCKSTEP_TEST_NO_FORK"] = str(self.folder / "no-fork")
        script = (f'echo "run $LOCKSTEP_RESTART"; [ $LOCKSTEP_RESTART = 1 ] && exit 0; '
                  f'printf {failures} > $LOCKSTEP_TEST_NO_FORK; exit 1')
        return self.run_it("-n", 1, "--restart", 1, "--", "sh", "-c", script)

    def test_tried_again_if_there_is_no_room_for_a_process(self):
        result = self.run_short_of_processes("xx")
        self.assertIn("cannot start 'sh' as replica 0: Resource temporarily unavailable, tried again in 200 ms (2 of 7)",
                      result.err)
        self.assertEqual(result.status, 0)
        self.assertEqual(lines_of(result, 0), ["run 0", "run 1"])
        self.assertEqual(self.summary_of(result, 0)[::2], (2, "status 1, status 0"))

    def test_not_tried_again_for_ever(self):
        result = self.run_short_of_processes("x" * 20)
        self.assertEqual(result.status, 126)
        self.assertEqual(result.err.count("tried again"), 7)
        self.assertEqual(self.summary_of(result, 0)[2], "status 1, not started (Resource temporarily unavailable)")

    def test_not_tried_again_while_stopping(self):
        result = self.run_short_of_processes("s")
        self.assertEqual(result.status, 1)
        self.assertEqual(lines_of(result, 0), ["run 0"])
        self.assertEqual(self.summary_of(result, 0)[2], "status 1")

    def test_a_trainer_that_comes_after_the_others_have_finished_ends_at_once(self):
        # Its deadline is longer than this test waits. Both train; 1 is killed when 0 has finished.
        stop = self.folder / "stop"
        script = (f'[ $LOCKSTEP_RESTART = 0 ] || {{ rm {stop}; exec "$@"; }}; "$@"; [ $LOCKSTEP_REPLICA = 0 ] && exit 0; '
                  'until tail -n 1 $LOCKSTEP_ENDED | grep -q "^[+]"; do sleep 0.01; done; kill -9 $$')
        train = f'exec sh -c \'{script}\' sh {TRAINER} {self.folder} $LOCKSTEP_SESSION $LOCKSTEP_REPLICA 2 1'
        process = self.start("-n", 2, "--restart", 1, "--", "sh", "-c", train)
        wait_until(lambda: [file for file in self.folder.iterdir() if file.name.startswith("lockstep.")], "they train")
        stop.touch()
        result = self.finish(process)
        self.assertIn("replica 1 ended with SIGKILL, restart 1 of 1", result.err)
        self.assertIn("replica 0 failed: its program has ended with status 0: the training is over", result.err)
        self.assertEqual(self.summary_of(result, 0)[2], "status 0")
        self.assertNotEqual(result.status, 0)

    def test_stop_ends_a_loop_of_crashes(self):
        process = self.start("-n", 4, "--restart", 1000000, "--", "false")
        self.wait_for("restart 3 of 1000000", "err")
        process.terminate()
        self.assertEqual(self.finish(process).status, 1)


class Signals(Test):
    def passed_on(self, name):
        """The replicas react to a signal, and live on."""
        process = self.start("-n", 2, "--", "sh", "-c",
                             f'trap "echo got {name}" {name}; trap "exit 0" TERM; echo ready; {LOOP}')
        self.wait_for_each(2, "ready")
        process.send_signal(getattr(signal, "SIG" + name))
        self.wait_for_each(2, f"got {name}")
        return process

    def test_usr1(self):
        process = self.passed_on("USR1")
        process.terminate()
        self.assertEqual(self.finish(process).status, 0)

    def test_usr2(self):
        process = self.passed_on("USR2")
        self.assertNotIn("asked to end", self.err())
        process.terminate()
        self.assertEqual(self.finish(process).status, 0)

    def stops(self, name):
        process = self.start("-n", 2, "--restart", 5, "--", "sh", "-c",
                             f'trap "echo got {name}; exit $LOCKSTEP_REPLICA" {name}; echo ready; {LOOP}')
        self.wait_for_each(2, "ready")
        process.send_signal(getattr(signal, "SIG" + name))
        result = self.finish(process)
        self.assertEqual(result.status, 1)
        for replica in range(2):
            self.assertEqual(lines_of(result, replica), ["ready", f"got {name}"])
        self.assertIn(f"SIG{name}: the replicas are asked to end", result.err)

    def test_int(self):
        self.stops("INT")

    def test_term(self):
        self.stops("TERM")

    def test_hup(self):
        self.stops("HUP")

    def test_quit(self):
        self.stops("QUIT")

    def test_default_action_gives_128_and_the_signal(self):
        process = self.start("-n", 2, "--", "sh", "-c", f"echo ready; {LOOP}")
        self.wait_for(r"^\[1\] ready")
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(process).status, 128 + signal.SIGINT)

    def test_second_one_kills(self):
        process = self.start("-n", 2, "--grace", TOO_LONG, "--", "sh", "-c", f'trap "" INT TERM; echo ready; {LOOP}')
        self.wait_for_each(2, "ready")
        process.send_signal(signal.SIGINT)
        self.wait_for("asked to end", "err")
        time.sleep(0.7)  # what comes at once is the same request
        process.send_signal(signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(result.status, 137)
        self.assertIn("the replicas are killed", result.err)

    def test_end_of_grace_kills(self):
        process = self.start("-n", 1, "--grace", 0.3, "--", "sh", "-c", f'trap "" INT TERM; echo ready; {LOOP}')
        self.wait_for("ready")
        process.terminate()
        self.assertEqual(self.finish(process).status, 137)

    def test_stop_while_starting(self):
        for attempt in range(10):
            process = self.start("-n", 20, "--", "sleep", TOO_LONG)
            time.sleep(attempt * 0.005)
            process.terminate()  # it may not even have come to main() yet
            self.assertIn(self.finish(process).status, (-signal.SIGTERM, 128 + signal.SIGTERM))

    def test_the_trainer_below_a_shell_may_finish(self):
        # The shell ends by the signal at once; what it runs saves first, and is not killed meanwhile.
        inner = 'trap "sleep 0.3; echo saved; exit" TERM; echo ready; ' + LOOP
        process = self.start("-n", 1, "--grace", TOO_LONG, "--", "sh", "-c", f"({inner}) & wait")
        self.wait_for("ready")
        process.terminate()
        result = self.finish(process)
        self.assertEqual(result.lines, ["[0] ready", "[0] saved"])
        self.assertEqual(result.status, 128 + signal.SIGTERM)

    def test_below_a_shell_grace_ends_as_well(self):
        inner = 'trap "" TERM; echo ready; ' + LOOP
        process = self.start("-n", 1, "--grace", 0.3, "--", "sh", "-c", f"({inner}) & wait")
        self.wait_for("ready")
        process.terminate()
        self.assertEqual(self.finish(process).status, 128 + signal.SIGTERM)

    def test_ignored_ones_stay_ignored(self):
        process = self.start("-n", 1, "--", "sh", "-c", f'trap "echo got USR1" USR1; echo ready; {LOOP}',
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # as nohup does
        self.wait_for("ready")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGUSR1)
        self.wait_for("got USR1")
        self.assertNotIn("asked to end", self.err())
        process.terminate()
        self.finish(process)

    def test_suspend_and_go_on(self):
        # One that starts no others: a shell that has just called vfork is not seen as stopped.
        process = self.start("-n", 1, "--", "sleep", TOO_LONG)

        def sleeping():
            return [pid for pid, status in children_of(process.pid).items() if status["name"] == "sleep"]
        replica = wait_until(sleeping, "it has started")[0]
        process.send_signal(signal.SIGTSTP)
        for pid in (replica, process.pid):
            wait_until(lambda: process_status(pid)["state"] == "T", "it is stopped")
        process.send_signal(signal.SIGCONT)
        for pid in (replica, process.pid):
            wait_until(lambda: process_status(pid)["state"] != "T", "it goes on")
        process.terminate()
        self.assertEqual(self.finish(process).status, 128 + signal.SIGTERM)


class Output(Test):
    def test_both_streams_have_prefixes(self):
        result = self.run_it("-n", 2, "--", "sh", "-c", "echo out; echo err >&2")
        self.assertEqual(sorted(result.lines), ["[0] out", "[1] out"])
        for replica in range(2):
            self.assertIn(f"[{replica}] err\n", result.err)

    def test_a_last_line_without_newline_is_kept(self):
        result = self.run_it("-n", 1, "--", "sh", "-c", "printf 'one\\n\\ntwo'; printf three >&2")
        self.assertEqual(result.out, "[0] one\n[0] \n[0] two\n")
        self.assertIn("[0] three\n", result.err)

    def test_also_of_one_that_is_killed(self):
        script = "printf 'run %s' $LOCKSTEP_RESTART; kill -9 $$"
        result = self.run_it("-n", 1, "--restart", 1, "--", "sh", "-c", script)
        self.assertEqual(result.out, "[0] run 0\n[0] run 1\n")

    def test_lines_are_never_mixed(self):
        writer = self.folder / "writer.py"
        writer.write_text('''
import os, random
replica = os.environ["LOCKSTEP_REPLICA"]
random.seed(int(replica))
for number in range(200):
    stream = random.choice([1, 2])
    length = random.choice([0, 1, 10, 100, 9000])
    line = f"{replica} {number} {stream} " + replica * length + ".\\n"
    while line:  # in pieces
        size = random.choice([1, 3, 50, 5000])
        os.write(stream, line[:size].encode())
        line = line[size:]
''')
        result = self.run_it("-n", 4, "--", sys.executable, str(writer), stderr=subprocess.STDOUT)
        self.assertEqual(result.status, 0)
        numbers = {(replica, stream): [] for replica in range(4) for stream in (1, 2)}
        for line in result.lines:
            if not line.startswith("lockstep-run: "):
                found = re.fullmatch(r"\[(\d)\] \1 (\d+) ([12]) \1*\.", line)
                self.assertIsNotNone(found, line[:200])
                numbers[int(found[1]), int(found[3])].append(int(found[2]))
        for replica in range(4):
            self.assertEqual(sorted(numbers[replica, 1] + numbers[replica, 2]), list(range(200)))
            for stream in (1, 2):
                self.assertEqual(numbers[replica, stream], sorted(numbers[replica, stream]))

    def test_a_large_output_is_whole(self):
        result = self.run_it("-n", 2, "--", "seq", "100000")
        for replica in range(2):
            self.assertEqual(lines_of(result, replica), [str(i) for i in range(1, 100001)])

    def test_replicas_wait_for_a_slow_reader_and_can_be_stopped(self):
        done = self.folder / "done"
        script = f"yes $(printf %01000d 7) | head -c 20000000; touch {done}"
        process = self.start("-n", 1, "--", "sh", "-c", script, stdout=subprocess.PIPE)
        time.sleep(1)  # long enough to take it all, if nothing held it up
        self.assertFalse(done.exists())
        # The first ends the replica, a further one does not wait for the reader.
        def is_over():
            process.terminate()
            time.sleep(0.6)
            return process.poll() is not None
        wait_until(is_over, "it ends though nobody reads")
        self.assertFalse(done.exists())
        process.stdout.close()
        self.assertEqual(self.left(), [])

    def test_a_reader_that_leaves_ends_the_run(self):
        process = self.start("-n", 2, "--restart", 9, "--", "yes", stdout=subprocess.PIPE)
        self.assertRegex(process.stdout.readline(), rb"^\[[01]\] y\n$")
        process.stdout.close()
        result = self.finish(process)
        self.assertIn("the output cannot be written any more", result.err)
        self.assertEqual(result.status, 128 + signal.SIGTERM)

    def test_a_stranger_who_holds_the_stream_does_not_hold_up_the_end(self):
        process = self.start("-n", 1, "--", "sh", "-c", 'printf tail; echo $$ >new; mv new pid; '
                             'until [ -e go ]; do sleep 0.01; done', cwd=self.folder)
        wait_until((self.folder / "pid").exists, "the replica has written")
        with open(f"/proc/{(self.folder / 'pid').read_text().strip()}/fd/1", "wb"):
            (self.folder / "go").touch()
            self.assertEqual(self.finish(process).out, "[0] tail\n")

    def test_summary(self):
        result = self.run_it("-n", 2, "--", "sh", "-c", "sleep 0.2; exit $LOCKSTEP_REPLICA")
        for replica in range(2):
            runs, seconds, ended = self.summary_of(result, replica)
            self.assertEqual((runs, ended), (1, f"status {replica}"))
            self.assertGreaterEqual(seconds, 0.2)
        self.assertTrue(result.err.endswith("lockstep-run: exit status 1\n"), result.err)


class NothingIsLeft(Test):
    FAMILY = f'sleep {TOO_LONG} & sh -c "sleep {TOO_LONG} & wait" & echo "ready $$"; wait'

    def guard_of(self, process):
        guards = [pid for pid, status in children_of(process.pid).items() if status["name"] == "lockstep-guard"]
        return guards[0] if guards else None

    def start_family(self):
        process = self.start("-n", 3, "--", "sh", "-c", self.FAMILY)
        self.wait_for_each(3, "ready")
        wait_until(lambda: self.guard_of(process), "there is a guard")
        self.assertGreaterEqual(len(self.left()), 3)
        return process

    def test_after_lockstep_run_was_killed(self):
        process = self.start_family()
        process.kill()
        process.wait()
        wait_until(lambda: not self.left(), "all replicas and what they have started are gone")

    def test_after_lockstep_run_was_killed_while_starting(self):
        script = f"sleep {TOO_LONG} & [ $LOCKSTEP_RESTART = 3 ] && wait"
        for attempt in range(30):
            process = self.start("-n", 8, "--restart", 5, "--", "sh", "-c", script)
            time.sleep(attempt * 0.004)
            process.kill()
            process.wait()
            wait_until(lambda: not self.left(), "all are gone")

    def test_after_the_guard_and_then_lockstep_run_was_killed(self):
        process = self.start_family()
        first = self.guard_of(process)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: self.guard_of(process) not in (None, first), "there is another guard")
        process.kill()
        process.wait()
        wait_until(lambda: not self.left(), "all replicas and what they have started are gone")

    def test_replicas_without_lockstep_run_and_guard(self):
        process = self.start("-n", 3, "--", "sleep", TOO_LONG)
        def names():
            return sorted(status["name"] for status in children_of(process.pid).values())
        wait_until(lambda: names() == ["lockstep-guard", "sleep", "sleep", "sleep"], "all have started")
        process.send_signal(signal.SIGSTOP)
        os.kill(self.guard_of(process), signal.SIGKILL)
        process.kill()
        process.wait()
        wait_until(lambda: not self.left(), "all replicas are gone")

    def test_what_a_replica_left_in_its_group(self):
        result = self.run_it("-n", 2, "--", "sh", "-c", f"sleep {TOO_LONG} & exit 0")
        self.assertEqual(result.status, 0)

    def test_what_has_left_the_group_of_its_replica(self):
        script = (f"setsid sh -c 'touch away$LOCKSTEP_REPLICA; sleep {TOO_LONG} & wait' & "
                  "until [ -e away$LOCKSTEP_REPLICA ]; do sleep 0.01; done")
        result = self.run_it("-n", 2, "--", "sh", "-c", script, cwd=self.folder)
        self.assertEqual(result.status, 0)

    def test_orphans_are_waited_for(self):
        script = 'trap "exit 0" TERM; sh -c "sleep 0.1 & echo \\"orphan \\$!\\""; ' + LOOP
        process = self.start("-n", 1, "--", "sh", "-c", script)
        orphan = int(self.wait_for(r"orphan (\d+)")[1])
        wait_until(lambda: process_status(orphan) is None, "the orphan was waited for")
        process.terminate()
        self.assertEqual(self.finish(process).status, 0)

    def test_children_of_the_shell_that_became_lockstep_run_are_not_its_own(self):
        # They go on, and are not waited for: this one ends only after lockstep-run.
        script = '(while kill -0 $$ 2>/dev/null; do sleep 0.01; done; echo after >late) & exec "$0" -n 1 -- true'
        process = subprocess.Popen(["bash", "-c", script, self.program], cwd=self.folder, env=self.environment,
                                   stderr=subprocess.DEVNULL)
        self.started.append(process)
        self.assertEqual(process.wait(timeout=PATIENCE), 0)
        wait_until(lambda: (self.folder / "late").exists(), "the other child has gone on")

    def test_runs_can_nest(self):
        inner = [self.program, "-n", 2, "--", "sh", "-c", "echo $LOCKSTEP_REPLICA of $LOCKSTEP_REPLICAS"]
        result = self.run_it("-n", 2, "--", *inner)
        self.assertEqual(result.status, 0)
        expected = [f"[{outer}] [{inner}] {inner} of 2" for outer in range(2) for inner in range(2)]
        self.assertEqual(sorted(result.lines), expected)

    def test_a_nested_run_goes_with_the_outer_one(self):
        process = self.start("-n", 2, "--", self.program, "-n", 2, "--", "sh", "-c", self.FAMILY)
        for outer in range(2):
            for inner in range(2):
                self.wait_for(rf"^\[{outer}\] \[{inner}\] ready")
        process.kill()
        process.wait()
        wait_until(lambda: not self.left(), "all are gone")


harness.main("tools")
