# SPDX-License-Identifier: MIT
"""The goals, and whether measurements reach them: goals.py MEASUREMENTS... [--markdown FILE]

A measurement is a line of JSON with a name and a value, as the benchmark programs print with --compare; of several with
one name the median counts. Prints one line per goal: name, measured, needed, ok or MISS. Exits with 0 only if all are ok.
"""
import argparse
import collections
import fnmatch
import json
import pathlib
import statistics
import sys

# Goal, measurements that must reach it (the worst one counts), relation, needed, unit.
GOALS = [
    ("micro-batch accumulation, P = 25e6, 1 thread, of the raw loop", "kernels/accumulate/raw_loop", ">=", 0.97, ""),
    ("last micro-batch fused with SGD, P = 25e6, roofline ratio", "kernels/last/sgd/roofline", ">=", 0.85, ""),
    ("last micro-batch fused with Adam, P = 25e6, roofline ratio", "kernels/last/adam/roofline", ">=", 0.80, ""),
    ("update of 16,384 elements, SGD, g++, of intrinsics", "update/gcc/*/sgd", "<=", 1.05, "x"),
    ("update of 16,384 elements, Adam, g++, of intrinsics", "update/gcc/*/adam", "<=", 1.05, "x"),
    ("update of 16,384 elements, SGD, clang++, of intrinsics", "update/clang/*/sgd", "<=", 1.05, "x"),
    ("update of 16,384 elements, Adam, clang++, of intrinsics", "update/clang/*/adam", "<=", 1.05, "x"),
    ("sync step, 2 replicas, P = 25e6, SGD, roofline ratio", "sync/2x25e6/sgd/roofline", ">=", 0.90, ""),
    ("sync step, 2 replicas, P = 25e6, Adam, roofline ratio", "sync/2x25e6/adam/roofline", ">=", 0.80, ""),
    ("same against MPI_Allreduce + update, SGD", "sync/2x25e6/sgd/mpi_allreduce", ">=", 8, "x"),
    ("same against MPI_Allreduce + update, Adam", "sync/2x25e6/adam/mpi_allreduce", ">=", 5, "x"),
    ("same against gloo all-reduce + update, SGD", "sync/2x25e6/sgd/gloo", ">=", 10, "x"),
    ("same against gloo all-reduce + update, Adam", "sync/2x25e6/adam/gloo", ">=", 7, "x"),
    ("same against a mutex-guarded running sum, SGD", "sync/2x25e6/sgd/mutex_sum", ">=", 3, "x"),
    ("same against a mutex-guarded running sum, Adam", "sync/2x25e6/adam/mutex_sum", ">=", 3, "x"),
    ("sync step, 8 replicas on 2 cores, P = 10e6, SGD, roofline", "sync/8x10e6/sgd/roofline", ">=", 0.80, ""),
    ("sync step, 8 replicas on 2 cores, P = 10e6, Adam, roofline", "sync/8x10e6/adam/roofline", ">=", 0.80, ""),
    ("10,000 variables of 100 against one of 1e6, SGD", "sync/10000_variables/sgd", "<=", 1.15, "x"),
    ("10,000 variables of 100 against one of 1e6, Adam", "sync/10000_variables/adam", "<=", 1.15, "x"),
    ("same, 10,000 calls of gradient(), SGD", "sync/10000_variables/sgd/one_by_one", "<=", 1.15, "x"),
    ("same, 10,000 calls of gradient(), Adam", "sync/10000_variables/adam/one_by_one", "<=", 1.15, "x"),
    ("wrapper with N = 1, k = 1 against the bare rule, P = 1e6", "sync/alone/1000000/*", "<=", 1.02, "x"),
    ("same, P = 16, SyncReplicas", "sync/alone/16/*/replica", "<=", 150, "ns"),
    ("same, P = 16, GradientAggregation", "sync/alone/16/*/window", "<=", 150, "ns"),
    ("same, P = 16, GradientAggregation of SyncReplicas", "sync/alone/16/*/nested", "<=", 150, "ns"),
    ("round trip, 2 replicas, P = 16, of std::barrier", "sync/round_trip/2", "<=", 1.3, "x"),
    ("round trip, 16 replicas on 2 cores, of std::barrier", "sync/round_trip/16", "<=", 1.3, "x"),
    ("sparse, rows in place, against the merge by unordered_map", "sparse/unordered_map", ">=", 4, "x"),
    ("same, rows that are copied", "sparse/copied/unordered_map", ">=", 4, "x"),
    ("sparse, rows in place, against the merge by map", "sparse/map", ">=", 4, "x"),
    ("2 processes, P = 25e6, SGD, roofline ratio", "processes/2x25e6/sgd/roofline", ">=", 0.80, ""),
    ("2 processes, P = 25e6, Adam, roofline ratio", "processes/2x25e6/adam/roofline", ">=", 0.72, ""),
    ("same against MPI_Allreduce + update, SGD", "processes/2x25e6/sgd/mpi_allreduce", ">=", 8, "x"),
    ("same against MPI_Allreduce + update, Adam", "processes/2x25e6/adam/mpi_allreduce", ">=", 5, "x"),
    ("same against gloo all-reduce + update, SGD", "processes/2x25e6/sgd/gloo", ">=", 10, "x"),
    ("same against gloo all-reduce + update, Adam", "processes/2x25e6/adam/gloo", ">=", 7, "x"),
    ("round trip of 2 processes, P = 16, of the threads' one", "processes/round_trip", "<=", 1.5, "x"),
    ("undo, P = 10e6, 2 threads, of InProcess", "processes/undo/*", "<=", 1.1, "x"),
    ("heap allocations in a steady step", "allocations/worst", "<=", 0, ""),
    ("bytes moved beyond the floor, per element", "bytes_beyond_floor", "<=", 0.05, "B"),
    ("compile time against <Eigen/Dense> and a product, g++", "compile/g++", "<=", 1.5, "x"),
    ("compile time against <Eigen/Dense> and a product, clang++", "compile/clang++*", "<=", 1.5, "x"),
]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("measurements", nargs="+", type=pathlib.Path)
parser.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
arguments = parser.parse_args()

found = collections.defaultdict(list)
for file in arguments.measurements:
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            found[entry["name"]].append(entry["value"])
measured = {name: statistics.median(values) for name, values in found.items()}

missed = 0
rows = []
for goal, pattern, relation, needed, unit in GOALS:
    values = {name: value for name, value in measured.items() if fnmatch.fnmatchcase(name, pattern)}
    if values:
        name = (min if relation == ">=" else max)(values, key=values.get)
        worst = values[name]
        is_ok = worst >= needed if relation == ">=" else worst <= needed
        shown = f"{worst:.3g}{unit and ' ' + unit}"
        which = name if len(values) > 1 else ""
    else:
        is_ok, shown, which = False, "nothing", ""
    missed += not is_ok
    rows.append((goal, shown, f"{relation} {needed}{unit and ' ' + unit}", "ok" if is_ok else "MISS", which))

for goal, shown, needed, verdict, which in rows:
    print(f"{goal:62} {shown:>10}   {needed:10} {verdict:4}  {which}".rstrip())
print(f"{len(rows) - missed} of {len(rows)} goals reached")
if arguments.markdown:
    lines = ["| goal | measured | needed | | worst case |", "|---|---|---|---|---|"]
    lines += [f"| {goal} | {shown} | {needed} | {verdict} | {which} |" for goal, shown, needed, verdict, which in rows]
    arguments.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
sys.exit(missed != 0)
