#!/usr/bin/env python3
"""Golden tests: what a tool prints for a small input.

    golden.py --bin BIN FILE...            run (default: every file of tests/golden); exit 1 when one fails
    golden.py --bin BIN --bless [FILE...]  rewrite the expected halves and show what changed
    golden.py --bin BIN --coverage         every diagnostic kind, op and pass has its golden

A file is a claim, lines `// RUN: COMMAND` (`# RUN:` in TOML), and an input. The commands are lines of bash that run one
after the other in a folder with the input alone, whose name is %s. FileCheck, not and split-file are LLVM's. Behind a
line `// ----- expected` (`# ----- expected`) stands what the command prints, errors first, to the letter.
"""
import argparse
import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/golden"
LLVM = pathlib.Path("/usr/lib/llvm-19/bin")


class Golden:
    def __init__(self, path, bin):
        self.path = path
        self.environment = {**os.environ, "PATH": f"{bin}:{LLVM}:{os.environ['PATH']}"}
        separator = f"{'//' if path.suffix == '.gir' else '#'} ----- expected\n"
        self.input, self.separator, self.expected = path.read_text().partition(separator)
        joined = re.sub(r"\\\n(?://|#) RUN: *", "", self.input)
        self.commands = re.findall(r"^(?://|#) RUN: (.*)$", joined, re.M)

    def run(self, text, *commands):
        """Returns the exit status of the first command that fails (else 0), that command, its errors and output."""
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, self.path.name).write_text(text)
            for command in commands:
                words = ["bash", "-o", "pipefail", "-c", command.replace("%s", self.path.name)]
                done = subprocess.run(words, cwd=folder, env=self.environment, text=True, capture_output=True,
                                      stdin=subprocess.DEVNULL, timeout=120)
                if done.returncode:
                    break
        return done.returncode, command, done.stderr + done.stdout

    def problem(self, bless):
        """Returns what is wrong, "" where nothing is; with `bless`, how the expected half has changed."""
        if not self.commands:
            return "a golden has lines `RUN: COMMAND`"
        code, command, printed = self.run(self.input, *self.commands)
        if not (LLVM / "FileCheck").exists():
            return "FileCheck is missing: install the Debian package llvm-19-tools"
        if code != 0:
            return f"RUN: {command}\nexit {code}\n{printed}"
        lines = [text.splitlines(True) for text in (self.expected, printed)]
        changed = self.separator and "".join(difflib.unified_diff(*lines, n=2))
        if changed and bless:
            self.path.write_text(self.input + self.separator + printed)
        return changed or self.round_trip(printed)

    def round_trip(self, printed):
        """Checks that the IR which gacc-opt has printed parses, and prints to the same text."""
        if not self.commands[0].startswith("gacc-opt ") or not printed.startswith("module "):
            return ""
        locations = "--print-locs" if "--print-locs" in self.commands[0] else ""
        code, _, again = self.run(printed, f'gacc-opt %s --passes "" {locations}')
        return "" if code == 0 and again == printed else "what is printed does not print to itself:\n" + again


def coverage(bin):
    """Returns what no golden shows yet."""
    texts = [path.read_text() for path in goldens([])]
    missing = [f"no golden shows the diagnostic kind [{kind}]"
               for kind in re.findall(r'^X\(\w+, "([^"]+)"\)', (ROOT / "ir/diag.def").read_text(), re.M)
               if not any(f"[{kind}]" in text for text in texts)]
    missing += [f"no golden for the op `{op}`: write tests/golden/ops/{op}.gir"
                for op in re.findall(r'^X\(\w+, "([^"]+)"\)', (ROOT / "ir/ops.def").read_text(), re.M)
                if not (GOLDEN / "ops" / f"{op}.gir").exists()]
    listed = subprocess.run([bin / "gacc-opt", "--list-passes"], capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"^([a-z]\S*)", listed, re.M):
        if (count := len([*(GOLDEN / "passes" / name).glob("*.gir")])) < 3:
            missing.append(f"pass `{name}` has {count} goldens in tests/golden/passes/{name}/, at least 3 are wanted")
    return missing


def goldens(names):
    paths = [pathlib.Path(name) for name in names] or [GOLDEN]
    return [f for p in paths for f in (sorted([*p.rglob("*.gir"), *p.rglob("*.toml")]) if p.is_dir() else [p])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--bin", type=lambda name: pathlib.Path(name).resolve(), default=ROOT / "build/bin")
    for flag in ("--bless", "--coverage"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    if options.coverage:
        sys.exit("\n".join(coverage(options.bin)) or 0)
    failed = False
    for path in goldens(options.files):
        if problem := Golden(path, options.bin).problem(options.bless):
            failed = not options.bless
            print(f"--- {path}\n{problem.rstrip()}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
