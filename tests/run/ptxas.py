#!/usr/bin/env python3
"""ptxas.py EXAMPLE TARGET [KEY=VALUE ...]: NVIDIA's assembler accepts the artifact of the example, with settings, for that GPU,
no kernel spills registers, and registers are those of registers.txt. Skipped without ptxas."""
import pathlib
import subprocess
import sys
import tempfile

import harness

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import registers

ALWAYS = {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"}  # the rest as far as the LLVM in use knows them


def main():
    name, target, *settings = sys.argv[1:]
    ptxas = registers.find_ptxas()
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
        cells, spills = registers.read(done.stderr)
        harness.expect(cells, f"ptxas -v has another form:\n{done.stderr[:500]}")
        harness.expect(not spills, f"{name} for {target} spills registers: {spills}")
        made_with = registers.load()[0]
        model = f"{name}_f16" if registers.F16 in settings else name
        if target in registers.TARGETS and made_with == registers.version(ptxas):
            differences = registers.differences(model, target, cells)
            harness.expect(not differences, "\n".join(differences) + f"\n`scripts/registers.py --bless {model}` writes the table anew; say in the commit why it changed")
        elif target in registers.TARGETS:
            print(f"registers.txt was made with {made_with}, so registers are not compared")
        text = artifact.read_text()
        harness.expect(text.count(".entry ") > 0, "the artifact has no kernel")
        print(f"{name} for {target}: {text.count('.entry ')} kernels accepted")


main()
