#!/usr/bin/env python3
"""Checks the size limits of functions and files, and prints what it measured."""
import os
import sys

import csource

FUNCTION_MAX = 120
FUNCTION_P95 = 70
FILE_MAX = 1200


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    wrong = []
    functions = []
    file_sizes = []
    lines = {"src": 0, "tests": 0}
    for path in csource.files(["src", "tests", "bench"]):
        text = csource.read(path)
        size = text.count("\n")
        top = path.split(os.sep)[0]
        if top in lines:
            lines[top] += size
        if size > FILE_MAX:
            wrong.append(f"{path}: {size} lines, limit {FILE_MAX}")
        if not path.startswith("src"):
            continue
        if path.endswith(".c"):
            file_sizes.append(size)
        for name, line, length in csource.functions(text):
            functions.append(length)
            if length > FUNCTION_MAX:
                wrong.append(f"{path}:{line}: {name} has {length} lines, limit {FUNCTION_MAX}")
    for path in csource.files(["tests"], (".py",)):
        lines["tests"] += csource.read(path).count("\n")
    if percentile(functions, 0.95) > FUNCTION_P95:
        wrong.append(f"95% of functions have at most {percentile(functions, 0.95)} lines, limit {FUNCTION_P95}")
    if not functions:
        wrong.append("no function found in src/")
    print(f"functions: {len(functions)}, median {percentile(functions, 0.5)}, p95 {percentile(functions, 0.95)}, "
          f"longest {max(functions, default=0)} lines")
    print(f".c files: {len(file_sizes)}, median {percentile(file_sizes, 0.5)}, longest {max(file_sizes, default=0)} "
          f"lines; src {lines['src']} lines, tests {lines['tests']} lines")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
