#!/usr/bin/env python3
"""Prints "PASSED FAILED" from the summary of `meson test` in a log. No test at all counts as one failure."""
import re
import sys


def count(text):
    def number(name):
        found = re.findall(r"^%s:\s+(\d+)" % name, text, re.MULTILINE)
        return int(found[-1]) if found else 0

    passed = number("Ok") + number("Expected Fail")
    failed = number("Fail") + number("Timeout") + number("Unexpected Pass")
    if passed + failed == 0:
        failed = 1
    return passed, failed


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        print(*count(log.read()))
