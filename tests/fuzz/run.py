# SPDX-License-Identifier: MIT
"""Runs a fuzz target for some seconds, from files like those that the library writes and from inputs that were found
to break it once: run.py TARGET FOUND [DICTIONARY]

LOCKSTEP_FUZZ_SECONDS in the environment changes how long (10)."""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

target, found, *dictionaries = sys.argv[1:]
SECONDS = int(os.environ.get("LOCKSTEP_FUZZ_SECONDS", "10"))

counters = "generation global_step counter pending updates window_unit window_total examples".split()
metadata = {"lockstep.format": "1", "lockstep.rule": "adam", **{f"lockstep.{name}": "1" for name in counters}}


def seed(tensors):
    """A file with these tensors: name -> (dtype, shape, data)."""
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


SAFETENSORS = [
    b"",
    seed({}),
    seed({"w": ("F32", [2, 1], bytes(8)), "w:m": ("F32", [2, 1], bytes(8))}),
    seed({"w": ("F64", [], bytes(8)), "a/b": ("BF16", [3], bytes(6)), "c%3A": ("F16", [1], bytes(2))}),
    seed(
        {
            "t::window_rows": ("I64", [2], struct.pack("<2q", 0, 2)),
            "t": ("F32", [3, 1], bytes(12)),
            "t::window": ("F32", [2, 1], bytes(8)),
            "w": ("F32", [1], bytes(4)),
            "w::window": ("F32", [1], bytes(4)),
        }
    ),
]
# Which file and how: of trainers, accumulators, queues, trainers with accumulators; in use, cut, left over, attached by another kind. Then what is
# overwritten: of the header (its format, for one), of a state, of the memory.
ATTACH = [
    bytes([file, how]) + rest
    for file in range(15)
    for how in (0, 1, 2, 3, 4, 0x14)
    for rest in (b"", bytes(7), b"\0\0\x08\2", b"\0\1\0\xff", b"\x40\0\0\1\x80\0\0\1", b"\xc0\0\0\xff")
]
seeds = {"fuzz_safetensors": SAFETENSORS, "fuzz_attach": ATTACH}[pathlib.Path(target).name]

with tempfile.TemporaryDirectory() as folder:
    corpus = pathlib.Path(folder) / "corpus"
    corpus.mkdir()
    for number, content in enumerate(seeds):
        (corpus / f"seed{number}").write_bytes(content)
    options = [f"-max_total_time={SECONDS}", "-max_len=2000", "-rss_limit_mb=1024", "-malloc_limit_mb=64", "-timeout=10"]
    folders = [str(corpus)] + ([found] if pathlib.Path(found).is_dir() else [])
    options += [f"-dict={dictionary}" for dictionary in dictionaries]
    command = [target, *options, f"-artifact_prefix={folder}/", *folders]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    print("\n".join(run.stdout.splitlines()[-40:]))
    for artifact in pathlib.Path(folder).glob("*-*"):
        print(f"{artifact.name}: keep this as a file in {found}: {artifact.read_bytes().hex()}")
sys.exit(run.returncode != 0)
