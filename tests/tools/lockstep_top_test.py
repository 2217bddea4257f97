# SPDX-License-Identifier: MIT
"""Runs lockstep-top while others train: lockstep_top_test.py LOCKSTEP_TOP TOP_SESSION [TEST...]"""
import contextlib
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile

import harness
from harness import PATIENCE, wait_until

SESSION_PROGRAM = pathlib.Path(sys.argv.pop(2)).resolve()
MAGIC = b"lockstep"


def open_files_of(pid):
    """What the system tells of the open files of a process, locks among it."""
    told = []
    for file in pathlib.Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            told.append(file.read_text(encoding="utf-8"))
    return "".join(told)


class Test(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.sessions = pathlib.Path(folder.name)

    def train(self, name, replica, replicas, pause=1):
        """Starts a replica that pauses so many milliseconds in each step."""
        arguments = [SESSION_PROGRAM, self.sessions, name, replica, replicas, pause]
        process = subprocess.Popen([*map(str, arguments)], env=self.environment, stdin=subprocess.DEVNULL)
        self.started.append(process)
        return process

    def stop(self):
        """Ends the training in the ordinary way."""
        (self.sessions / "stop").touch()
        for process in self.started:
            self.assertEqual(process.wait(timeout=PATIENCE), 0)

    def top(self, *arguments):
        """What one view prints."""
        run = subprocess.run([self.program, "--directory", self.sessions, *map(str, arguments)], env=self.environment,
                             capture_output=True, text=True, timeout=PATIENCE)
        return harness.Result(run.returncode, run.stdout, run.stderr)

    def rows(self, name):
        """The words of the line of each replica."""
        result = self.top(name, "--interval", 0.3)
        self.assertEqual((result.status, result.err), (0, ""))
        return [line.split() for line in result.lines if re.match(r" +\d+ ", line)]

    def wait_for_rows(self, name, condition, what):
        def look():
            rows = self.rows(name)
            return rows if condition(rows) else None
        return wait_until(look, what)

    def path(self, name):
        return self.sessions / f"lockstep.{name}"

    def wait_for_session(self, name):
        wait_until(lambda: self.top(name, "--interval", 0.1).status == 0, f"there is a session {name}")


class Running(Test):
    def test_shows_each_replica_and_the_slowest(self):
        processes = [self.train("run", 0, 2), self.train("run", 1, 2, pause=40)]
        self.wait_for_session("run")
        rows = self.wait_for_rows(
            "run", lambda rows: "slowest" in rows[1] and "slowest" not in rows[0] and int(rows[0][7]) > 0,
            "replica 1 is the slowest")
        self.assertEqual([row[1] for row in rows], [str(process.pid) for process in processes])
        self.assertEqual([row[2] for row in rows], ["1", "1"])
        self.assertEqual([row[8:11] for row in rows], [["0", "0", "0"]] * 2)
        def shares(rows):
            return [int(row[5].rstrip("%")) for row in rows]
        self.wait_for_rows("run", lambda rows: shares(rows)[0] >= 50 > shares(rows)[1],
                           "replica 0 waits most of the time")
        text = self.top("run", "--once", "--interval", 0.1).out
        self.assertIn("session run: training\n2 of 2 replicas, R = 2, departure redistribute, rule sgd\n", text)
        self.assertRegex(text, r"\nstep \d+, \d+\.\d updates/s, \d of 2 contributions\n")
        self.stop()

    def test_counts_go_on(self):
        self.train("run", 0, 1)
        self.wait_for_session("run")
        before = int(self.rows("run")[0][7])
        self.wait_for_rows("run", lambda rows: int(rows[0][7]) > before, "it has contributed more")
        self.stop()

    def test_expected_replicas(self):
        self.train("run", 0, 2)
        self.wait_for_session("run")
        rows = self.wait_for_rows("run", lambda rows: rows[0][4] == "waiting", "replica 0 waits")
        self.assertEqual(rows[1][1:5], ["-", "0", "0", "expected"])
        self.assertIn("session run: training, 1 replica(s) expected\n", self.top("run", "--interval", 0.1).out)
        self.train("run", 1, 2)
        self.wait_for_rows("run", lambda rows: rows[1][2] == "1", "replica 1 has joined")
        self.stop()

    def test_a_stopped_process(self):
        self.train("run", 0, 2)
        victim = self.train("run", 1, 2)
        self.wait_for_session("run")
        self.wait_for_rows("run", lambda rows: rows[1][1] == str(victim.pid), "both are there")
        victim.send_signal(signal.SIGSTOP)
        self.wait_for_rows("run", lambda rows: rows[1][4] == "stopped", "it is shown as stopped")
        victim.send_signal(signal.SIGCONT)
        self.wait_for_rows("run", lambda rows: rows[1][4] != "stopped", "it goes on")
        self.stop()

    def test_a_killed_and_a_new_replica(self):
        self.train("run", 0, 2)
        victim = self.train("run", 1, 2)
        self.wait_for_session("run")
        self.wait_for_rows("run", lambda rows: rows[1][1] == str(victim.pid), "both are there")
        victim.kill()
        victim.wait()
        self.started.remove(victim)
        self.wait_for_rows("run", lambda rows: rows[1][1:5:3] == ["-", "dead"], "the others know")
        successor = self.train("run", 1, 2)
        self.wait_for_rows("run", lambda rows: rows[1][1:3] == [str(successor.pid), "2"], "another one has joined")
        self.stop()

    def test_only_reads(self):
        trainer = self.train("run", 0, 1)
        self.wait_for_session("run")
        process = self.start("--directory", self.sessions, "run", "--interval", 3600)
        path = str(self.path("run"))
        def mappings():
            lines = pathlib.Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8").splitlines()
            return [line.split()[1] for line in lines if line.endswith(path)]
        self.assertEqual(wait_until(mappings, "it has mapped the file"), ["r--s"])
        self.assertIn("lock:", open_files_of(trainer.pid))
        self.assertNotIn("lock:", open_files_of(process.pid))
        process.kill()
        process.wait()
        self.started.remove(process)
        self.stop()

    def test_is_renewed_on_a_terminal_until_the_session_ends(self):
        self.train("run", 0, 1)
        self.wait_for_session("run")
        terminal, end = pty.openpty()
        self.addCleanup(os.close, terminal)
        process = self.start("--directory", self.sessions, "run", "--interval", 0.1, stdout=end)
        os.close(end)
        printed = b""
        def read():
            nonlocal printed
            try:
                if select.select([terminal], [], [], 0)[0]:
                    printed += os.read(terminal, 1 << 16)
            except OSError:  # nobody writes any more
                pass
            return printed
        wait_until(lambda: read().count(b"session run: training") >= 3, "it is shown three times")
        (self.sessions / "stop").touch()
        wait_until(lambda: read().count(b"session run: ended") == 1, "the end is shown")
        self.stop()


class List(Test):
    def test_no_session(self):
        self.assertEqual(self.top().out, f"there is no session in {self.sessions}\n")

    def test_sessions_and_what_is_left_of_others(self):
        self.train("b", 0, 1)
        victim = self.train("a-longer-name", 0, 1)
        for name in ["b", "a-longer-name"]:
            self.wait_for_session(name)
            self.wait_for_rows(name, lambda rows: rows[0][2] == "1", "it has joined")
        victim.kill()
        victim.wait()
        self.started.remove(victim)
        self.path("foreign").write_bytes(b"something else" * 100)
        (self.sessions / "unrelated").write_bytes(b"")
        lines = self.top().lines
        self.assertEqual(lines[0].split(), ["session", "replicas", "step", "state"])
        self.assertRegex(lines[1], r"^a-longer-name +1 of 1 +\d+  left behind: no process takes part any more$")
        self.assertRegex(lines[2], r"^b +1 of 1 +\d+  training$")
        self.assertRegex(lines[3], r"^foreign +- +-  it is no segment of lockstep$")
        self.assertEqual(len(lines), 4)
        self.stop()

    def test_names_give_no_orders_to_the_terminal(self):
        self.path("red\x1b[31m").write_bytes(b"")
        result = self.top()
        self.assertEqual(result.status, 0)
        self.assertIn("red?[31m ", result.out)
        self.assertNotIn("\x1b", result.out)
        self.assertNotIn("\x1b", self.top("red\x1b[31m").err)

    def test_a_directory_that_does_not_exist(self):
        result = self.top("--directory", self.sessions / "none")
        self.assertEqual(result.status, 1)
        self.assertEqual(result.err, f"lockstep-top: {self.sessions}/none: No such file or directory\n")


class Refusals(Test):
    def expect_error(self, name, sentence, status=1):
        result = self.top(name, "--interval", 0.1)
        self.assertEqual((result.status, result.out), (status, ""))
        self.assertIn(sentence, result.err)

    def test_no_such_session(self):
        self.expect_error("none", f"lockstep-top: {self.path('none')}: cannot open it: No such file or directory")

    def test_foreign_and_damaged_files(self):
        for content, sentence in [(b"", "it is no segment of lockstep"),
                                  (b"x" * 10_000, "it is no segment of lockstep"),
                                  (MAGIC, "it is not complete"),
                                  (MAGIC + bytes(10_000), "it is not complete"),
                                  (MAGIC + b"\1" + bytes(10_000), "it has format 1"),
                                  (MAGIC + b"\xff" * 10_000, "it has format")]:
            self.path("bad").write_bytes(content)
            self.expect_error("bad", sentence)

    def test_a_damaged_copy_of_a_session(self):
        self.train("run", 0, 1)
        self.wait_for_session("run")
        whole = self.path("run").read_bytes()
        self.stop()
        self.path("bad").write_bytes(whole[:-1])
        self.expect_error("bad", "its header is damaged: parts of")
        self.path("bad").write_bytes(whole[:len(MAGIC) + 8] + bytes(10_000))  # the format, and nothing behind it
        self.expect_error("bad", "its header is damaged")
        self.path("bad").write_bytes(re.sub(rb"build: lockstep \d", b"build: lockstep 9", whole))
        self.expect_error("bad", "it was made by 'lockstep 9")
        self.path("bad").write_bytes(re.sub(rb"\nstate: \d", b"\nstate: 9", whole))
        self.expect_error("bad", "its state is not of")

    def test_other_files(self):
        os.mkfifo(self.path("pipe"))
        self.expect_error("pipe", "it is no file")
        self.path("link").symlink_to("/dev/zero")
        self.expect_error("link", "cannot open it")
        self.path("folder").mkdir()
        self.expect_error("folder", "cannot open it: Is a directory")

    def test_command_line(self):
        self.expect_error("--twice", "there is no option '--twice'\nTry lockstep-top --help.", status=2)

    def test_help_and_version(self):
        for option in ["--directory", "--interval", "--once", "--version"]:
            self.assertIn(option, self.top("--help").out)
        self.assertRegex(self.top("--version").out, r"^lockstep-top \d+\.\d+\.\d+\n$")


harness.main("tools")
