"""README.md and docs/tutorials, typed as they are printed, in empty folders: with an installed tree, and with the
wheel."""
import itertools
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import harness
from harness import expect

README = (harness.ROOT / "README.md").read_text()
TUTORIALS = sorted((harness.ROOT / "docs/tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.M | re.S)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
VARIES = re.compile(r"in \d+\.\d\d s \([\d.]+ samples/s\)")


def installed(folder):
    tree = folder / "tree"
    done = subprocess.run(["cmake", "--install", harness.BIN.parent, "--prefix", tree, "--strip"], capture_output=True,
                          text=True)
    expect(done.returncode == 0, done.stderr)
    return tree


def environment(folder, programs, package):
    """Nothing of this machine's but its own programs, and the machine's cache of compiled steps."""
    cache = os.environ.get("XDG_CACHE_HOME", str(folder / "cache"))
    return {"PATH": f"{programs}:/usr/bin:/bin", "PYTHONPATH": str(package), "HOME": str(folder / "home"),
            "XDG_CACHE_HOME": cache}


def with_tree(folder):
    tree = installed(folder)
    return environment(folder, tree / "bin", tree / "share/gacc/python")


def with_wheel(folder):
    """As pip installs it, made from an installed tree: its files, and a command for each entry point."""
    command = [sys.executable, harness.ROOT / "scripts/wheel", "--installed", installed(folder), "-o", folder / "wheel"]
    done = subprocess.run(command, capture_output=True, text=True)
    expect(done.returncode == 0, done.stderr)
    size = pathlib.Path(done.stdout.strip()).stat().st_size
    expect(size < 100 << 20, f"the wheel has {size} bytes")
    site, programs = folder / "site", folder / "programs"
    with zipfile.ZipFile(next((folder / "wheel").glob("*.whl"))) as wheel:
        wheel.extractall(site)
    for program in (site / "gacc/tree/bin").iterdir():
        program.chmod(0o755)  # as pip does; zipfile does not
    programs.mkdir()
    for name, module, function in re.findall(r"^(\S+) = (\S+):(\S+)$",
                                             next(site.glob("*.dist-info/entry_points.txt")).read_text(), re.M):
        (programs / name).write_text(f"#!/usr/bin/python3\nfrom {module} import {function}\n{function}()\n")
        (programs / name).chmod(0o755)
    return environment(folder, programs, site)


def have_numpy():
    if harness.sanitized():
        harness.skip("a library with sanitizers does not load into a Python without them")
    if subprocess.run(["/usr/bin/python3", "-c", "import numpy"], capture_output=True).returncode != 0:
        harness.skip("the system's Python has no numpy (Debian package python3-numpy)")


def check_tutorials(surroundings, ranks=True):
    """A page that wants PyTorch is left out, and said, where neither the system's Python nor GACC_PYTHON has it."""
    surroundings |= {name: os.environ[name] for name in ("GACC_PYTHON",) if name in os.environ}
    for page in TUTORIALS:
        if not ranks and "--ranks" in page.read_text():
            continue
        done = subprocess.run(["/usr/bin/python3", harness.ROOT / "scripts/docs", "--check", "--installed", page],
                              env=surroundings,
                              capture_output=True, text=True)
        expect(done.returncode in (0, harness.SKIPPED), done.stdout + done.stderr)
        if done.returncode == harness.SKIPPED:
            print(f"{page.name} is left out: {done.stdout}")


def alike(shown, printed):
    """The same words; of a run the same numbers but for rounding, and without its times."""
    shown, printed = (VARIES.sub("", line) for line in (shown, printed))
    if not shown.startswith(("epoch", "eval")):
        return shown == printed
    near = lambda a, b: abs(a - b) <= 5e-3 * abs(a)
    ours, theirs = ([float(number.replace(",", "")) for number in NUMBER.findall(line)] for line in (shown, printed))
    return NUMBER.sub("#", shown) == NUMBER.sub("#", printed) and all(near(a, b) for a, b in zip(ours, theirs))


def expect_shown(block, printed):
    """Lines of the block are printed in their order; a line "…" stands for any number of them."""
    lines, at = printed.splitlines(), 0
    for part in re.split(r"^…\n", block, flags=re.M):
        wanted = part.splitlines()
        fits = lambda start: all(alike(a, b) for a,
                                 b in itertools.zip_longest(wanted, lines[start:start + len(wanted)], fillvalue=""))
        found = next((start for start in range(at, len(lines)) if fits(start)), None)
        expect(found is not None, f"shown:\n{part}\nprinted:\n{printed}")
        at = found + len(wanted)


def type_readme(folder, surroundings):
    """All blocks in their order: the model, commands and what they print, the Python, the error of a misspelt word."""
    desk, seen, printed = folder / "desk", [], ""
    desk.mkdir()

    def typed(*command, code=0):
        done = subprocess.run(command, cwd=desk, env=surroundings, capture_output=True, text=True, timeout=300)
        expect(done.returncode == code, f"{command[-1]}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    for language, text in BLOCK.findall(README):
        seen.append(language)
        if language == "toml":
            (desk / "model.toml").write_text(text)
        elif language:
            printed = typed(*(["/usr/bin/python3", "-c"] if language == "python"
                              else ["bash", "-euo", "pipefail", "-c"]), text)
        elif "error:" in text:
            model = (desk / "model.toml").read_text()
            (desk / "model.toml").write_text(model.replace("relu", "rleu"))
            expect_shown(text, typed("gaccc", "model.toml", code=1))
            (desk / "model.toml").write_text(model)
        elif printed:  # by the block before
            expect_shown(text, printed)
            printed = ""
    expect({"toml", "sh", "python", ""} <= set(seen), f"blocks found: {seen}")
    table = README[README.index("| promise |"):].split("\n\n")[0].splitlines()[2:]
    says = ("3 checks passed, 0 failed", "as planned", "3 checks passed, 0 failed", "", "",
            "every access kept to the plan")
    expect(len(table) == len(says), "each promise has its words")
    for row, words in zip(table, says):
        command = " && ".join(re.findall("`([^`]*)`", row.split("|")[2])).replace("SPEC", "synthetic:digits,limit=700")
        expect(words in typed("bash", "-euo", "pipefail", "-c", command), command)


def test_the_readme_with_an_installed_tree(folder):
    have_numpy()
    type_readme(folder, with_tree(folder))


def test_the_readme_and_tutorials_with_the_wheel(folder):
    """With nothing else of gacc's around; all of its programs start."""
    have_numpy()
    surroundings = with_wheel(folder)
    for program in (folder / "programs").iterdir():
        done = subprocess.run([program, "--version"], env=surroundings, capture_output=True, text=True)
        expect(done.returncode == 0, f"{program.name}: {done.stderr}")
    type_readme(folder, surroundings)
    shown = ["/usr/bin/python3", "-c", "import gacc; assert 'iframe' in gacc.compile('desk/model.toml')._repr_html_()"]
    done = subprocess.run(shown, cwd=folder, env=surroundings, capture_output=True, text=True)
    expect(done.returncode == 0, done.stderr)
    check_tutorials(surroundings, ranks=False)  # the wheel has no MPI


harness.main(globals())
