# SPDX-License-Identifier: MIT
"""Puts the last measurements into the documentation: write_benchmarks_page.py PAGE.md RESULTS

Replaces what stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`.
"""
import pathlib
import re
import sys

page, results = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])


def put(text, name, content):
    marks = re.compile(f"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
    if not marks.search(text):
        sys.exit(f"{page}: no marks for '{name}'")
    return marks.sub(lambda match: match[1] + content.rstrip() + "\n" + match[2], text)


def read(file):
    return (results / file).read_text(encoding="utf-8")


text = page.read_text(encoding="utf-8")
text = put(text, "goals", f"Measured {read('conditions.txt').strip()}.\n\n{read('goals.md')}")
plots = sorted((page.parent / "plots").glob("*.svg"))
if plots:
    text = put(text, "plots", "\n\n".join(f"![{plot.stem.replace('_', ' ')}](plots/{plot.name})" for plot in plots))
page.write_text(text, encoding="utf-8")
