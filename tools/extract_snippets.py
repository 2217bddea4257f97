# SPDX-License-Identifier: MIT
"""Takes the C++ out of Markdown files, so that every snippet of the documentation is compiled.

    extract_snippets.py --list FILE.md...        names of what will be written, one a line
    extract_snippets.py --out FOLDER FILE.md...  writes it

A block ```cpp is one of these, as an HTML comment on the line before it says:

    (no comment)                                a complete program, with main(): DOCUMENT_N.cpp
    <!-- snippet: body -->                      statements, run once; needs="a, b" gives them parameters, see NEEDS
    <!-- snippet: declarations -->              what stands at namespace scope
    <!-- snippet: file="examples/x.cpp" -->     the same text as this file without its first comment; only compared

If the next thing after a program is a block ```text, that is what the program prints: DOCUMENT_N.txt. Bodies and
declarations of a document share a namespace, in order, so bodies can use what was declared above them; all documents
share one translation unit, bodies.cpp. `ls` is `lockstep` everywhere.
"""
import argparse
import pathlib
import re
import sys

# What a body may need -> the parameter that provides it.
NEEDS = {
    "variables": "ls::Variables<float>& variables",
    "w": "const ls::Handle<Eigen::MatrixXf, float>& w",
    "b": "const ls::Handle<Eigen::VectorXf, float>& b",
    "embedding": "const ls::Handle<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, float>& embedding",
    "trainer": "ls::SyncReplicas<ls::Adam, ls::InProcess>& trainer",
    "replica": "ls::SyncReplicas<ls::Adam, ls::InProcess>::Replica& replica",
    "optimizer": "ls::Local<ls::GradientAggregation<ls::Adam>>& optimizer",
    "gradient": "const Eigen::MatrixXf& gradient",
    "samples": "double samples",
}
# How a body that is run gets what needs more than members of `Set`, in this order; a replica needs a trainer.
MADE = {
    "trainer": "ls::SyncReplicas<ls::Adam, ls::InProcess> trainer{ls::Adam{}, set.variables, {}};",
    "replica": "auto replica = trainer.join();\n    replica.set_gradient(set.b, Eigen::VectorXf::Ones(2));",
    "optimizer": "ls::Local<ls::GradientAggregation<ls::Adam>> optimizer{{ls::Adam{}, {.grad_steps = 4}}, set.variables};",
}
RUN = """
namespace {

/// What a body works with; a new one for each.
struct Set {
  using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  ls::Variables<float> variables = {};
  ls::Handle<Eigen::MatrixXf, float> w = variables.add("w", Eigen::MatrixXf::Ones(2, 3));
  ls::Handle<Eigen::VectorXf, float> b = variables.add("b", Eigen::VectorXf::Zero(2));
  ls::Handle<Table, float> embedding = variables.add("embedding", Table::Zero(8, 4));
  Eigen::MatrixXf gradient = Eigen::MatrixXf::Ones(2, 3);
  double samples = 32;
};

/// Runs one body. False if it throws; then it says where that is.
template <class F>
bool run(const char* where, F&& body) {
  try {
    Set set;
    body(set);
    return true;
  } catch (const std::exception& error) {
    std::cout << where << ": " << error.what() << '\\n';
    return false;
  }
}

}  // namespace
"""
PRELUDE = """#include <lockstep/lockstep.hpp>
#include <lockstep/accumulators/conditional_accumulator.hpp>
#include <lockstep/accumulators/sparse_conditional_accumulator.hpp>
#include <lockstep/accumulators/token_queue.hpp>
#include <lockstep/optimizers/explain.hpp>
#include <lockstep/transport/explain.hpp>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace ls = lockstep;
"""
BLOCK = re.compile(
    r"^(?:<!-- snippet: (?P<mark>.*?) -->\n)?```cpp\n(?P<text>.*?)^```\n(?:\n*```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


class Snippet:
    def __init__(self, path, document, match):
        self.text = match["text"]
        self.output = match["output"]
        self.mark = match["mark"] or "program"
        self.line = document.count("\n", 0, match.start("text")) + 1
        self.path = path
        self.kind = re.match(r"\w*", self.mark)[0]
        self.arguments = dict(re.findall(r'(\w+)="([^"]*)"', self.mark))
        if self.kind not in ("program", "body", "declarations", "file"):
            self.fail(f"unknown snippet '{self.mark}'")
        if self.kind == "program" and "int main(" not in self.text:
            self.fail("not a complete program: put <!-- snippet: body --> or declarations above it")

    def fail(self, text):
        sys.exit(f"{self.path}:{self.line}: {text}")

    def code(self):
        return f'#line {self.line} "{self.path.name}"\n{self.text}'

    def needs(self):
        names = [name.strip() for name in self.arguments.get("needs", "").split(",") if name.strip()]
        for name in names:
            if name not in NEEDS:
                self.fail(f"needs \"{name}\", but there are only: {', '.join(NEEDS)}")
        return names

    def parameters(self):
        names = self.needs()
        return ", ".join("[[maybe_unused]] " + NEEDS[name] for name in names)

    def call(self, function):
        needs = self.needs()
        made = [MADE[name] for name in MADE if name in needs or (name == "trainer" and "replica" in needs)]
        arguments = ", ".join(name if name in MADE else f"set.{name}" for name in needs)
        body = "\n    ".join([*made, f"{function}({arguments});"])
        return f'  ok = run("{self.path.name}:{self.line}", []([[maybe_unused]] Set& set) {{\n    {body}\n  }}) && ok;\n'

    def compare(self, root):
        source = (root / self.arguments["file"]).read_text(encoding="utf-8")
        code = re.sub(r"\A(//[^\n]*\n)+", "", source).strip()
        if code != self.text.strip():
            self.fail(f"differs from {self.arguments['file']}")


def read(path):
    document = path.read_text(encoding="utf-8")
    snippets = [Snippet(path, document, match) for match in BLOCK.finditer(document)]
    if len(snippets) != len(re.findall(r"^```cpp", document, re.MULTILINE)):
        sys.exit(f"{path}: a block ```cpp does not end")
    return snippets


def body_unit(documents):
    unit, calls = PRELUDE, ""
    for path, snippets in documents:
        if not any(snippet.kind in ("body", "declarations") for snippet in snippets):
            continue
        name = "doc_" + re.sub(r"\W", "_", path.stem)
        unit += f"\nnamespace {name} {{\n"
        for number, snippet in enumerate(snippets):
            if snippet.kind == "declarations":
                unit += snippet.code()
            elif snippet.kind == "body":
                unit += f"void body_{number}({snippet.parameters()});\nvoid body_{number}({snippet.parameters()}) {{\n{snippet.code()}}}\n"
                calls += snippet.call(f"{name}::body_{number}")
        unit += f"}}  // namespace {name}\n"
    return unit + f"{RUN}\nint main() {{\n  bool ok = true;\n{calls}  return ok ? 0 : 1;\n}}\n"


def outputs(documents):
    """File name -> content."""
    files = {"bodies.cpp": body_unit(documents)}
    for path, snippets in documents:
        for number, snippet in enumerate(snippets):
            if snippet.kind == "program":
                files[f"{path.stem}_{number}.cpp"] = snippet.code()
                files[f"{path.stem}_{number}.txt"] = snippet.output or ""
    return files


parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--list", action="store_true")
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("documents", nargs="+", type=pathlib.Path)
arguments = parser.parse_args()

documents = [(path, read(path)) for path in arguments.documents]
files = outputs(documents)
if arguments.list:
    print("\n".join(files))
if arguments.out:
    root = pathlib.Path(__file__).resolve().parent.parent
    for _, snippets in documents:
        for snippet in snippets:
            if snippet.kind == "file":
                snippet.compare(root)
    for name, content in files.items():
        target = arguments.out / name
        if not target.exists() or target.read_text(encoding="utf-8") != content:
            target.write_text(content, encoding="utf-8")
