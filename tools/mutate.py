#!/usr/bin/env python3
"""Do the tests notice? Deletes one statement of passes/ or ir/ at a time, rebuilds, and runs the tests.

    mutate.py [--count 30] [--seed 1] [--work DIR] [--files PATTERN]
    mutate.py --self-test

Works on a copy of the tree with a build of its own, so the checkout is untouched. The statements are a random sample
with a fixed seed; one whose deletion does not compile is not counted, and the next of the sample takes its place. The
fast tests (golden, numeric, unit) run first, the others only for what survives them; a mutant that hangs is caught.
Survivors are listed at the end and in DIR/report.json.
"""
import argparse
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FAST = "^(golden|numeric|unit)$"
NOT_COUNTED = r"^(format|layers.*|run\.mnist\..*|run\.scripts\..*)$"  # text checks, clocks, long runs

# What cannot be deleted alone: declarations (something uses them) and labels.
DECLARATION = re.compile(r"(const|constexpr|static|auto|using|struct|extern|template|case|default|public|private|friend|enum|typedef)\b")
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def blank(text):
    """The text with comments, strings and preprocessor lines blanked out, of the same length."""
    text = COMMENT_OR_TEXT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]) if m[0].startswith("/") else re.sub(r"[^\n]", "_", m[0]), text)
    return re.sub(r"(?m)^[ \t]*#.*$", lambda m: " " * len(m[0]), text)


def opens_code(before):
    """Whether a `{` after `before` (the text since the last statement) opens a block of statements."""
    before = before.strip()
    if re.search(r"\b(namespace|struct|class|enum|union)\b", before) and not before.endswith(")"):
        return False
    return bool(re.search(r"(\)|\]|\belse|\bdo|\btry|:)\s*((const|noexcept|override|mutable)\s*)*(->[\s\w:<>,*&]+)?$|^$", before))


def statements(text):
    """(begin, end) of every statement that ends in `;` inside a block of code, outermost first where they nest."""
    plain, found = blank(text), []
    stack = [["outside", 0, 0]]  # kind of block, parentheses open in it, where its current statement begins
    for at, character in enumerate(plain):
        top = stack[-1]
        if character in "([":
            top[1] += 1
        elif character in ")]":
            top[1] -= 1
        elif character == "{":
            before = plain[top[2]:at]
            code = opens_code(before) and (top[0] == "code" or bool(re.search(r"[\])]", before)))
            stack.append(["code" if code else "other", 0, at + 1])
        elif character == "}" and len(stack) > 1:
            stack.pop()
            after = plain[at + 1:at + 40].lstrip()
            # a block that ends a statement; a lambda's or an initialiser's goes on
            if stack[-1][1] == 0 and not after.startswith((",", ")", ";", "(", ".", "]", "}")) and not after.startswith("else"):
                stack[-1][2] = at + 1
        elif character == ";" and top[1] == 0:
            if top[0] == "code":
                begin = top[2] + len(plain[top[2]:at]) - len(plain[top[2]:at].lstrip())
                body = plain[begin:at].strip()
                if body and not DECLARATION.match(body):
                    found.append((begin, at + 1))
            top[2] = at + 1
    return found


def candidates(tree, pattern):
    out = []
    for folder in ("ir", "passes"):
        for path in sorted((tree / folder).rglob("*.cpp")):
            name = path.relative_to(tree).as_posix()
            if re.search(pattern, name):
                out += [(name, begin, end) for begin, end in statements(path.read_text())]
    return out


def shell(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


class Copy:
    def __init__(self, work, jobs):
        self.tree, self.build, self.jobs = work / "tree", work / "build", jobs
        self.ignored = []  # tests that fail in the untouched copy

    def prepare(self):
        """A fresh copy of the checkout (what git knows and what is new); builds it and sees the tests pass."""
        names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
        shutil.rmtree(self.tree, ignore_errors=True)
        for name in names.decode().split("\0"):
            if name and (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        done = shell(["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"])
        if done.returncode == 0:
            done = self.ninja()
        if done.returncode != 0:
            sys.exit(f"error: the copy does not build\n{done.stdout[-3000:]}")
        while failing := self.test(FAST) or self.test(None):
            if not failing[0].isalpha() or len(self.ignored) == 10 or " " in failing:
                sys.exit(f"error: the tests fail before anything is deleted: {failing}, {self.ignored}")
            print(f"not counted, it fails before anything is deleted: {failing}", flush=True)
            self.ignored.append(failing)

    def ninja(self):
        return shell(["ninja", "-C", self.build, "-j", str(self.jobs)])

    def test(self, labels):
        """The first failing test, "" when all pass."""
        command = ["ctest", "--test-dir", str(self.build), "-j", str(self.jobs), "--stop-on-failure", "-E", "|".join([NOT_COUNTED, *(f"^{re.escape(t)}$" for t in self.ignored)])]
        command += ["-L", labels] if labels else ["-LE", FAST]
        try:
            done = shell(command, timeout=300 if labels else 1200, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return "a test that hangs"
        failed = re.search(r"Test +#\d+: (\S+) .*(\*\*\*|Failed|Timeout|Exception)(?!.*Skipped)", done.stdout)
        return failed[1] if failed and done.returncode else "ctest itself" if done.returncode else ""


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def experiment(options):
    copy = Copy(options.work, options.jobs)
    copy.prepare()
    pool = candidates(copy.tree, options.files)
    print(f"{len(pool)} statements; deleting {options.count} of them, seed {options.seed}", flush=True)
    random.Random(options.seed).shuffle(pool)
    report, refused = [], 0
    for name, begin, end in pool:
        if len(report) == options.count:
            break
        path, start = copy.tree / name, time.monotonic()
        text = path.read_text()
        path.write_text(text[:begin] + ";" + re.sub(r"[^\n]", "", text[begin:end]) + text[end:])  # lines keep their numbers
        try:
            if copy.ninja().returncode != 0:
                refused += 1
                continue
            by = copy.test(FAST) or copy.test(None)
        finally:
            path.write_text(text)
        entry = {"file": name, "line": line_of(text, begin), "statement": " ".join(text[begin:end].split()), "caught_by": by}
        report.append(entry)
        print(f"{len(report):3} {'caught  ' if by else 'SURVIVED'} {time.monotonic() - start:4.0f} s  {name}:{entry['line']}: "
              f"{entry['statement'][:100]}{'  <- ' + by if by else ''}", flush=True)
        (options.work / "report.json").write_text(json.dumps(report, indent=1))
    survivors = [e for e in report if not e["caught_by"]]
    print(f"\n{len(report) - len(survivors)} of {len(report)} caught; {refused} deletions did not compile")
    for entry in survivors:
        print(f"survived: {entry['file']}:{entry['line']}: {entry['statement']}")


SAMPLE = """
#include <x>;
namespace a { struct S { int x; void f() { x = 1; } }; }
int table[] = {1, 2};
int f(int a) const {
  const int b = 2;  // a; b;
  if (a) return 1;
  for (int i = 0; i < 3; ++i) { g(i, "x;y"); h({1, 2}); }
  auto k = [&](int x) { y += x; };
  call([&] { z = 1; });
  switch (a) { case 1: one(); break; default: two(); }
  if (b) {
    three();
  } else four();
  return a;
}
const OpInfo op{.name = "x", .f = [](S x) { return x; }};
"""
EXPECTED = ["x = 1;", "if (a) return 1;", "g(i, ____);", "h({1, 2});", "y += x;", "z = 1;", "call([&] { z = 1; });", "break;",
            "three();", "if (b) { three(); } else four();", "return a;", "return x;"]


def self_test():
    found = [" ".join(blank(SAMPLE)[b:e].split()) for b, e in statements(SAMPLE)]
    found = [re.sub(r"_+", "____", s) for s in found if not re.match(r"(case|default)", s)]
    if found != EXPECTED:
        sys.exit(f"found    {found}\nexpected {EXPECTED}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--files", default="", help="regular expression that the file's name must contain")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/gacc-mutate"))
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        self_test()
    else:
        experiment(options)


if __name__ == "__main__":
    main()
