#!/usr/bin/env python3
"""ptxas.py EXAMPLE TARGET [KEY=VALUE ...]: the emulator and NVIDIA's assembler read the artifact of the example, with
settings, for that GPU. No kernel spills registers, and none takes more than its kind may (LIMITS); prints what each
takes. Skipped without ptxas."""
import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import harness

ALWAYS = {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"}  # the rest as far as the LLVM in use knows them
# The most registers of a thread, by the first pattern that a kernel's name has. A multiprocessor has 65,536 of them:
# with 128 it runs 512 threads at once.
LIMITS = (
    ("attention_grad", 255),   # as many as there are: keys, values and both sums of 16 or 32 rows
    ("attention", 255),        # likewise, for the second pass over values that are not finite
    ("_persistent", 216),      # one block of 256 threads: the largest of its kernels, and the tables
    ("gacc_gemm_f32", 168),    # 64 sums, and two buffers on their way
    ("gacc_gemm", 136),
    ("", 128),
)
KERNEL = re.compile(r"Compiling entry function '(\S+)' for .*?\n.*?Function properties.*?\n\s*"
                    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
                    r".*?Used (\d+) registers")


def emulate(artifact):
    """The emulator finds each kernel of the artifact."""
    emulator, context, module, function = ctypes.CDLL(harness.BIN / "libgacc-emu.so"), *(
        ctypes.c_void_p() for _ in range(3))
    for step in (lambda: emulator.cuInit(0), lambda: emulator.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                 lambda: emulator.cuCtxSetCurrent(context),
                 lambda: emulator.cuModuleLoadDataEx(ctypes.byref(module), artifact.read_bytes(), 0, None, None),
                 *(lambda name=name: emulator.cuModuleGetFunction(ctypes.byref(function), module, name)
                   for name in re.findall(rb"^\.visible \.entry (\w+)", artifact.read_bytes(), re.M))):
        harness.expect(step() == 0, f"the emulator does not read {artifact.name}")


def main():
    name, target, *settings = sys.argv[1:]
    ptxas = os.environ.get("GACC_PTXAS") or shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")
    with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
        artifact = pathlib.Path(folder) / "step.ptx"
        done = harness.run("gaccc", harness.example(name), "--target", target, "-o", artifact,
                           *harness.SHORTER.get(name, []), *(w for s in settings for w in ("--set", s)), code=(0, 1, 2))
        if done.returncode != 0:
            harness.expect(target not in ALWAYS and target in done.stderr and not artifact.exists(), done.stderr)
            harness.skip(f"this gaccc does not offer {target}")
        emulate(artifact)
        if not ptxas:
            harness.skip("no ptxas on PATH, in /usr/local/cuda/bin or in GACC_PTXAS")
        known = subprocess.run([ptxas, "--help"], capture_output=True, text=True).stdout
        if f"'{target}'" not in known:
            harness.skip(f"this ptxas does not know {target}")
        done = subprocess.run([ptxas, "-v", f"-arch={target}", artifact, "-o", "/dev/null"], capture_output=True,
                              text=True)
        harness.expect(done.returncode == 0,
                       f"ptxas -arch={target} refuses the artifact of {name}:\n{done.stdout}{done.stderr}")
        kernels = KERNEL.findall(done.stderr)
        harness.expect(len(kernels) == artifact.read_text().count(".entry ") > 0,
                       f"ptxas -v has another form:\n{done.stderr[:500]}")
        for kernel, _, stores, loads, registers in kernels:
            print(f"{registers:>4}  {kernel}")
            # Causal attention's second pass (values that are not finite) may keep two words out of registers there.
            spill = 32 if target in ("sm_80", "sm_86",
                                     "sm_89") and "attention" in kernel and "grad" not in kernel else 0
            harness.expect(int(stores) <= spill and int(loads) <= spill,
                           f"{kernel} spills: {stores} bytes are stored, {loads} read back")
            most = next(most for pattern, most in LIMITS if pattern in kernel)
            harness.expect(int(registers) <= most, f"{kernel} takes {registers} registers of {most}")


main()
