# SPDX-License-Identifier: MIT
"""Draws the pictures of the documentation: docs/pictures/NAME.txt becomes NAME.svg beside it.

    draw_pictures.py            draws all of them
    draw_pictures.py --check    fails, with the names, if one of them is not what its text says

A text has one command per line, words with blanks in quotes, `#` for comments. The first line says what it is:

    timeline TITLE              lanes of activities over time
        lane NAME
        KIND BEGIN END          an activity of the last lane: compute, wait, plan, apply, commit
        mark TIME NAME TEXT     a line across all lanes, explained below
    layout TITLE                arrays over the same flat layout
        pad ELEMENTS            variables begin on multiples of this
        tile ELEMENTS           what is claimed at once
        variable NAME ELEMENTS
        array NAME [KIND]       a row: kept (variables, slots) or brought (contributions)
        owner TILE REPLICA      who writes a tile
        note TEXT               a line below
    states TITLE                a state machine
        state NAME COLUMN ROW TEXT...       lines in the box
        edge FROM TO LABEL [BEND]           BEND: how far the arrow swings out to its left
        start NAME
        note TEXT
"""
import argparse
import math
import pathlib
import shlex
import sys
from html import escape

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "docs" / "pictures"
COLOURS = {
    "compute": "#9ecae1",
    "wait": "#eeeeee",
    "plan": "#fdd0a2",
    "apply": "#a1d99b",
    "commit": "#fb6a4a",
    "kept": "#c7e9c0",
    "brought": "#c6dbef",
}
INK, FAINT = "#222222", "#888888"


class Svg:
    """Elements in the order in which they are drawn; the size follows from what was drawn."""

    def __init__(self, title):
        self.title = title
        self.parts = []
        self.width = self.height = 0
        self.text(16, 26, title, size=16, bold=True)

    def reach(self, x, y):
        self.width, self.height = max(self.width, x), max(self.height, y)

    def rect(self, x, y, w, h, fill, stroke=INK, round=0):
        self.reach(x + w, y + h)
        corner = f' rx="{round:g}"' if round else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}"{corner} fill="{fill}" stroke="{stroke}"/>'
        )

    def line(self, x1, y1, x2, y2, colour=INK, dash=""):
        self.reach(max(x1, x2), max(y1, y2))
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}"{dashes}/>'
        )

    def text(self, x, y, text, size=13, anchor="start", bold=False, colour=INK):
        width = len(text) * size * 0.56
        self.reach(x + (width if anchor == "start" else width / 2 if anchor == "middle" else 0), y + size * 0.4)
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{weight} fill="{colour}">'
            f"{escape(text)}</text>"
        )

    def path(self, d, marker=True):
        arrow = ' marker-end="url(#arrow)"' if marker else ""
        self.parts.append(f'<path d="{d}" fill="none" stroke="{INK}"{arrow}/>')

    def render(self, source):
        width, height = math.ceil(self.width + 16), math.ceil(self.height + 16)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" font-family="sans-serif" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<!-- made by tools/draw_pictures.py from {source} -->",
                '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
                f'orient="auto-start-reverse"><path d="M 0 1 L 9 5 L 0 9 z" fill="{INK}"/></marker></defs>',
                f'<rect width="{width}" height="{height}" fill="white"/>',
                *self.parts,
                "</svg>",
                "",
            ]
        )


def timeline(svg, commands):
    left, top, row, unit = 100, 62, 40, 30
    lanes, marks, kinds = [], [], []
    for name, *rest in commands:
        if name == "lane":
            lanes.append((rest[0], []))
        elif name == "mark":
            marks.append((float(rest[0]), *rest[1:]))
        else:
            lanes[-1][1].append((name, float(rest[0]), float(rest[1])))
            if name not in kinds:
                kinds.append(name)
    bottom = top + row * len(lanes)
    for at, (lane, activities) in enumerate(lanes):
        y = top + row * at
        svg.text(left - 10, y + 19, lane, anchor="end")
        for kind, begin, end in activities:
            svg.rect(left + begin * unit, y, (end - begin) * unit, row - 12, COLOURS[kind])
    for at, (time, name, text) in enumerate(marks):
        svg.line(left + time * unit, top - 8, left + time * unit, bottom - 8, INK, "4 3")
        svg.text(left + time * unit, top - 13, name, size=12, anchor="middle", bold=True)
        svg.text(left, bottom + 52 + 18 * at, f"{name}:  {text}", size=12)
    x = left
    for kind in [kind for kind in COLOURS if kind in kinds]:
        svg.rect(x, bottom + 12, 16, 16, COLOURS[kind])
        svg.text(x + 22, bottom + 25, kind, size=12)
        x += 46 + 8 * len(kind)
    svg.text(x + 20, bottom + 25, "time →", size=12, colour=FAINT)


def layout(svg, commands):
    left, top, row, unit = 170, 92, 34, 11
    pad = tile = 1
    variables, arrays, owners, notes, used = [], [], {}, [], 0
    for name, *rest in commands:
        if name == "pad":
            pad = int(rest[0])
        elif name == "tile":
            tile = int(rest[0])
        elif name == "variable":
            size = int(rest[1])
            variables.append((rest[0], used, size))
            used += -(-size // pad) * pad
        elif name == "array":
            arrays.append((rest[0], rest[1] if len(rest) > 1 else "kept"))
        elif name == "owner":
            owners[int(rest[0])] = rest[1]
        elif name == "note":
            notes.append(rest[0])
    for name, begin, size in variables:
        svg.text(left + (begin + size / 2) * unit, top - 12, name, anchor="middle")
    for at, (array, kind) in enumerate(arrays):
        y = top + row * at
        svg.text(left - 10, y + 17, array, anchor="end")
        svg.rect(left, y, used * unit, row - 10, "white", FAINT)
        for _, begin, size in variables:
            svg.rect(left + begin * unit, y, size * unit, row - 10, COLOURS[kind])
    bottom = top + row * len(arrays)
    for at in range(-(-used // tile) + 1):
        x = left + min(at * tile, used) * unit
        svg.line(x, top - 36, x, bottom + 4, INK, "5 3")
        if at * tile < used:
            middle = (x + left + min((at + 1) * tile, used) * unit) / 2
            svg.text(middle, top - 40, f"tile {at}", size=12, anchor="middle", colour=FAINT)
            svg.text(middle, bottom + 16, owners.get(at, ""), size=12, anchor="middle")
    svg.text(left - 10, bottom + 16, "written by", size=12, anchor="end", colour=FAINT)
    x, y = left, bottom + 34
    for kind, text in (("kept", "kept from update to update"), ("brought", "brought by a replica"), ("", "padding")):
        svg.rect(x, y, 16, 16, COLOURS.get(kind, "white"), INK if kind else FAINT)
        svg.text(x + 22, y + 13, text, size=12)
        x += 50 + 7 * len(text)
    for at, note in enumerate(notes):
        svg.text(left, y + 40 + 18 * at, note, size=12)


def states(svg, commands):
    width, height, across, down, left, top = 190, 74, 370, 200, 130, 160
    boxes, edges, notes, first = {}, [], [], None
    for name, *rest in commands:
        if name == "state":
            boxes[rest[0]] = (left + float(rest[1]) * across, top + float(rest[2]) * down, rest[3:])
        elif name == "edge":
            edges.append((rest[0], rest[1], rest[2], float(rest[3]) if len(rest) > 3 else 0))
        elif name == "start":
            first = rest[0]
        elif name == "note":
            notes.append(rest[0])

    def border(box, towards):
        """Where the line from the middle of a box to a point leaves the box."""
        x, y = box[0] + width / 2, box[1] + height / 2
        dx, dy = towards[0] - x, towards[1] - y
        scale = min(width / 2 / abs(dx) if dx else math.inf, height / 2 / abs(dy) if dy else math.inf)
        return x + dx * scale, y + dy * scale

    for name, (x, y, lines) in boxes.items():
        svg.rect(x, y, width, height, "#f7fbff", round=10)
        svg.text(x + width / 2, y + 21, name, size=14, anchor="middle", bold=True)
        for at, line in enumerate(lines):
            svg.text(x + width / 2, y + 39 + 15 * at, line, size=11, anchor="middle")
    if first:
        x, y, _ = boxes[first]
        svg.parts.append(f'<circle cx="{x - 26:g}" cy="{y + height / 2:g}" r="6" fill="{INK}"/>')
        svg.path(f"M {x - 20:g} {y + height / 2:g} L {x:g} {y + height / 2:g}")
    for start, end, label, bend in edges:
        a, b = boxes[start], boxes[end]
        if start == end:
            x, y = a[0] + width / 2, a[1]
            svg.path(f"M {x - 30:g} {y:g} C {x - 50:g} {y - 44:g} {x + 50:g} {y - 44:g} {x + 30:g} {y:g}")
            at = (x, y - 38)
        else:
            ax, ay, bx, by = (v for box in (a, b) for v in (box[0] + width / 2, box[1] + height / 2))
            length = math.hypot(bx - ax, by - ay)
            middle = ((ax + bx) / 2 + (by - ay) / length * bend, (ay + by) / 2 - (bx - ax) / length * bend)
            (sx, sy), (ex, ey) = border(a, middle), border(b, middle)
            svg.path(f"M {sx:g} {sy:g} Q {middle[0]:g} {middle[1]:g} {ex:g} {ey:g}")
            at = ((sx + ex) / 4 + middle[0] / 2, (sy + ey) / 4 + middle[1] / 2)
        lines = label.split("|")
        for number, line in enumerate(lines):
            y = at[1] - 7 - 14 * (len(lines) - 1 - number)
            svg.parts.append(
                f'<rect x="{at[0] - len(line) * 3.1:g}" y="{y - 11:g}" width="{len(line) * 6.2:g}" height="15" fill="white"/>'
            )
            svg.text(at[0], y, line, size=11, anchor="middle")
    bottom = max(y for _, y, _ in boxes.values()) + height
    for at, note in enumerate(notes):
        svg.text(left, bottom + 40 + 18 * at, note, size=12)


KINDS = {"timeline": timeline, "layout": layout, "states": states}


def draw(source):
    lines = source.read_text(encoding="utf-8").splitlines()
    commands = [words for words in (shlex.split(line, comments=True) for line in lines) if words]
    (kind, title), *rest = commands
    svg = Svg(title)
    KINDS[kind](svg, rest)
    return svg.render(source.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    sources = sorted(FOLDER.glob("*.txt"))
    drawn = {source.with_suffix(".svg"): draw(source) for source in sources}
    wrong = sorted(set(FOLDER.glob("*.svg")) - set(drawn))
    for target, picture in drawn.items():
        if not check:
            target.write_text(picture, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != picture:
            wrong.append(target)
    if check and (wrong or not sources):
        sys.exit("run tools/draw_pictures.py: " + (", ".join(path.name for path in wrong) or "no pictures found"))


main()
