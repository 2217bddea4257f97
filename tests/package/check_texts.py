# SPDX-License-Identifier: MIT
"""Fails where a text about packages has drifted: a version other than that of config.hpp, or a build file on a page of
the documentation that is not the tested one.

A block ```cmake, ```meson or ```ini on these pages stands below a comment <!-- from: FILE -->, and its lines stand one
after another in that file.
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = ["README.md", "docs/install.md"]
BLOCK = re.compile(r"^(?:<!-- from: (?P<path>.*?) -->\n)?```(?P<language>cmake|meson|ini)\n(?P<text>.*?)^```$", re.M | re.S)

faults = []


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def check(path, found, expected):
    if found != expected:
        faults.append(f"{path}: {found}, but include/lockstep/config.hpp says {expected}")


header = read("include/lockstep/config.hpp")
parts = re.findall(r"^#define LOCKSTEP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.M)
version = ".".join(parts)
check("include/lockstep/config.hpp", re.findall(r"inline namespace (v\w+)", header), [f"v{parts[0]}_{parts[1]}"])
check("meson.build", re.findall(r"^  version: '(.*?)'", read("meson.build"), re.M), [version])
port = "tools/packaging/vcpkg/lockstep/vcpkg.json"
check(port, json.loads(read(port))["version"], version)
changelog = "tools/packaging/debian/changelog"
check(changelog, re.match(r"lockstep \((.*)-\d+\)", read(changelog))[1], version)
for path in ["tools/packaging/lockstep.wrap.in", "tests/package/fetch_content/CMakeLists.txt", *PAGES]:
    for tag in re.findall(r"(?:\bv|lockstep[-/])(\d+\.\d+\.\d+)\b", read(path)):
        check(path, tag, version)

blocks = 0
for page in PAGES:
    for block in BLOCK.finditer(read(page)):
        blocks += 1
        line = read(page).count("\n", 0, block.start("text")) + 1
        if not block["path"]:
            faults.append(f"{page}:{line}: no <!-- from: FILE --> above it")
        elif f"\n{block['text']}" not in f"\n{read(block['path'])}":
            faults.append(f"{page}:{line}: not the text of {block['path']}")
if blocks == 0:
    faults.append("no build files found in the documentation")

print("\n".join(faults))
sys.exit(bool(faults))
