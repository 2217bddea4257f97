# SPDX-License-Identifier: MIT
"""Lists the headers below a folder, one a line; `--without LIB` leaves out those that include <LIB/...>, also through
others. With `--precompiled` there stands beside each which of the headers named so may be read before it without a
difference, or `-`: one that it includes anyway, itself or through others. What comes before that include is another
header, which is checked as well. If there are several, the one that was named last."""
import argparse
import pathlib
import re

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--without", action="append", default=[], metavar="LIB")
parser.add_argument("--precompiled", action="append", default=[], metavar="HEADER")
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
    inside = all_included(header)
    if any(name.startswith(f"{library}/") for name in inside for library in arguments.without):
        continue
    if arguments.precompiled:
        print(header, next((name for name in reversed(arguments.precompiled) if name in inside), "-"))
    else:
        print(header)
