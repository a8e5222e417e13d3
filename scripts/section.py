#!/usr/bin/env python3
"""Prints PAGE with its generated section replaced by standard input.

    gacc-exec --list-data | section.py docs/data.md

The section is between a line `<!-- from here: COMMAND -->` and a line `<!-- to here -->`.
"""
import re
import sys

page = open(sys.argv[1], encoding="utf-8").read()
new, found = re.subn(r"(<!-- from here: [^\n]* -->\n).*?(<!-- to here -->\n)",
                     lambda m: f"{m[1]}\n{sys.stdin.read()}\n{m[2]}", page, flags=re.S)
if found != 1:
    sys.exit(f"{sys.argv[1]}: error: {found} generated sections, expected one")
sys.stdout.write(new)
