# SPDX-License-Identifier: MIT
"""Lists the headers below a folder, one a line; `--without LIB` leaves out those that include <LIB/...>."""
import argparse
import pathlib

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--without", action="append", default=[], metavar="LIB")
arguments = parser.parse_args()

for header in sorted(arguments.folder.rglob("*.hpp")):
    text = header.read_text(encoding="utf-8")
    if not any(f"<{library}/" in text for library in arguments.without):
        print(header.relative_to(arguments.folder).as_posix())
