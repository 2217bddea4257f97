# SPDX-License-Identifier: MIT
"""Counts instructions of the hot paths under callgrind and compares them with expected.json.

check.py PROGRAM [--update]

PROGRAM is hot_paths, built with g++ 12 for plain x86-64 (registers of 4 floats). Counts of one call (`step/...`), and
per element or row (the difference of two sizes, so that what a call costs is not in it): instructions, and bytes read
and written. A count that has grown by more than the tolerance is a failure; one that has shrunk asks for --update.
With --bytes prints, as a measurement, the bytes that move from memory into a simulated cache of 256 KiB beyond what the
arrays of the step have, and compares nothing: a copy of anything large shows there, control state in a cache does not.
"""
import glob
import json
import pathlib
import re
import subprocess
import sys
import tempfile

TOLERANCE = 0.03
CALLS, SMALL, LARGE = 100, 32768, 98304
FEW_ROWS, MANY_ROWS, ROW_REPLICAS = 1024, 4096, 4
LANE_BYTES = 16
# Arrays of floats that a step has: contributions or accumulator, variables, slots.
ARRAYS = {
    "sync/n2/sgd": 3,
    "sync/n2/adam": 5,
    "sync/n8/sgd": 9,
    "sync/n8/adam": 11,
    "window/accumulate": 2,
    "window/last/sgd": 3,
    "window/last/adam": 5,
}
CACHE = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=262144,16,64"]

here = pathlib.Path(__file__).parent
expected_file = here / "expected.json"


def count(program):
    """Events by name: (instructions, reads, writes, cache lines moved)."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["valgrind", "--tool=callgrind", "--collect-atstart=no", *CACHE, f"--callgrind-out-file={folder}/out", program],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        events = {}
        for file in glob.glob(folder + "/out*"):
            text = pathlib.Path(file).read_text(encoding="utf-8")
            name = re.search(r"^desc: Trigger: Client Request: (\S+)", text, re.MULTILINE)
            if name:
                order = re.search(r"^events: (.*)", text, re.MULTILINE)[1].split()
                sums = [int(n) for n in re.search(r"^(?:summary|totals): (.*)", text, re.MULTILINE)[1].split()]
                by_event = dict(zip(order, sums))  # zeros at the end of a line are left out
                events[name[1]] = (
                    by_event.get("Ir", 0),
                    by_event.get("Dr", 0),
                    by_event.get("Dw", 0),
                    by_event.get("DLmr", 0) + by_event.get("DLmw", 0),
                )
        return events


def per_element(events, path, event):
    return (events[f"{path}/{LARGE}"][event] - events[f"{path}/{SMALL}"][event]) / (LARGE - SMALL)


def figures(events):
    result = {name: round(events[name][0] / CALLS, 1) for name in sorted(events) if name.startswith("step/")}
    for path in ARRAYS:
        result[f"{path}/instructions per element"] = round(per_element(events, path, 0), 3)
        result[f"{path}/bytes read per element"] = round(per_element(events, path, 1) * LANE_BYTES, 2)
        result[f"{path}/bytes written per element"] = round(per_element(events, path, 2) * LANE_BYTES, 2)
    few, many = (events[f"rows/n4/sgd/{rows}"][0] for rows in (FEW_ROWS, MANY_ROWS))
    result["rows/n4/sgd/instructions per row"] = round((many - few) / (ROW_REPLICAS * (MANY_ROWS - FEW_ROWS)), 1)
    return result


events = count(sys.argv[1])
if "--bytes" in sys.argv:
    excess = {path: round(per_element(events, path, 3) * 64 - 4 * arrays, 2) for path, arrays in ARRAYS.items()}
    worst = max(excess.values())
    print(json.dumps({"name": "bytes_beyond_floor", "value": worst, "unit": "bytes per element", "seconds": {}, "paths": excess}))
    sys.exit()
measured = figures(events)
if "--update" in sys.argv:
    expected_file.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
expected = json.loads(expected_file.read_text(encoding="utf-8"))
failed = 0
for name in sorted(set(expected) | set(measured)):
    was, now = expected.get(name), measured.get(name)
    verdict = "ok"
    if was is None or now is None or now > was * (1 + TOLERANCE):
        verdict = "FAILED"
        failed += 1
    elif now < was * (1 - TOLERANCE):
        verdict = "ok, less than expected: run scripts/bench instructions --update"
    print(f"{name:50} {now!s:>10} (expected {was}) {verdict}")
print(f"{len(measured) - failed} passed, {failed} failed")
sys.exit(failed != 0)
