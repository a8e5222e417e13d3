#!/usr/bin/env python3
"""The rules of text in this repository: lines of at most 120 columns (but rows of tables, which cannot be broken),
sentences of at most 40 words, and no citation of a document that is not here. A comment of C++ begins with a verb or
a noun, not with Of, What, Who, Whether, Where, Which or How. A type of a header has a name of its own. What is from
before a rule stands in check_text.exceptions with its number (of types, or of a test's long lines), which may only
shrink. Names each place that breaks a rule, exit 1.

    check_text.py            check what git tracks
    check_text.py --wrap     wrap the long paragraphs of Markdown files first; nothing else is touched
"""
import pathlib
import re
import subprocess
import sys
import textwrap

COLUMNS, WORDS = 120, 40
WRAP_AT = 110
CODE = {".cpp", ".h", ".def", ".py", ".sh", ".cmake", ""}
# Written by programs, or read by them, not by people.
GENERATED = ("docs/ops.md", "docs/model.md", "docs/commands.md", "docs/tutorials/")
DATA = ("tests/golden/", "tests/fuzz/corpus/", "tests/parity/stored/")
ABSENT = re.compile(r"CONTRACT|[Tt]he contract\b|goals? G[0-9]|\.\./shared/(?!data|oracle)|\bissue \d+")
MARKER = re.compile(r"(<{7}|>{7}) ")
EXCEPTIONS = pathlib.Path(__file__).with_name("check_text.exceptions")
COMMENT = re.compile(r"\s*//")
NO_SUBJECT = re.compile(r"\s*//\s*(Of|What|Who|Whose|Whether|Where|Which|How)\b")
TYPE = re.compile(r"^(?:template\s*<[^;{]*>\s*)?(?:struct|class|enum class|union) (?:alignas\([^)]*\) )?(\w+)"
                  r"(?: final)?\s*(?::[^;{]*)?\{", re.M)
ITEM = re.compile(r"^(\s*)([-*]|\d+\.)\s+")


def blocks(text):
    """(line number, kind, lines) of Markdown: kinds are prose, table, code, other."""
    found, fence = [], False
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if bare.startswith("```"):
            kind, fence = "code", not fence
        elif fence:
            kind = "code"
        elif not bare:
            kind = "blank"
        elif line.startswith("    ") and (not found or found[-1][1] in ("blank", "code", "other")):
            # Indented text is code, but for the second paragraph of a list's item.
            last = next((b for b in reversed(found) if b[1] != "blank"), None)
            kind = "prose" if last and last[1] == "prose" and ITEM.match(last[2][0]) else "code"
        elif bare.startswith("|"):
            kind = "table"
        elif bare.startswith(("#", "<", "[![", "---")):
            kind = "other"
        else:
            kind = "prose"
        new = not found or found[-1][1] != kind or kind in ("blank", "other") or (kind == "prose" and ITEM.match(line))
        if new:
            found.append((number, kind, [line]))
        else:
            found[-1][2].append(line)
    return found


def wrapped(lines):
    """A paragraph, broken between words, of which a `code span` or a [link](x) is one."""
    match = ITEM.match(lines[0])
    first = match[0] if match else re.match(r"\s*", lines[0])[0]
    rest = " " * len(first)
    if len(lines) > 1 and match:
        rest = re.match(r"\s*", lines[1])[0]
    prose = " ".join(part.strip() for part in lines)[len(first.strip()):]
    prose = re.sub(r"`[^`]*`|!?\[[^\]]*\]\([^)]*\)", lambda span: span[0].replace(" ", "\0"), prose)
    out = textwrap.wrap(" ".join(prose.split()), WRAP_AT, initial_indent=first, subsequent_indent=rest,
                        break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in out]


def wrap(text):
    out = []
    for _, kind, lines in blocks(text):
        out += wrapped(lines) if kind == "prose" and any(len(line) > COLUMNS for line in lines) else lines
    return "\n".join(out)


def sentences(lines):
    prose = " ".join(line.strip() for line in lines)
    prose = re.sub(r"`[^`]*`", "`x`", ITEM.sub("", prose))
    prose = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose)
    return re.split(r"(?<=[.!?:])[\"')*]*\s+(?=[A-Z`*(\[\"0-9])", prose)


def faults(name, text):
    """(line, what is wrong) of one file."""
    all_lines, of_tests = text.split("\n"), name.startswith("tests/")
    for number, line in enumerate(all_lines, 1):
        if not of_tests and name != "scripts/check_text.py" and ABSENT.search(line):
            yield number, f"cites a document that is not in the repository: {line.strip()}"
        if MARKER.match(line):
            yield number, "is a mark of a merge that was not finished"
    if not of_tests:
        for number in without_subject(all_lines):
            yield number, f"begins without a verb or a noun: {all_lines[number - 1].strip()[:60]}"
    is_page = name.endswith(".md")
    for start, kind, lines in blocks(text) if is_page else [(1, "code", all_lines)]:
        for number, line in enumerate(lines, start):
            if len(line) > COLUMNS and kind != "table":
                yield number, f"has {len(line)} columns, more than {COLUMNS}"
        for sentence in sentences(lines) if kind == "prose" else []:
            if (words := len(sentence.split())) > WORDS:
                yield start, f"has a sentence of {words} words, more than {WORDS}: {sentence[:60]}..."


def without_subject(lines):
    """Line numbers of the comments that begin with a word of NO_SUBJECT."""
    return [number for number, line in enumerate(lines, 1)
            if NO_SUBJECT.match(line) and not (number > 1 and COMMENT.match(lines[number - 2]))]


def judged(headers, exceptions):
    """Messages on the headers {name: text}, beyond the exceptions {name of a type: count}."""
    homes = {}
    for name, text in headers.items():
        for type_name in TYPE.findall(text):
            homes.setdefault(type_name, set()).add(name)
    for type_name, files in homes.items():
        if len(files) > max(1, exceptions.get(type_name, 1)):
            yield f"{min(files)}: error: the type {type_name} has several homes: {', '.join(sorted(files))}"
    for name, count in exceptions.items():
        now = len(homes.get(name, ()))
        if now < count:
            what = f"make it {now}" if now > 1 else "remove the line"
            yield f"{EXCEPTIONS.name}: error: {name} {count}: there are fewer now; {what}"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True)
    if listed.returncode != 0:
        print("SKIPPED: no git repository here", file=sys.stderr)
        return 77
    count, headers = 0, {}
    exceptions = {name: int(number) for name, number in map(str.split, EXCEPTIONS.read_text().splitlines())}
    for name in listed.stdout.splitlines():
        path = root / name
        if name.startswith(GENERATED + DATA) or path.suffix not in CODE | {".md"} or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if sys.argv[1:] == ["--wrap"] and path.suffix == ".md" and (new := wrap(text)) != text:
            path.write_text(new)
            text = new
        if path.suffix == ".h" and not name.startswith("tests/"):
            headers[name] = text
        found, allowed = list(faults(name, text)), exceptions.pop(name, 0)
        if len(found) < allowed:
            print(f"{EXCEPTIONS.name}: error: {name} {allowed}: there are fewer now; make it {len(found)}")
            count += 1
        for number, what in found if len(found) > allowed else []:
            print(f"{name}:{number}: error: {what}")
            count += 1
    for message in judged(headers, exceptions):
        print(message)
        count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
