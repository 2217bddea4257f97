# SPDX-License-Identifier: MIT
r"""Turns the few formulas of docstrings and pages into HTML, so that a browser needs no script for them.

Used by build_site.py, for the pages and for the copies of headers that doxygen reads.

Knows what is used here: sums, fractions, roots, sub- and superscripts, Greek letters. Anything else is an error.
"""
import re
import sys

SYMBOLS = {
    "alpha": "α", "beta": "β", "epsilon": "ε", "eta": "η", "lambda": "λ", "mu": "μ", "phi": "φ", "rho": "ρ",
    "sum": "∑", "leftarrow": "←", "cdot": "·", "ge": "≥", "le": "≤", "max": "max", "min": "min", "qquad": " &emsp; ",
    "|": "‖", ",": " ", "_": "_",
}  # fmt: skip
UPRIGHT = ("mathrm", "mathit")


class Formula:
    """A recursive descent over one formula."""

    def __init__(self, text):
        self.text, self.at = text, 0

    def fail(self, what):
        sys.exit(f"formulas.py: {what} in the formula '{self.text}'")

    def sequence(self, until=""):
        parts = []
        while self.at < len(self.text) and self.text[self.at] != until:
            parts.append(self.item())
        if until:
            if self.at == len(self.text):
                self.fail(f"no {until}")
            self.at += 1
        return "".join(parts)

    def argument(self):
        while self.text[self.at : self.at + 1] == " ":
            self.at += 1
        if self.text[self.at : self.at + 1] == "{":
            self.at += 1
            return self.sequence("}")
        return self.item()

    def item(self):
        character = self.text[self.at]
        self.at += 1
        if character == "\\":
            name = re.match(r"[a-z]+|.", self.text[self.at :])[0]
            self.at += len(name)
            return self.command(name)
        if character == "{":
            return self.sequence("}")
        if character in "_^":
            tag = "sub" if character == "_" else "sup"
            return f"<{tag}>{self.argument()}</{tag}>"
        if character.isalpha():
            return f"<i>{character}</i>"
        return {"-": "−", "<": "&lt;", ">": "&gt;", "&": "&amp;"}.get(character, character)

    def command(self, name):
        if name == "frac":
            return f"{bracketed(self.argument())} / {bracketed(self.argument())}"
        if name == "sqrt":
            return f"√{bracketed(self.argument())}"
        if name == "hat":
            return self.argument().replace("</i>", "&#770;</i>")
        if name in UPRIGHT:
            return re.sub(r"</?i>", "", self.argument())
        if name not in SYMBOLS:
            self.fail(f"\\{name} is not known")
        return SYMBOLS[name]


def bracketed(html):
    """In brackets, unless it is one thing."""
    bare = re.sub(r"<su[bp]>.*?</su[bp]>|</?i>|&#770;", "", html)
    return html if len(bare) == 1 else f"({html})"


def to_html(formula):
    return Formula(" ".join(formula.split())).sequence()


def filter_header(text):
    r"""A header with what stands between \f$ and \f$ as HTML."""
    # A formula may go over the end of a line of the comment; its line breaks are kept so that line numbers stay right.
    def replace(match):
        breaks = match[1].count("\n")
        return to_html(re.sub(r"\n\s*///", " ", match[1])) + "\n///" * breaks

    return re.sub(r"\\f\$(.*?)\\f\$", replace, text, flags=re.DOTALL)

