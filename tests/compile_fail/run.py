# SPDX-License-Identifier: MIT
"""Checks that the sections of a source are rejected, each for the reason it names.

run.py SOURCE -- COMPILER ARGUMENT...
run.py --prefix SOURCE                  prints what the source begins with, to be precompiled

    // expect-error(SECTION_no_rank): \\[lockstep\\.transport\\.rank\\]
    #if defined(SECTION_no_rank)
    ...                             // must not compile, and the compiler's output must match the regular expression
    #elif defined(SECTION_...)
    #else
    ...                             // the baseline: the same code done right, must compile
    #endif

A section may name several expressions; each must match. Where the baseline does not compile, a rejected section
proves nothing, so all of them fail. The last line is `compile_fail: N passed, N failed`.
"""
import collections
import os
import pathlib
import re
import subprocess
import sys

if sys.argv[1] == "--prefix":
    print(*re.findall(r"^#include <.*>$", pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"), re.MULTILINE), sep="\n")
    sys.exit()

source, _, *command = sys.argv[1:]
text = pathlib.Path(source).read_text(encoding="utf-8")
sections = list(dict.fromkeys(re.findall(r"^\s*#\s*(?:el)?if.*?defined\s*\(\s*(SECTION_\w+)", text, re.MULTILINE)))
expected = collections.defaultdict(list)
for section, pattern in re.findall(r"//\s*expect-error\((\w+)\):\s*(.*?)\s*$", text, re.MULTILINE):
    expected[section].append(pattern)


def run_compiler(*arguments):
    run = subprocess.run([*command, *arguments], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    return run.returncode, run.stdout + run.stderr


def compile_with(*defines):
    return run_compiler(*defines, "-fsyntax-only", "-fdiagnostics-color=never", source)


def objection_to(section, baseline_compiles):
    """What is wrong with a section, or None."""
    if section not in sections:
        return "is expected to fail, but the source has no such section"
    if section not in expected:
        return "has no expect-error line"
    if not baseline_compiles:
        return "was not tried: the baseline does not compile"
    status, output = compile_with(f"-D{section}")
    if status == 0:
        return "compiles, but must not"
    for pattern in expected[section]:
        if not re.search(pattern, output):
            return f"fails, but its output does not match '{pattern}':\n{output}"
    return None


baseline_status, baseline_output = compile_with()
if baseline_status != 0:
    print(f"{source}: the baseline does not compile:\n{baseline_output}")

checked = sections + [section for section in expected if section not in sections] or ["(any section)"]
failed = 0
for section in checked:
    objection = objection_to(section, baseline_status == 0)
    print(f"{section}: ok" if objection is None else f"{source}: {section} {objection}")
    failed += objection is not None
print(f"compile_fail: {len(checked) - failed} passed, {failed} failed")
sys.exit(failed != 0)
