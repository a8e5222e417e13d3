"""Man pages and completion, made from the programs' options: complete, and as their readers want them."""
import gzip
import re
import shutil
import subprocess
import sys

import harness
from harness import expect, run

sys.path.insert(0, str(harness.ROOT / "scripts"))
import commands  # noqa: E402


def pages(folder):
    command = [sys.executable, harness.ROOT / "scripts/commands.py", "--bin", harness.BIN, "--out", folder]
    subprocess.run(command, check=True)
    return folder


def man_page(path):
    return gzip.decompress(path.read_bytes()).decode()


def helps():
    """Each program, or program and subcommand, with the options that --help shows."""
    for program in commands.PROGRAMS:
        text = run(program, "--help").stdout
        names = [[program]] + [[program, name] for name in re.findall(r"^  (\w+) ", text.partition("ommands:")[2],
                                                                      re.M)]
        for command in names:
            text = run(*command, "--help").stdout
            shown = re.findall(r"^  (-\S+)", text, re.M)
            yield command, [name for names in shown for name in names.split(",")]


def test_every_option_is_everywhere(folder):
    pages(folder)
    page = (harness.ROOT / "docs/commands.md").read_text()
    seen = 0
    for command, options in helps():
        program = command[0]
        section = re.split(r"^###? ", page.partition(f"## {' '.join(command)}\n")[2], maxsplit=1, flags=re.M)[0]
        texts = {"docs/commands.md": section, "the man page": re.sub(r"\\f.", "",
                                                                     man_page(folder / f"man/{program}.1.gz")).replace("\\-", "-"),
                 "bash": (folder / f"bash/{program}").read_text(), "zsh": (folder / f"zsh/_{program}").read_text()}
        for option in options:
            for where, text in texts.items():
                expect(re.search(rf"(?<![\w-]){option}(?![\w-])", text), f"{command}: {option} is not in {where}")
            seen += 1
    expect(seen > 80, f"--help showed {seen} options")


def test_man_pages_are_sound(folder):
    if not shutil.which("groff"):
        harness.skip("no groff here")
    for page in sorted(pages(folder).glob("man/*.1.gz")):
        done = subprocess.run(["groff", "-ww", "-man", "-Tutf8"], input=man_page(page), capture_output=True, text=True)
        expect(done.returncode == 0 and not done.stderr, f"{page.name}: {done.stderr}")
        for title in ("NAME", "SYNOPSIS", "OPTIONS", "EXAMPLES", "EXIT STATUS", "SEE ALSO"):
            expect(f".SH {title}\n" in man_page(page), f"{page.name} lacks {title}")


def complete(folder, *words):
    """Returns what bash offers for the last word."""
    program = words[0]
    script = (
        f'compopt() {{ echo "compopt $*"; }}; source {folder}/bash/{program}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - '
        f'1)); '
              f'_{program.replace("-", "_")}; printf "%s\\n" "${{COMPREPLY[@]}}"')
    return subprocess.run(["bash", "-c", script, "bash", *words], check=True, capture_output=True,
                          text=True).stdout.split("\n")


def test_bash_completes(folder):
    pages(folder)
    for words, offers in (
            (("gaccc", "--su"), ["--summary"]), (("gaccc", "--emit", "l"), ["llvm"]),
            (("gaccc", "--emit", "=", "gr"), ["graph"]),
            (("gaccc", "--emit", "="), ["ptx", "ir", "llvm", "graph", "svg", "toml"]),
            (("gaccc", "x"), ["compopt -o default"]),
            (("gaccc", "--stop-after", "auto"), ["autodiff"]), (("gaccc", "--print-after", "al"), ["all"]),
            (("gaccc", "--set", "train.acc"), ["compopt -o nospace", "train.accumulate="]),
            (("gaccc", "--set", "optimizer.weight"), ["compopt -o nospace", "optimizer.weight_decay="]),
            (("gaccc", "--target", "sm_9"), ["sm_90", "sm_90a"]),
            (("gacc-exec", "--best", ""), ["loss", "accuracy", "perplexity", "f1", "auc",
                                             "balanced_accuracy", "mae", "rmse", "r2"]),
            (("gacc-exec", "--device", "c"), ["cpu", "cuda"]),
            (("gacc-exec", "--checkpoint", ""), ["compopt -o dirnames"]),
            (("gacc-exec", "--data", "x"), ["compopt -o default -o nospace"]),
            (("gacc-exec", "--eval", "mn"), ["compopt -o default -o nospace", "mnist:"]),
            (("gacc-plan", "o"), ["offsets"]), (("gacc-plan", "offsets", "--c"), ["--capacity"])):
        found = [each for each in complete(folder, *words) if each]
        expect(found == offers, f"{words}: {found}, expected {offers}")


def test_zsh_reads_its_files(folder):
    pages(folder)
    if not shutil.which("zsh"):
        harness.skip("no zsh here")
    for file in sorted(folder.glob("zsh/_*")):
        done = subprocess.run(["zsh", "-n", file], capture_output=True, text=True)
        expect(done.returncode == 0 and not done.stderr, f"{file.name}: {done.stderr}")


def test_every_printed_command_has_options_that_exist(folder):
    """On all pages, in blocks and indented ones: an option that was renamed or left is not typed in vain."""
    known = {command[0]: set() for command, _ in helps()}
    for command, options in helps():
        known[command[0]] |= {*options, "--help", "--version"}
    seen = 0
    for page in [harness.ROOT / "README.md", *sorted((harness.ROOT / "docs").rglob("*.md"))]:
        text = re.sub(r"\\\n", " ", page.read_text())
        for program, rest in re.findall(r"(?m)(?:^(?: {4}|\$ |)|`)(gaccc|gacc-exec|gacc-opt|gacc-plan) ([^`\n]*)",
                                        text):
            for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", re.split(r"  |[|;&#>]", rest)[0]):
                expect(option in known[program], f"{page.name}: {program} has no {option}: {rest}")
                seen += 1
    expect(seen > 100, f"{seen} options were looked at")


harness.main(globals())
