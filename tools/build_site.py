# SPDX-License-Identifier: MIT
"""Parts of scripts/docs, to be run in the top folder.

    build_site.py pages SITE      README.md, docs/ and what they link to: Markdown as HTML, other files as they are
    build_site.py headers FOLDER  a copy of the headers for doxygen: formulas as HTML, links to the pages
    build_site.py check SITE      looks at every relative link; prints the broken ones and `N passed, N failed`

A page lies in the site where it lies here: docs/concepts.md becomes docs/concepts.html, README.md index.html.
"""
import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

import formulas

CODE = re.compile(r"(^```.*?^```\n|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
STYLE = """
body { max-width: 60rem; margin: 0 auto; padding: 0 1rem 4rem; font: 16px/1.5 sans-serif; color: #222; background: #fff }
nav { padding: .8rem 0; border-bottom: 1px solid #ccc }
nav a { margin-right: 1.5rem }
pre { padding: .8rem; background: #f4f6f8; overflow-x: auto; font-size: 14px }
code { background: #f4f6f8 }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { border: 1px solid #ccc; padding: .3rem .6rem; text-align: left; vertical-align: top }
img { max-width: 100% }
.formula { font-family: serif; font-style: normal }
p.formula { text-align: center }
"""


def is_outside(link):
    return bool(urllib.parse.urlsplit(link).scheme) or link.startswith("//")


# ---- pages


def page_of(source):
    """Where a Markdown file goes."""
    return pathlib.Path("index.html") if source == pathlib.Path("README.md") else source.with_suffix(".html")


def with_formulas(markdown):
    """Formulas between \\( and \\), or \\[ and \\], as HTML; not in code."""

    def convert(text):
        text = re.sub(r"\\\[(.*?)\\\]", lambda m: f'<p class="formula">{formulas.to_html(m[1])}</p>', text, flags=re.DOTALL)
        return re.sub(r"\\\((.*?)\\\)", lambda m: f'<span class="formula">{formulas.to_html(m[1])}</span>', text, flags=re.DOTALL)

    return "".join(part if at % 2 else convert(part) for at, part in enumerate(CODE.split(markdown)))


def with_anchors(body):
    """Headings get the names that links in the Markdown files use: those of GitHub."""
    taken = {}

    def name(match):
        plain = re.sub(r"<[^>]*>", "", match[2])
        plain = plain.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"')
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        taken[slug] = taken.get(slug, -1) + 1
        return f'<h{match[1]} id="{slug}{f"-{taken[slug]}" if taken[slug] else ""}">{match[2]}</h{match[1]}>'

    return re.sub(r"<h([1-6])>(.*?)</h\1>", name, body, flags=re.DOTALL)


def write_page(source, site, linked):
    """Writes one page; adds the files and folders of the repository that it links to."""
    body = subprocess.run(
        ["cmark-gfm", "--unsafe", "-e", "table", "-e", "autolink"],
        input=with_formulas(source.read_text(encoding="utf-8")), stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    target = page_of(source)

    def link(match):
        kind, address = match[1], match[2]
        if is_outside(address) or address.startswith("#"):
            return match[0]
        path, _, anchor = address.partition("#")
        file = pathlib.Path(os.path.normpath(source.parent / path))
        if file.exists():
            linked.add(file)
        if file.suffix == ".md":
            file = page_of(file)
        relative = os.path.relpath(file, target.parent)
        return f'{kind}="{relative}{"#" + anchor if anchor else ""}"'

    body = re.sub(r'\b(href|src)="([^"]*)"', link, with_anchors(body))
    title = re.search(r"<h1[^>]*>(.*?)</h1>", body, re.DOTALL)
    up = os.path.relpath(".", target.parent)
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{re.sub("<[^>]*>", "", title[1]) if title else source.stem}</title>
<link rel="stylesheet" href="{up}/style.css">
</head>
<body>
<nav><a href="{up}/index.html">lockstep</a><a href="{up}/docs/README.html">documentation</a><a
 href="{up}/reference/index.html">reference</a></nav>
{body}</body>
</html>
"""
    (site / target).parent.mkdir(parents=True, exist_ok=True)
    (site / target).write_text(page, encoding="utf-8")


def write_pages(site):
    site.mkdir(parents=True, exist_ok=True)
    (site / "style.css").write_text(STYLE, encoding="utf-8")
    pages = {pathlib.Path("README.md"), *pathlib.Path("docs").rglob("*.md")}
    written = set()
    while waiting := sorted(pages - written):
        for source in waiting:
            linked = set()
            write_page(source, site, linked)
            written.add(source)
            for file in sorted(linked):
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                if file.suffix == ".md":
                    pages.add(file)
                elif file.is_dir():
                    shutil.copytree(file, site / file, dirs_exist_ok=True)
                else:
                    shutil.copyfile(file, site / file)


# ---- headers


def write_headers(folder):
    def page(match):
        address = os.path.relpath(page_of(pathlib.Path(match[1])), "reference") + (match[2] or "")
        return f'<a href="{address}">{match[1]}</a>'

    for source in [*pathlib.Path("include").rglob("*.hpp"), pathlib.Path("docs/reference.dox")]:
        lines = formulas.filter_header(source.read_text(encoding="utf-8")).splitlines(keepends=True)
        is_dox = source.suffix == ".dox"
        text = "".join(
            re.sub(r"(?<![\w/])(docs/[\w/.-]*?\.md)(#[\w-]+)?", page, line) if is_dox or line.lstrip().startswith("///") else line
            for line in lines
        )
        (folder / source).parent.mkdir(parents=True, exist_ok=True)
        (folder / source).write_text(text, encoding="utf-8")


# ---- links


class Links(html.parser.HTMLParser):
    """What a page links to, and the names that can be linked to."""

    def __init__(self, page):
        super().__init__()
        self.links, self.names = [], set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.names.update(attributes[key] for key in ("id", "name") if attributes.get(key))
        self.links += [attributes[key] for key in ("href", "src") if attributes.get(key)]


def check(site):
    pages = {page.resolve(): Links(page) for page in sorted(site.rglob("*.html"))}
    failed = 0
    for page, found in pages.items():
        broken = []
        for link in found.links:
            if is_outside(link) or link == "#nested-classes":  # doxygen has it also where all of them are private
                continue
            path, _, anchor = urllib.parse.unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                broken.append(f"{link}: no such file")
            elif anchor and target in pages and anchor not in pages[target].names:
                broken.append(f"{link}: no such place on the page")
        for text in broken:
            print(f"{page.relative_to(site.resolve())}: {text}")
        failed += bool(broken)
    if not pages:
        sys.exit(f"{site}: no pages")
    print(f"{len(pages) - failed} passed, {failed} failed")
    return failed


command, folder = sys.argv[1], pathlib.Path(sys.argv[2])
if command == "pages":
    write_pages(folder)
elif command == "headers":
    write_headers(folder)
elif command == "check":
    sys.exit(check(folder) > 0)
else:
    sys.exit(__doc__)
