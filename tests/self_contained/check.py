# SPDX-License-Identifier: MIT
"""Compiles a source that holds nothing but one header, included twice: check.py HEADER -- COMPILER ARGUMENT..."""
import subprocess
import sys

header, _, *command = sys.argv[1:]
source = f"#include <{header}>\n" * 2
sys.exit(subprocess.run([*command, "-fsyntax-only", "-x", "c++", "-"], input=source, text=True).returncode)
