# SPDX-License-Identifier: MIT
"""Fails for each source below tests/ that no meson.build names: a forgotten test would pass by not being run."""
import pathlib
import re
import sys

tests = pathlib.Path("tests").resolve()
named = {
    (build_file.parent / name).resolve()
    for build_file in tests.rglob("meson.build")
    for name in re.findall(r"'([^']+\.cpp)'", build_file.read_text(encoding="utf-8"))
}
forgotten = sorted(source for source in tests.rglob("*.cpp") if source.resolve() not in named)
for source in forgotten:
    print(f"{source.relative_to(tests.parent)}: in no meson.build")
sys.exit(bool(forgotten))
