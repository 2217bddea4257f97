# SPDX-License-Identifier: MIT
"""Sums up a test log of Meson (testlog.json): tally.py LOG

Shows what suites say of themselves (`SUITE: ...`), the output of failed tests and the reasons of skipped ones, then one line
`N passed, N failed[, N skipped]`.
What a test counts for: the line `SUITE: N passed, N failed[, N skipped]` of its output if there is one, else
Catch2's test cases, else 1. A test that crashed, timed out or ended with an error has failed at least once.
"""
import json
import pathlib
import re
import sys

COUNTS = r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$"


def last_counts(title, output):
    found = re.findall(f"^{re.escape(title)}: {COUNTS}", output, re.MULTILINE)
    return [int(number or 0) for number in found[-1]] if found else None


def counts_of(test, suite, output):
    """Passed, failed and skipped of one test."""
    if test["result"] == "SKIP":
        return [0, 0, 1]
    is_good = test["result"] == "OK"
    counts = last_counts(suite, output) or last_counts("test cases", output) or [0, 0, 0]
    if not is_good and counts[1] == 0:
        counts[1] = 1
    if is_good and sum(counts) == 0:
        counts[0] = 1
    return counts


log = pathlib.Path(sys.argv[1])
tests = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
total = [0, 0, 0]
for test in tests:
    suite = re.fullmatch(r"\w+:(\w+) / .*", test["name"])[1]
    output = test.get("stdout", "") + test.get("stderr", "")
    counts = counts_of(test, suite, output)
    total = [sum(pair) for pair in zip(total, counts)]
    for line in re.findall(f"^{re.escape(suite)}: .*", output, re.MULTILINE):
        print(line)
    if counts[1]:
        print(f"\n{test['name']}: {test['result']} after {test['duration']:.1f} s, exit status {test['returncode']}")
        print("\n".join("  | " + line for line in output.splitlines()))
    elif counts[2]:
        reasons = re.findall(r"^\s*skipped: .*", output, re.MULTILINE) or output.splitlines()
        print(f"\n{test['name']}: {counts[2]} skipped")
        print("\n".join("  | " + line.strip() for line in reasons))

if not tests:
    print("no test was run")
    total[1] = 1
passed, failed, skipped = total
print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
sys.exit(failed != 0)
