"""Reads C sources as far as the checks need: files, text without comments and strings, functions.

Functions are found by the project's format (clang-format runs first): a function's `{` and `}` stand alone in the
first column.
"""
import os
import re

TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def files(roots, endings=(".c", ".h")):
    for root in roots:
        for folder, dirs, names in os.walk(root):
            dirs.sort()
            for name in sorted(names):
                if name.endswith(endings):
                    yield os.path.join(folder, name)


def read(path):
    with open(path, encoding="utf-8") as source:
        return source.read()


def code_only(text):
    """Comments and the contents of literals become blanks; line numbers stay true."""

    def blank(match):
        piece = match.group(0)
        if piece[0] in "\"'":
            return piece[0] + " " * (len(piece) - 2) + piece[0]
        return re.sub(r"[^\n]", " ", piece)

    return TOKENS.sub(blank, text)


def functions(text):
    """Yields (name, first line, lines) of each function; lines counts from its signature to its closing brace."""
    lines = code_only(text).split("\n")
    start = None
    for number, line in enumerate(lines):
        if line == "{":
            start = number
        elif line.startswith("}") and start is not None:
            head = start - 1
            while head > 0 and lines[head - 1].strip() and not lines[head - 1].startswith(("}", "#")) \
                    and not lines[head - 1].rstrip().endswith(";"):
                head -= 1
            signature = " ".join(lines[head:start])
            found = re.search(r"([A-Za-z_]\w*)\s*\(", signature)
            if found:
                yield found.group(1), head + 1, number - head + 1
            start = None
