# SPDX-License-Identifier: MIT
"""Lists the headers below a folder, one a line; `--without LIB` leaves out those that include <LIB/...>, also through
others."""
import argparse
import pathlib
import re

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--without", action="append", default=[], metavar="LIB")
arguments = parser.parse_args()

included = {
    header.relative_to(arguments.folder).as_posix(): set(re.findall(r"#include <(.+)>", header.read_text(encoding="utf-8")))
    for header in sorted(arguments.folder.rglob("*.hpp"))
}


def all_included(header):
    found, left = set(), [header]
    while left:
        for name in included.get(left.pop(), set()) - found:
            found.add(name)
            left.append(name)
    return found


for header in included:
    if not any(name.startswith(f"{library}/") for name in all_included(header) for library in arguments.without):
        print(header)
