# SPDX-License-Identifier: MIT
"""Draws results of Google Benchmark with gnuplot: plot_benchmarks.py FOLDER RESULT.json...

Makes one SVG for each picture below, from the medians.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)

medians = []  # name without arguments, arguments, entry
for file in sys.argv[2:]:
    for entry in json.loads(pathlib.Path(file).read_text(encoding="utf-8"))["benchmarks"]:
        if entry.get("aggregate_name") == "median":
            parts = entry["run_name"].removesuffix("/manual_time").split("/")
            name = "/".join(part for part in parts if ":" not in part)
            medians.append((name, {k: int(v) for k, v in (part.split(":") for part in parts if ":" in part)}, entry))

NANOSECONDS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


def gigabytes_per_second(entry):
    return entry["bytes_per_second"] / 1e9


def milliseconds(entry):
    return entry["real_time"] * NANOSECONDS[entry["time_unit"]] / 1e6


def points(name, argument, value):
    found = {arguments[argument]: value(entry) for n, arguments, entry in medians if n == name and argument in arguments}
    return sorted(found.items())


def pictures():
    """File, title, axis of arguments, axis of values, logarithmic values, curves (title, name), argument, value."""
    for rule, title in (("sgd", "SGD"), ("adam", "Adam")):
        yield (
            f"step_by_parameters_{rule}",
            f"Step of two replicas, {title}: floor bytes per second",
            "parameters",
            "GB/s",
            True,
            [
                ("lockstep, in process", f"sync_replicas/step/in_process/f32/{rule}"),
                ("lockstep, two processes", f"sync_replicas/step/two_processes/f32/{rule}"),
                ("raw loop acc += c*g, two threads", "floor/accumulate/two_threads/f32"),
                ("Eigen, mean then update, one thread", f"eigen/step/one_thread/f32/{rule}"),
                ("running sum under a mutex", f"mutex_sum/step/in_process/f32/{rule}"),
                ("MPI\\\\_Allreduce + update, two processes", f"mpi_allreduce/step/two_processes/f32/{rule}"),
                ("gloo all-reduce + update, two processes", f"gloo/step/two_processes/f32/{rule}"),
            ],
            "elements",
            gigabytes_per_second,
        )
        yield (
            f"window_by_parameters_{rule}",
            f"Last micro-batch and {title}, one thread: floor bytes per second",
            "parameters",
            "GB/s",
            True,
            [
                ("lockstep, fused", f"local/last_micro_batch/one_thread/f32/{rule}"),
                ("raw loop acc += c*g", "floor/accumulate/one_thread/f32"),
                ("Eigen", f"eigen/last_micro_batch/one_thread/f32/{rule}"),
                ("PyTorch", f"torch/last_micro_batch/one_thread/f32/{rule}"),
            ],
            "elements",
            gigabytes_per_second,
        )
        yield (
            f"step_by_replicas_{rule}",
            f"Step of 4,000,000 parameters, {title}",
            "replicas",
            "ms",
            True,
            [
                ("lockstep, in process", f"sync_replicas/by_replicas/in_process/f32/{rule}"),
                ("Eigen, mean then update, one thread", f"eigen/by_replicas/one_thread/f32/{rule}"),
                ("running sum under a mutex", f"mutex_sum/by_replicas/in_process/f32/{rule}"),
            ],
            "replicas",
            milliseconds,
        )
    yield (
        "step_by_variables",
        "Step of two replicas, 1,000,000 parameters in all",
        "variables",
        "ms",
        False,
        [
            ("lockstep, SGD", "sync_replicas/by_variables/in_process/f32/sgd"),
            ("lockstep, Adam", "sync_replicas/by_variables/in_process/f32/adam"),
            ("lockstep, SGD, gradients() at once", "sync_replicas/at_once_by_variables/in_process/f32/sgd"),
            ("lockstep, Adam, gradients() at once", "sync_replicas/at_once_by_variables/in_process/f32/adam"),
        ],
        "variables",
        milliseconds,
    )


def draw(file, title, x, y, is_log, curves, argument, value):
    with tempfile.TemporaryDirectory() as scratch:
        plots = []
        for number, (label, name) in enumerate(curves):
            rows = points(name, argument, value)
            if argument == "variables":  # one variable is not named in the arguments
                one = [value(e) for n, arguments, e in medians if n == name and "variables" not in arguments]
                rows = [(1, v) for v in one] + rows
            if not rows:
                continue
            table = pathlib.Path(scratch, f"{number}.dat")
            table.write_text("".join(f"{a} {v}\n" for a, v in rows), encoding="utf-8")
            plots.append(f'"{table}" with linespoints linewidth 2 pointtype 7 pointsize 0.5 title "{label}"')
        if not plots:
            print(f"{file}: nothing measured")
            return
        script = "\n".join(
            [
                'set terminal svg size 760,440 font "sans-serif,12" background "#ffffff"',
                f'set output "{folder / file}.svg"',
                f'set title "{title}"',
                f'set xlabel "{x}"',
                f'set ylabel "{y}"',
                "set grid",
                "set key outside bottom center horizontal maxcols 2",
                "set logscale x" + (" 2" if argument == "replicas" else ""),
                "set logscale y" if is_log else "set yrange [0:*]",
                'set format x "10^{%L}"' if argument != "replicas" else "",
                "plot " + ", ".join(plots),
            ]
        )
        subprocess.run(["gnuplot"], input=script, text=True, check=True)
        print(folder / f"{file}.svg")


for picture in pictures():
    draw(*picture)
if not re.search("svg", " ".join(path.suffix for path in folder.iterdir())):
    sys.exit("no plot was drawn")
