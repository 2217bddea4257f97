# SPDX-License-Identifier: MIT
"""Compile time of a program with lockstep against one with Eigen: compare.py INCLUDE_FLAG... -- COMPILER...

The two take turns; the times are processor seconds, medians of five. Prints measurements as the other benchmarks do.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROUNDS = 5
here = pathlib.Path(__file__).parent
split = sys.argv.index("--")
flags, compilers = sys.argv[1:split], sys.argv[split + 1 :]


def cpu_seconds(compiler, source):
    command = [compiler, "-std=c++20", "-O2", *flags, "-c", str(here / source), "-o", os.devnull]
    before = os.times()
    subprocess.run(command, check=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


for compiler in compilers:
    seconds = {"lockstep.cpp": [], "eigen.cpp": []}
    for _ in range(ROUNDS):
        for source, times in seconds.items():
            times.append(cpu_seconds(compiler, source))
    ratios = [ours / eigen for ours, eigen in zip(seconds["lockstep.cpp"], seconds["eigen.cpp"])]
    times = {
        source: {"median": round(statistics.median(values), 3), "min": round(min(values), 3)}
        for source, values in seconds.items()
    }
    print(
        json.dumps(
            {
                "name": f"compile/{os.path.basename(compiler)}",
                "value": round(statistics.median(ratios), 3),
                "unit": "x the time",
                "seconds": times,
            }
        ),
        flush=True,
    )
