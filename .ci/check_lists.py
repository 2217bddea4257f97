# SPDX-License-Identifier: MIT
"""Fails for each source below tests/ that no meson.build names, and for each page with C++ that tests/docs does not: a
forgotten test would pass by not being run. And for each file of code that does not name its licence in the first lines."""
import pathlib
import re
import subprocess
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

listed = set(re.findall(r"'([^']+)'", (tests / "docs" / "meson.build").read_text(encoding="utf-8")))
pages = [
    page
    for page in sorted(pathlib.Path("docs").rglob("*.md"))
    if "```cpp" in page.read_text(encoding="utf-8") and str(page.relative_to("docs").with_suffix("")) not in listed
]
for page in pages:
    print(f"{page}: not in tests/docs/meson.build")

# Text, data and what others prescribe the form of.
SPOKEN_FOR = re.compile(r"\.(md|txt|svg|json|csv|dict)$|^docs/reference\.dox$|^tools/packaging/debian/|(^|/)(LICENSE|\.gitignore)$")
tracked = subprocess.run(["git", "ls-files"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
without = [
    path
    for path in tracked
    if not SPOKEN_FOR.search(path)
    and "SPDX-License-Identifier: MIT" not in "".join(pathlib.Path(path).read_text(encoding="utf-8").splitlines()[:3])
]
for path in without:
    print(f"{path}: no SPDX-License-Identifier")
sys.exit(bool(forgotten or pages or without))
