#!/usr/bin/env python3
"""ptxas.py EXAMPLE TARGET [KEY=VALUE ...]: NVIDIA's assembler accepts the artifact of the example, with settings, for that GPU,
and no kernel spills registers but those of attention's gradient. Skipped without ptxas."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import harness

SPILLS = re.compile(r"Function properties for (\S+)\n.*?, (\d+) bytes spill stores")
MAY_SPILL = re.compile("attention.*grad")  # heads of 64: docs/gpu.md, not reached
ALWAYS = {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"}  # the rest as far as the LLVM in use knows them


def main():
    name, target, *settings = sys.argv[1:]
    ptxas = os.environ.get("GACC_PTXAS") or shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")
    if not ptxas:
        harness.skip("no ptxas on PATH, in /usr/local/cuda/bin or in GACC_PTXAS")
    with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
        artifact = pathlib.Path(folder) / "step.ptx"
        done = harness.run("gaccc", harness.example(name), "--target", target, "-o", artifact, *(w for s in settings for w in ("--set", s)), code=(0, 1, 2))
        if done.returncode != 0:
            harness.expect(target not in ALWAYS and target in done.stderr and not artifact.exists(), done.stderr)
            harness.skip(f"this gaccc does not offer {target}")
        known = subprocess.run([ptxas, "--help"], capture_output=True, text=True).stdout
        if f"'{target}'" not in known:
            harness.skip(f"this ptxas does not know {target}")
        done = subprocess.run([ptxas, "-v", f"-arch={target}", artifact, "-o", "/dev/null"], capture_output=True, text=True)
        harness.expect(done.returncode == 0, f"ptxas -arch={target} refuses the artifact of {name}:\n{done.stdout}{done.stderr}")
        spills = [f"{kernel}: {stores} bytes" for kernel, stores in SPILLS.findall(done.stderr) if int(stores) and not MAY_SPILL.search(kernel)]
        harness.expect(not spills, f"{name} for {target} spills registers: {spills}")
        text = artifact.read_text()
        harness.expect(text.count(".entry ") > 0, "the artifact has no kernel")
        print(f"{name} for {target}: {text.count('.entry ')} kernels accepted")


main()
