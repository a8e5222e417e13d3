#!/usr/bin/env python3
"""ptxas.py EXAMPLE TARGET: NVIDIA's assembler accepts the artifact of the example for that GPU. Skipped without ptxas."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import harness

ALWAYS = {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"}  # the rest as far as the LLVM in use knows them


def main():
    name, target = sys.argv[1:]
    ptxas = os.environ.get("GACC_PTXAS") or shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")
    if not ptxas:
        harness.skip("no ptxas on PATH, in /usr/local/cuda/bin or in GACC_PTXAS")
    with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
        artifact = pathlib.Path(folder) / "step.ptx"
        done = harness.run("gaccc", harness.example(name), "--target", target, "-o", artifact, code=(0, 1, 2))
        if done.returncode != 0:
            harness.expect(target not in ALWAYS and target in done.stderr and not artifact.exists(), done.stderr)
            harness.skip(f"this gaccc does not offer {target}")
        known = subprocess.run([ptxas, "--help"], capture_output=True, text=True).stdout
        if f"'{target}'" not in known:
            harness.skip(f"this ptxas does not know {target}")
        done = subprocess.run([ptxas, f"-arch={target}", artifact, "-o", "/dev/null"], capture_output=True, text=True)
        harness.expect(done.returncode == 0, f"ptxas -arch={target} refuses the artifact of {name}:\n{done.stdout}{done.stderr}")
        text = artifact.read_text()
        harness.expect(text.count(".entry ") > 0, "the artifact has no kernel")
        print(f"{name} for {target}: {text.count('.entry ')} kernels accepted")


main()
