# SPDX-License-Identifier: MIT
"""Runs a program and compares what it prints with a file: compare.py EXPECTED PROGRAM [ARGUMENT...]"""
import difflib
import pathlib
import subprocess
import sys

expected, *command = sys.argv[1:]
run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
lines = pathlib.Path(expected).read_text(encoding="utf-8").splitlines()
difference = list(difflib.unified_diff(lines, run.stdout.splitlines(), "expected", "printed", lineterm=""))
print("\n".join(difference))
if run.returncode != 0:
    print(f"exit status {run.returncode}")
sys.exit(run.returncode != 0 or bool(difference))
