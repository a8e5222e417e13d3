#!/usr/bin/env python3
"""registers.py --bin BIN [--bless]: registers and spills of the hot kernels, as ptxas counts them, against the golden table
tests/run/registers.txt. Hot are the matrix products, merged kernels and the largest row kernels; every other kernel must
not spill either. Skipped aloud without ptxas; the table is compared only with the ptxas that made it, spills with any.
"""
import argparse
import difflib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests/run/registers.txt"
MODELS, TARGETS = ("mnist_mlp", "residual_mlp"), ("sm_75", "sm_80", "sm_90")
HOT = re.compile(r"^(gacc_gemm_|update_|step_persistent)")
KERNEL = re.compile(r"Compiling entry function '(\S+)' for .*?\n.*?Function properties.*?\n\s*(\d+) bytes stack frame, "
                    r"(\d+) bytes spill stores, (\d+) bytes spill loads\n.*?Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def measure(bin, ptxas):
    rows, spills = [], []
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            for target in TARGETS:
                artifact = pathlib.Path(folder, "step.ptx")
                subprocess.run([bin / "gaccc", ROOT / f"examples/{model}.toml", "--target", target, "-o", artifact], check=True)
                text = subprocess.run([ptxas, "-v", f"-arch={target}", artifact, "-o", "/dev/null"], check=True,
                                      capture_output=True, text=True).stderr
                found = sorted(m.groups(default="0") for m in KERNEL.finditer(text))
                if not found:
                    raise SystemExit(f"registers.py: ptxas -v has another form:\n{text[:500]}")
                for name, stack, stores, loads, registers, shared in found:
                    if int(stores) or int(loads):
                        spills.append(f"{model} {target} {name}: {stores} bytes spilled, {loads} read back")
                    if HOT.match(name):
                        rows.append(f"{model:<13} {target:<6} {name:<40} {registers:>4} {int(stores) + int(loads):>6} {shared:>7}")
    return rows, spills


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--bless", action="store_true")
    arguments = parser.parse_args()
    ptxas = os.environ.get("GACC_PTXAS") or shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")
    if not ptxas:
        print("skipped: no ptxas on PATH, in /usr/local/cuda/bin or in GACC_PTXAS")
        return 77
    version = re.search(r"release \S+, (V\S+)", subprocess.run([ptxas, "--version"], capture_output=True, text=True).stdout)
    rows, spills = measure(arguments.bin, ptxas)
    head = f"ptxas {version[1] if version else 'unknown'}"
    text = "\n".join([head, f"{'model':<13} {'target':<6} {'kernel':<40} regs  spill  shared", *rows]) + "\n"
    if spills:
        print("\n".join(spills))
        return 1
    if arguments.bless:
        TABLE.write_text(text)
        return 0
    expected = TABLE.read_text()
    if expected.splitlines()[0] != head:
        print(f"{text}no kernel spills; the table was made with another assembler ({expected.splitlines()[0]}), so it is not compared")
        return 0
    if text != expected:
        sys.stdout.writelines(difflib.unified_diff(expected.splitlines(True), text.splitlines(True), "registers.txt", "now"))
        print("tools/registers.py --bless writes the table anew; say in the commit why it changed")
        return 1
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
