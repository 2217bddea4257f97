# SPDX-License-Identifier: MIT
"""Trains with the example `digits`, has a trace and a picture written, and reads both; has one written where that cannot
be, which ends before the training: check_watched.py PROGRAM DATA"""
import collections
import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

REPLICAS, STEPS = 3, 60
SVG = "{http://www.w3.org/2000/svg}"


def expect(holds, text):
    if not holds:
        sys.exit(text)


def check_trace(file):
    trace = json.loads(file.read_text(encoding="utf-8"))
    expect(trace["otherData"]["dropped"] == "0", "spans were dropped")
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    of_replica = collections.defaultdict(list)
    for span in spans:
        of_replica[span["tid"]].append(span)
    expect(sorted(of_replica) == list(range(REPLICAS)), f"threads: {sorted(of_replica)}")
    for replica, in_order in of_replica.items():
        counts = collections.Counter(span["name"] for span in in_order)
        expect(counts["push"] == STEPS, f"replica {replica}: {counts}")
        expect(counts["compute"] == STEPS + 1, f"replica {replica}: {counts}")
        for before, after in zip(in_order, in_order[1:]):
            expect(after["ts"] >= before["ts"] + before["dur"] - 0.001, f"overlap: {before} and {after}")
    commits = [span["args"]["step"] for span in spans if span["name"] == "commit"]
    expect(sorted(commits) == list(range(STEPS)), f"commits of steps {sorted(commits)}")


def check_plot(file):
    picture = xml.etree.ElementTree.parse(file).getroot()
    expect(picture.tag == SVG + "svg", picture.tag)
    width, height = float(picture.get("width")), float(picture.get("height"))
    curves = [line.get("points").split() for line in picture.iter(SVG + "polyline")]
    expect([len(points) for points in curves] == [STEPS, STEPS], "the curves of loss and accuracy")
    accuracy = [float(point.split(",")[1]) for point in curves[1]]
    expect(accuracy[-1] < accuracy[0], "accuracy has not risen")
    titles = collections.Counter()
    for box in picture.iter(SVG + "rect"):
        left, top = float(box.get("x", 0)), float(box.get("y", 0))
        expect(0 <= left and left + float(box.get("width")) <= width + 1, f"outside: {box.attrib}")
        expect(0 <= top and top + float(box.get("height")) <= height + 1, f"outside: {box.attrib}")
        title = box.find(SVG + "title")
        if title is not None and "," in title.text:
            titles[title.text.split(",")[0]] += 1
    for activity, least in ("compute", 6 * REPLICAS), ("push", 6 * REPLICAS), ("commit", 6), ("apply", 6):
        expect(titles[activity] >= least, f"boxes: {titles}")
    words = [text.text for text in picture.iter(SVG + "text")]
    for replica in range(REPLICAS):
        expect(f"replica {replica}" in words, f"words: {words}")


def check_refusal(command, option, file):
    """Updates without end: only a refusal before the training comes back in time."""
    command = [*command, "--steps", 10**15, option, file]
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    expect(run.returncode == 2, f"{option} {file}: status {run.returncode}")
    expect(run.stderr == f"digits: cannot write {file}\n", f"{option} {file}: {run.stderr!r}")


program, images = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    trace, plot = pathlib.Path(folder) / "trace.json", pathlib.Path(folder) / "plot.svg"
    command = [program, "--data", images, "--replicas", REPLICAS, "--min-accuracy", 0.5, "--no-proof"]
    watched = [*command, "--steps", STEPS, "--trace", trace, "--plot", plot]
    subprocess.run([str(part) for part in watched], check=True, stdout=subprocess.DEVNULL)
    check_trace(trace)
    check_plot(plot)
    for option in "--trace", "--plot":
        check_refusal(command, option, pathlib.Path(folder) / "no-such-folder" / "file")
print(f"trace and picture of {STEPS} updates by {REPLICAS} replicas are whole; a file that cannot be written is refused")
