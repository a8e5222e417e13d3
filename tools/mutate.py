#!/usr/bin/env python3
"""Do the tests notice? Deletes one statement of passes/ or ir/ at a time and runs the tests.

    mutate.py [--count 30] [--seed 1] [--work DIR] [--files PATTERN]
    mutate.py --self-test

Works on a copy of the tree with a build of its own, so the checkout is untouched. The statements are a random sample
with a fixed seed; one whose deletion does not compile is not counted, and the next of the sample takes its place. All
of them are built at once, each under a switch that the environment variable GACC_MUTANT throws, so that a mutant costs
a run of the tests and no build. Whole test programs run first, then every other test; a mutant that hangs is caught.
Survivors are listed at the end and in DIR/report.json.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Not run: checks of the text, what is long (the stored parity references hold the live ones' cases), and what is fuzzed
# rather than tested.
NOT_RUN = r"^(format|layers.*|run\.mnist\..*|run\.scripts\..*|parity\.live\..*|.*[kK]ill.*)$"
SWITCH = """#pragma once
#include <cstdlib>
#pragma GCC diagnostic ignored "-Wreturn-type"
#pragma GCC diagnostic ignored "-Wimplicit-fallthrough"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wmisleading-indentation"
inline bool gacc_keeps(int statement) {
  static const int deleted = std::getenv("GACC_MUTANT") ? std::atoi(std::getenv("GACC_MUTANT")) : 0;
  return statement != deleted;
}
"""

# What cannot be deleted alone: declarations (something uses them) and labels.
DECLARATION = re.compile(r"(const|constexpr|static|auto|using|struct|extern|template|case|default|public|private|"
                         r"friend|enum|typedef)\b")
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def blank(text):
    """The text with comments, strings and preprocessor lines blanked out, of the same length."""
    text = COMMENT_OR_TEXT.sub(lambda m: re.sub(r"[^\n]", " " if m[0].startswith("/") else "_", m[0]), text)
    return re.sub(r"(?m)^[ \t]*#.*$", lambda m: " " * len(m[0]), text)


def opens_code(before):
    """Whether a `{` after `before` (the text since the last statement) opens a block of statements."""
    before = before.strip()
    if re.search(r"\b(namespace|struct|class|enum|union)\b", before) and not before.endswith(")"):
        return False
    head = r"(\)|\]|\belse|\bdo|\btry|:)\s*((const|noexcept|override|mutable)\s*)*(->[\s\w:<>,*&]+)?$"
    return not before or bool(re.search(head, before))


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
            if stack[-1][1] == 0 and not after.startswith((",", ")", ";", "(", ".", "]", "}", "else")):
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
    """A copy of the checkout in which the chosen statements can be switched off."""

    def __init__(self, work, jobs):
        self.tree, self.build, self.jobs = work / "tree", work / "tree/build", jobs

    def prepare(self):
        names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT)
        shutil.rmtree(self.tree, ignore_errors=True)
        for name in names.decode().split("\0"):
            if name and (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        (self.tree / "switch.h").write_text(SWITCH)
        for folder in ("ir", "passes"):  # without its `return` a function ends in a trap, not in whatever comes next
            path = self.tree / folder / "CMakeLists.txt"
            options = "-fsanitize=return -fsanitize-undefined-trap-on-error"
            path.write_text(f"add_compile_options({options})\n{path.read_text()}")
        done = shell(["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"])
        if done.returncode != 0:
            sys.exit(f"error: the copy cannot be configured\n{done.stdout[-3000:]}")

    def instrument(self, chosen):
        """Writes the files with a switch around each chosen (name, begin, end); they are numbered from 1."""
        by_file = collections.defaultdict(list)
        for number, (name, begin, end) in enumerate(chosen, 1):
            by_file[name].append((begin, end, number))
        for name in by_file:
            path, kept = self.tree / name, self.tree / (name + ".switched")
            if not kept.exists():
                shutil.copy2(path, kept)
        for kept in sorted(self.tree.glob("*/**/*.switched")):  # a file that lost its last statement is whole again
            path = kept.with_suffix("")
            text = kept.read_text()
            places_here = by_file[path.relative_to(self.tree).as_posix()]
            edits = [(begin, 0, f"{{ if (gacc_keeps({number})) {{ ") for begin, _, number in places_here]
            edits += [(end, 1, " } }") for _, end, _ in places_here]
            for at, _, what in sorted(edits, key=lambda e: (e[0], -e[1]), reverse=True):
                text = text[:at] + what + text[at:]
            text = f'#include "{self.tree}/switch.h"\n#line 1 "{path}"\n{text}'
            if not path.exists() or path.read_text() != text:
                path.write_text(text)

    def compile(self):
        """Places "file:line" of errors; empty when the build is whole."""
        done = shell(["ninja", "-C", str(self.build), "-k", "0", "-j", str(self.jobs)])
        if done.returncode == 0:
            return set()
        places = set(re.findall(rf"{re.escape(str(self.tree))}/(\S+?:\d+):\d+: error:", done.stdout))
        if not places:
            sys.exit(f"error: the copy does not build\n{done.stdout[-3000:]}")
        return places

    def tests(self):
        """(name, command, folder), the quickest to notice first: whole GoogleTest programs and all goldens, then the
        rest."""
        listed = json.loads(shell(["ctest", "--test-dir", str(self.build), "--show-only=json-v1"]).stdout)["tests"]
        whole, rest, seen = [], [], set()
        for test in listed:
            if re.search(NOT_RUN, test["name"]) or "command" not in test:
                continue
            properties = {p["name"]: p["value"] for p in test["properties"]}
            labels, command = properties.get("LABELS", []), test["command"]
            program, folder = pathlib.Path(command[0]).name, properties.get("WORKING_DIRECTORY", str(self.build))
            if "gpu" in labels:
                continue
            if program.endswith("_test"):
                if program not in seen:
                    quick = {"unit", "numeric"} & set(labels)
                    (whole if quick else rest).append((program, [command[0], "--gtest_fail_fast"], folder))
                seen.add(program)
            elif "golden" in labels and len(command) > 4 and not command[-1].startswith("--"):
                if "golden" not in seen:
                    whole.append(("golden", command[:-1], folder))
                seen.add("golden")
            elif labels != ["unit"] or not program.startswith("fuzz_"):
                rest.append((test["name"], command, folder))
        order = ["ir_test", "passes_test", "frontend_test", "golden", "planner_test", "numeric_test"]
        whole.sort(key=lambda t: order.index(t[0]) if t[0] in order else len(order))
        return whole + rest

    @staticmethod
    def run(test, mutant):
        """Whether the test passes or is skipped."""
        name, command, folder = test
        environment = dict(os.environ, GACC_MUTANT=str(mutant), XDG_CACHE_HOME=f"/tmp/gacc-mutant-{mutant}")
        try:
            done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)
        except subprocess.TimeoutExpired:
            return False
        finally:
            shutil.rmtree(f"/tmp/gacc-mutant-{mutant}", ignore_errors=True)
        return done.returncode in (0, 77)  # 77: skipped


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def blame(place, chosen, texts):
    """The chosen statement without which the code at "file:line" does not compile: that which covers it, else the last
    one before it (a declaration, mostly)."""
    file, line = place.rsplit(":", 1)
    before = [s for s in chosen if s[0] == file and line_of(texts[file], s[1]) <= int(line)]
    return max(before, key=lambda s: s[1], default=None)


def choose(copy, options):
    """The first `count` statements of the shuffled pool whose deletion compiles, built; and how many were refused."""
    pool = candidates(copy.tree, options.files)
    texts = {name: (copy.tree / name).read_text() for name, *_ in pool}
    print(f"{len(pool)} statements; deleting {options.count} of them, seed {options.seed}", flush=True)
    random.Random(options.seed).shuffle(pool)
    chosen, refused = [], 0
    while True:
        while len(chosen) < min(options.count, len(pool)):
            chosen.append(pool.pop(0))
        copy.instrument(chosen)
        places = copy.compile()
        if not places:
            return chosen, refused, texts
        bad = {blame(place, chosen, texts) for place in places} - {None}
        if not bad:
            sys.exit(f"error: the copy does not build: {sorted(places)}")
        refused += len(bad)
        chosen = [statement for statement in chosen if statement not in bad]


def experiment(options):
    copy = Copy(options.work, options.jobs)
    copy.prepare()
    chosen, refused, texts = choose(copy, options)
    tests = copy.tests()
    ignored = {test[0] for test in tests if not copy.run(test, 0)}
    for name in sorted(ignored):
        print(f"not counted, it fails before anything is deleted: {name}", flush=True)
    tests = [test for test in tests if test[0] not in ignored]
    report = []

    def judge(number):
        start = time.monotonic()
        by = next((test[0] for test in tests if not copy.run(test, number)), "")
        name, begin, end = chosen[number - 1]
        text = texts[name]
        line, statement = line_of(text, begin), " ".join(text[begin:end].split())
        report.append({"file": name, "line": line, "statement": statement, "caught_by": by})
        print(f"{len(report):3} {'caught  ' if by else 'SURVIVED'} {time.monotonic() - start:4.0f} s  {name}:{line}: "
              f"{statement[:100]}{'  <- ' + by if by else ''}", flush=True)
        (options.work / "report.json").write_text(json.dumps(report, indent=1))

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(judge, range(1, len(chosen) + 1)))
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
EXPECTED = ["x = 1;", "if (a) return 1;", "g(i, ____);", "h({1, 2});", "y += x;", "z = 1;", "call([&] { z = 1; });",
            "break;", "three();", "if (b) { three(); } else four();", "return a;", "return x;"]


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
