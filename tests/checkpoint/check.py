# SPDX-License-Identifier: MIT
"""Reads with plain Python what C++ saved, and lets C++ load what Python wrote: check.py PROGRAM CHECKPOINTS.md

The reader is the one that the documentation shows.
"""
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

program, page = sys.argv[1:]
counts = {True: 0, False: 0}


def check(name, found, expected):
    counts[found == expected] += 1
    if found != expected:
        print(f"{name}:\n  expected {expected}\n  found    {found}")


def run(*arguments):
    process = subprocess.run([program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    return process.returncode, process.stdout


def write(path, metadata, tensors):
    """The format as another program may write it: tensors by name, data in that order, nothing padded."""
    codes = {"F64": "d", "F32": "f", "F16": "e", "I64": "q"}
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, elements) in tensors.items():
        raw = struct.pack(f"<{len(elements)}{codes[dtype]}", *elements)
        header[name] = {"data_offsets": [len(data), len(data) + len(raw)], "shape": shape, "dtype": dtype}
        data += raw
    text = json.dumps(header, indent=1).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


snippet = re.search(r"^```python\n(.*?)^```", pathlib.Path(page).read_text(encoding="utf-8"), re.M | re.S)[1]
documented = {}
exec(snippet, documented)

with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "model.safetensors"
    check("write", run("write", path), (0, ""))
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    check("first byte of the header", raw[8:9], b"{")
    check("alignment of the data", (8 + length) % 64, 0)
    end = 0
    for begin, after in sorted(t["data_offsets"] for n, t in header.items() if n != "__metadata__"):
        check("data without gap", begin, end)
        end = after
    check("size of the file", len(raw), 8 + length + end)

    # One update of momentum with rate 1/2, then one micro-batch in the open window.
    gradient = [float(i - 2 * j) for i in range(2) for j in range(3)]
    weights = [10 * i + j - (i - 2 * j) / 2 for i in range(2) for j in range(3)]
    metadata, tensors = documented["read_checkpoint"](path)
    expected = {
        "hidden/weights": ([2, 3], weights),
        "hidden/weights:momentum": ([2, 3], gradient),
        "hidden/weights::window": ([2, 3], gradient),
        "table": ([4, 2], [0, 0, -2, -2, 0, 0, -2, -2]),
        "table:momentum": ([4, 2], [0, 0, 4, 4, 0, 0, 4, 4]),
        "table::window": ([2, 2], [4, 4, 4, 4]),
        "table::window_rows": ([2], [1, 3]),
        "bias%3A0": ([3], [1, 2, 3]),
        "bias%3A0:momentum": ([3], [0, 0, 0]),
    }
    for name in sorted(expected.keys() | tensors.keys()):
        check(name, tensors.get(name), expected.get(name))
    check(
        "metadata",
        {key: (value if key == "lockstep.rule" else float(value)) for key, value in metadata.items()},
        {
            "lockstep.format": 1,
            "lockstep.rule": "momentum",
            "lockstep.generation": 0,
            "lockstep.global_step": 1,
            "lockstep.counter": 3,
            "lockstep.updates": 1,
            "lockstep.pending": 1,
            "lockstep.window_unit": 1,
            "lockstep.window_total": 1,
            "lockstep.examples": 2,
        },
    )

    # The other way: other values, in another order, in narrower types.
    other = pathlib.Path(folder) / "other.safetensors"
    changed = {name: (header[name]["dtype"], *tensor) for name, tensor in sorted(tensors.items())}
    changed["hidden/weights"] = ("F16", [2, 3], [0.5, 1.5, 2.5, 3.5, 4.5, 5.5])
    changed["hidden/weights:momentum"] = ("F32", [2, 3], [0, 2, 4, 6, 8, 10])
    changed["bias%3A0"] = ("F16", [3], [-1, -2, -3])
    write(other, {**metadata, "format": "np", "lockstep.global_step": "41", "lockstep.updates": "41"}, changed)
    status, output = run("read", other)
    check("exit status", status, 0)
    # The window closes with twice the gradient: a = a / 2 + g, w -= a / 2.
    after = [w - (a / 2 + g) / 2 for w, a, g in zip(changed["hidden/weights"][2], [0, 2, 4, 6, 8, 10], gradient)]
    check(
        "what C++ reads and goes on to",
        output.splitlines(),
        [
            "weights 0.5 1.5 2.5 3.5 4.5 5.5",
            "weights:momentum 0 2 4 6 8 10",
            "table 0 0 -2 -2 0 0 -2 -2",
            "bias -1 -2 -3",
            "step 41 pending 1",
            "weights " + " ".join(f"{w:g}" for w in after),
            "table 0 0 -5 -5 0 0 -5 -5",
        ],
    )

    # A file of Python that is no checkpoint.
    write(other, {"format": "pt"}, changed)
    check("refusal", run("read", other), (1, f"{other}: __metadata__ lockstep.format: expected a value, found nothing\n"))
    write(other, metadata, {**changed, "bias%3A0": ("F64", [3], [1, 2, 3])})
    status, output = run("read", other)
    check("refusal of a wider type", (status, "'bias%3A0' dtype: expected F32" in output), (1, True))

print(f"checkpoint: {counts[True]} passed, {counts[False]} failed")
sys.exit(counts[False] != 0)
