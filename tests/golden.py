#!/usr/bin/env python3
"""Golden tests: what a tool prints for a small input, kept as text.

    golden.py --bin BIN FILE...            compare (default: every case); exit 1 when one differs
    golden.py --bin BIN --bless [FILE...]  rewrite the expected half and show what changed
    golden.py --bin BIN --coverage         every diagnostic kind, op and pass has its golden

X.gir: a line `// RUN: gacc-opt %s --passes "dce"`, the input, a line `// ----- expected`, the exact output, which must
itself parse and print to the same text; without that line, what comes back is the input but for its lines of comment.
`// RUN: not gacc-opt ...` expects exit 1 and compares standard error.
X.toml beside X.expected: `# RUN: gaccc %s ...` (default: --emit ir --stop-after model -o -), standard error then output, in
which `eval` and `predict` stand as what of another region is other there, or as the part of `eval` that `predict` and
`measure` are, and of the settings of a module those that the golden `least` has are left out; `-`: that is not there.
An error's excerpt, which has been compared with the input, stands as what it points to: `X.toml:6:9 (0.1): error: ...`.
`// MATCH: subset` (`# MATCH: subset`): the expected lines occur in this order, others may stand between.
`// LIKE: Y.gir` (`# LIKE: Y.toml`): expects what the golden Y beside it expects but for these lines, `-` gone and `+` new;
with `RUN: not`, the errors. `// LIKE: input`, also beside another LIKE: expects the input but for these lines.
Where such a golden has nothing else, its input is Y's with each `// EDIT: OLD => NEW | OLD => NEW` (`# EDIT: `) made; \n is
a line's end. `// CLAIM` over `// EDIT: ...`, any number of both: a run for each, of Y or of the model below.
`// FROM: half`: the input is the expected half without the kernels, places and launches that passes add to a module of
that phase, so it stands once.
"""
import argparse
import difflib
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/golden"
LEAST = GOLDEN / "frontend/least.toml"
SEPARATOR = "// ----- expected\n"
MODEL_RUN = "gaccc %s --emit ir --stop-after model -o -"


def run(command, cwd, bin):
    done = subprocess.run([str(bin / command[0]), *command[1:]], cwd=cwd, capture_output=True, text=True, timeout=120,
                          stdin=subprocess.DEVNULL)
    errors = re.sub(r"(?m)^[^\s:]*/([^/\s:]+:)", r"\1", done.stderr)  # no folder names in goldens
    return done.returncode, done.stdout, errors


def uncommented(text):
    return re.sub(r"(?m)^ *(?://|#).*\n", "", text)


def without_excerpts(errors, source):
    """The errors, each with the text that it points to in the place of the two lines that show it, where these show the
    source as it is."""
    lines = source.splitlines()

    def shortened(match):
        head, row, column, message, excerpt, mark = match.groups()
        line, start = lines[int(row) - 1] if int(row) <= len(lines) else "", int(column) - 1
        shown = line[start:start + len(mark)] if len(mark) <= len(line) - start else ""
        if not shown or excerpt != f"{int(row):5d} | {line}\n      | {' ' * start}{mark}":
            return match[0]
        return f"{head}:{row}:{column} ({shown}): {message}\n"
    return re.sub(r"(?m)^([^\s:]+):(\d+):(\d+): (.*)\n( +\d+ \| .*\n +\| *(\^~*))\n", shortened, errors)


def before_passes(text, phase):
    """The module without what the passes behind that phase have added: kernels, places, launches."""
    text = re.sub(r"phase\(\w+\)(?: (?:arena|target)\(\w+\))*", f"phase({phase})", text, count=1)
    text = re.sub(r" at \d+|(?m:^  set launch\.(?:because|step|update)\b.*\n)", "", text)
    text = re.sub(r"(?ms)^  \} schedule \{\n.*?^  \}\n", "  }\n", text)
    return text if phase in ("fused", "recomputed") else re.sub(r" k\(\d+\)", "", text)


def edited(text, *edits):
    """The text without its comments, with the first place of each OLD changed."""
    text = uncommented(text)
    for old, new in (change.replace("\\n", "\n").split(" => ") for edit in edits for change in edit.split(" | ")):
        if old not in text:
            raise ValueError(f"EDIT: no `{old}` here")
        text = text.replace(old, new, 1)
    return text


class Case:
    def __init__(self, path, bin):
        self.path, self.bin = path.resolve(), bin.resolve()
        self.gir = self.path.suffix == ".gir"
        text = self.path.read_text()
        self.input, separator, self.expected = text.partition(SEPARATOR)
        if not self.gir:
            self.input, expected = text, self.path.with_suffix(".expected")
            self.expected = expected.read_text() if expected.exists() else ""
        elif not separator:
            self.input += "\n" * (not self.input.endswith("\n"))
            self.expected = uncommented(self.input)
        likes = re.findall(r"^(?://|#) LIKE: (\S+)$", self.input, re.M)
        self.of_input = "input" in likes
        like = next((name for name in likes if name != "input"), None)
        self.like, self.text = Case(self.path.with_name(like), bin) if like else None, self.input
        derived = like and not uncommented(self.input).strip()
        self.edits = re.findall(r"^(?://|#) (?!RUN:|LIKE:|EDIT:)(.*)\n(?://|#) EDIT: (.*)$", self.input, re.M)
        self.phase = re.search(r"^// FROM: (\w+)$", self.input, re.M)
        if self.phase:
            self.text = before_passes(self.expected, self.phase[1])
        elif derived:
            each = [] if self.edits else re.findall(r"^(?://|#) EDIT: (.*)$", self.input, re.M)
            self.text = edited(self.like.text, *each)
        match = re.search(r"^(?://|#) RUN: (.*)$", self.like.input if derived and "RUN: " not in self.input else self.input, re.M)
        if not match and self.gir:
            raise ValueError("no line `// RUN: gacc-opt %s ...`")
        self.words = shlex.split(match[1] if match else MODEL_RUN)
        self.fails = self.words[0] == "not"
        self.words = self.words[self.fails:]
        self.subset = bool(re.search(r"^(//|#) MATCH: subset$", self.input, re.M))

    def actual(self):
        """Returns what the expected half should be now: what the tool prints, or how that differs from what another golden expects."""
        self.printed = "".join(f"----- {claim}\n{self.prints(edited(self.text, edit))}" for claim, edit in self.edits) or self.prints(self.text)
        if self.phase and before_passes(self.printed, self.phase[1]) != self.text:
            raise ValueError("the passes change more than FROM tells: write the input above it\n" + self.printed)
        if self.of_input:
            return changes(uncommented(self.text), self.printed)
        if self.like and not self.fails and not self.subset:
            base = self.like.prints(self.like.text)
            return changes(base, self.printed) if self.gir else changes(beside_step(base), beside_step(self.printed))
        if self.gir or self.subset:
            return self.printed
        return beside_step(self.printed if self.path == LEAST else beside_least(self.printed))

    def prints(self, input):
        """The tool sees the input half alone, under the case's own file name, or that of the case that it is like."""
        name = (self.like or self).path.name
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, name).write_text(input)
            code, out, errors = run([w.replace("%s", name) for w in self.words], folder, self.bin)
        wrong = self.fails if self.gir else " error: " in errors or errors.startswith("error: ")
        if code != int(wrong):
            raise ValueError(f"exit {code}, expected {int(wrong)}\n{errors}{'' if wrong else out}")
        errors = without_excerpts(errors, input)
        if not self.gir:
            return errors + out
        return errors if self.fails else out

    def round_trip(self):
        """Checks that the expected half is IR: it parses, and prints to itself."""
        if not self.gir or self.fails or self.subset or self.words[0] != "gacc-opt":
            return ""
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "expected.gir").write_text(self.printed)
            locations = ["--print-locs"] if "--print-locs" in self.words else []
            code, out, errors = run(["gacc-opt", "expected.gir", "--passes", "", *locations], folder, self.bin)
        return (wrong := errors + diff(self.printed, out)) and "the expected half does not print to itself:\n" + wrong

    def check(self):
        actual = self.actual()
        if self.subset:
            rest = iter(line.strip() for line in actual.splitlines())
            for line in (w.strip() for w in self.expected.splitlines()):
                if line and line not in rest:
                    return f"not found (in order): {line}\n----- the output\n{actual}"
            return "" if self.expected.strip() else "nothing is expected: write the lines that must occur"
        return diff(self.expected, actual) or self.round_trip()

    def bless(self):
        if self.subset:  # written by hand
            return self.check()
        if self.like:
            self.like.bless()
        actual = self.actual()
        changed = diff(self.expected, actual)
        if changed and self.gir:
            self.path.write_text(self.input + SEPARATOR + actual)
        elif changed:
            self.path.with_suffix(".expected").write_text(actual)
        self.expected = actual
        return changed + self.round_trip()


def diff(expected, actual):
    return "".join(difflib.unified_diff(expected.splitlines(True), actual.splitlines(True), "expected", "actual", n=2))


def changes(base, text):
    """The lines that differ; `@@` between places."""
    lines = [*difflib.unified_diff(base.splitlines(True), text.splitlines(True), n=0)][2:]
    return "".join("@@\n" if line.startswith("@@") else line for line in lines)


def beside_least(text):
    """The text of a module without the settings that the least model has too, but for those of its own input."""
    given = re.findall(r"(?m)^  set .*\n", text)
    least = re.findall(r"(?m)^  set (?!inputs\.).*\n", LEAST.with_suffix(".expected").read_text())
    keys = {line.split()[1] for line in given}
    shown = [line for line in given if line not in least] + ["-" + line for line in least if line.split()[1] not in keys]
    return text.replace("".join(given), "".join(shown), 1) if given else text


def beside_step(text):
    """The text of a module with its regions as changes of an earlier one where that is shorter, or parts of `eval`."""
    region = re.compile(r"(?ms)^  (step|eval|predict|measure)(\(.*?) \{\n(.*?)^  \}\n")
    bodies = {m[1]: m[3] for m in region.finditer(text)}
    evaluated = bodies.get("eval", "")

    def shortened(match):
        if match[1] == "measure":
            behind = next((name for name in re.findall(r"%[\w.]+", evaluated) if evaluated.endswith(match[3].replace("%predicted", name))), None)
            return f"  measure{match[2]} like the end of eval, behind {behind}\n" if behind else match[0]
        output = re.fullmatch(r"((?:.*\n)*    (%[\w.]+)[, ].*\n)    yield output \2\n", match[3])
        if match[1] == "predict" and output and evaluated.startswith(output[1]):
            return f"  predict{match[2]} like eval up to {output[2]}\n"
        others = [name for name in ("step", "eval") if name in bodies and match[1] not in ("step", name)]
        tried = [(changes(bodies[name], match[3]), name) for name in others]
        change, other = min(tried, key=lambda one: one[0].count("\n"), default=(match[3], ""))
        if change.count("\n") > match[3].count("\n") * 3 / 4:
            return match[0]
        changed = f" {{\n{change}  }}" if change else ""
        return f"  {match[1]}{match[2]} like {other}{changed}\n"
    return region.sub(shortened, text)


def cases(names):
    paths = [pathlib.Path(name) for name in names] or [GOLDEN]
    return [f for p in paths for f in (sorted([*p.rglob("*.gir"), *p.rglob("*.toml")]) if p.is_dir() else [p])]


def coverage(bin):
    """Names what no golden shows yet."""
    missing = []
    texts = [p.read_text().rpartition(SEPARATOR)[2] for p in GOLDEN.rglob("*.gir")] + [p.read_text() for p in GOLDEN.rglob("*.expected")]
    kinds = (ROOT / "ir/diag.def").read_text()
    for kind in re.findall(r'^X\(\w+, "([^"]+)"\)', kinds, re.M):
        if not any(f"[{kind}]" in text for text in texts):
            missing.append(f"no golden shows the diagnostic kind [{kind}]")
    for op in re.findall(r'^X\(\w+, "([^"]+)"\)', (ROOT / "ir/ops.def").read_text(), re.M):
        if not (GOLDEN / "ops" / f"{op}.gir").exists():
            missing.append(f"no golden for the op `{op}`: write tests/golden/ops/{op}.gir")
    listed = run(["gacc-opt", "--list-passes"], ROOT, bin)[1]
    for name in [line.split()[0] for line in listed.splitlines() if re.match(r"[a-z]", line)]:
        if (count := len([*(GOLDEN / "passes" / name).glob("*.gir")])) < 3:
            missing.append(f"pass `{name}` has {count} goldens in tests/golden/passes/{name}/, at least 3 are wanted")
    return missing if listed.strip() else [*missing, "gacc-opt --list-passes printed nothing"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    for flag in ("--bless", "--coverage"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    if options.coverage:
        missing = coverage(options.bin)
        print(*missing, sep="\n")
        sys.exit(1 if missing else 0)
    failed = False
    for path in cases(options.files):
        try:
            case = Case(path, options.bin)
            text = case.bless() if options.bless else case.check()
            failed |= bool(text) and not options.bless
        except (ValueError, OSError, subprocess.TimeoutExpired) as error:
            text, failed = str(error), True
        if text:
            print(f"--- {path}\n{text.rstrip()}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
