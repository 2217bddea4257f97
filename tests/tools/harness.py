# SPDX-License-Identifier: MIT
"""Runs a program of tools/ as a user does, and looks at what it leaves; for the tests in this folder.

No test depends on how fast the machine is: it waits for what must happen, and gives up after two minutes. Every
process that a test starts, also by way of the program, has a mark in its environment; a test fails if one is left.
"""
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

PATIENCE = 120  # seconds

# Whoever runs the tests may ignore these, as nohup and shells do in what they start in the background. It is inherited.
for ignored in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(ignored, signal.SIG_DFL)


def wait_until(condition, what):
    """Returns the first value of condition() that is true."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited in vain until {what}")


def process_status(pid):
    """State (R, S, T, Z, ...), parent and name of a process; None if there is none."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    name, rest = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
    return {"state": rest[0], "parent": int(rest[1]), "name": name}


def is_gone(pid):
    """Ended; whether it was waited for as well depends on its parent."""
    status = process_status(pid)
    return status is None or status["state"] in "ZX"


def all_pids():
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def children_of(parent):
    found = {pid: process_status(pid) for pid in all_pids()}
    return {pid: status for pid, status in found.items() if status is not None and status["parent"] == parent}


class Result:
    """What a program has left."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err
        self.lines = out.splitlines()


class ProgramTest(unittest.TestCase):
    """A test of the program that the first argument of the command line names."""

    def setUp(self):
        self.program = pathlib.Path(sys.argv[1]).resolve()
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, "LOCKSTEP_TEST_MARK": self.mark, "LC_ALL": "C"}
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.started = []
        signal.signal(signal.SIGTERM, self.give_up)

    def give_up(self, *_):
        """Meson ends a test that takes too long; what it runs must not stay, be it stopped or not."""
        for process in self.started:
            process.kill()
        self.kill_left()
        os._exit(1)

    def kill_left(self):
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def tearDown(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        try:
            wait_until(lambda: not self.left(), f"nothing is left of {self.left()}")
        finally:
            self.kill_left()

    def left(self):
        """Processes of this test that live."""
        found = []
        for pid in all_pids():
            try:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if self.mark.encode() in environment and not is_gone(pid):
                found.append(pid)
        return found

    def start(self, *arguments, **how):
        """Starts the program; its output goes to files, which self.out() and self.err() read."""
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            how = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, "env": self.environment, **how}
            process = subprocess.Popen([self.program, *map(str, arguments)], **how)
        self.started.append(process)
        return process

    def out(self):
        return (self.folder / "out").read_text(encoding="utf-8", errors="replace")

    def err(self):
        return (self.folder / "err").read_text(encoding="utf-8", errors="replace")

    def finish(self, process):
        """Waits for the program; nothing that it has started is left then."""
        status = process.wait(timeout=PATIENCE)
        self.assertEqual(self.left(), [])
        return Result(status, self.out(), self.err())

    def run_it(self, *arguments, **how):
        return self.finish(self.start(*arguments, **how))

    def wait_for(self, pattern, stream="out"):
        """Waits until the output matches, and returns the match."""
        read = {"out": self.out, "err": self.err}[stream]
        return wait_until(lambda: re.search(pattern, read(), re.MULTILINE), f"{stream} matches '{pattern}'")


def main(suite):
    """Runs the tests of the calling program; the last line is `SUITE: N passed, N failed, N skipped`."""
    outcome = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False, verbosity=2).result
    broken, skipped = len(outcome.failures) + len(outcome.errors), len(outcome.skipped)
    print(f"{suite}: {outcome.testsRun - broken - skipped} passed, {broken} failed, {skipped} skipped")
    sys.exit(broken != 0)
