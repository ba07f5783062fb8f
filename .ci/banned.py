#!/usr/bin/env python3
"""Finds calls of functions that this project does not use, in src/, tests/ and bench/."""
import os
import re
import sys

import csource

BANNED = {
    "strcpy": "str_copy or memcpy with a checked size",
    "strcat": "struct buf",
    "sprintf": "snprintf, checked",
    "vsprintf": "vsnprintf, checked",
    "strtok": "strtok_r or strcspn",
    "atoi": "str_parse_*",
    "atol": "str_parse_*",
    "sscanf": "str_parse_*",
    "gets": "fgets",
    "alloca": "the heap",
    "system": "posix_spawn or base/proc.h",
    "popen": "base/proc.h",
}
# In src/ alone: a test may poll for what it has no event for.
SLEEPS = dict.fromkeys(("sleep", "usleep"), "an event and a deadline")


def calls(names):
    return re.compile(r"(?<![\w.>])(" + "|".join(names) + r")\s*\(")


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    everywhere, product = calls(BANNED), calls({**BANNED, **SLEEPS})
    found = 0
    for path in csource.files(["src", "tests", "bench"]):
        for number, line in enumerate(csource.code_only(csource.read(path)).split("\n"), 1):
            for match in (product if path.startswith("src") else everywhere).finditer(line):
                found += 1
                name = match.group(1)
                print(f"{path}:{number}: {name}() is not used here; use {BANNED.get(name) or SLEEPS[name]}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
