#!/usr/bin/env python3
"""registers.py [--bin BIN] [--bless] [MODEL ...]: registers, shared memory and spills of the examples' kernels, as
ptxas counts them, for three targets, in f32 and in f16. Prints the table; --bless writes it (or what it says of
MODEL ...) to tests/run/registers.txt, which tests/run/ptxas.py compares. Kernels of one name but for its number are
one line with the most of each; those that only fill buffers are left out.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests/run/registers.txt"
TARGETS = ("sm_75", "sm_80", "sm_90")
F16 = "precision.compute=f16"
ALSO_IN_F16 = ("mixer", "shakespeare_gpt", "gpt2_124m", "llama_hf", "mnist_cnn", "mnist_resnet")
EXAMPLES = ("mnist_mlp", "mnist_mlp_f16", "small_gradients_f16", "mnist_mlp_plain", "regression", "residual_mlp",
            "adam_micro", "schedules", "llama_lora", *ALSO_IN_F16)
MODELS = {name: (name, ()) for name in EXAMPLES} | {f"{name}_f16": (name, (F16,)) for name in ALSO_IN_F16}

COLD = re.compile(r"^((fill|random_uniform|random_normal)_)+\d+$")  # initial values
KERNEL = re.compile(r"Compiling entry function '(\S+)' for .*?\n.*?Function properties.*?\n\s*"
                    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
                    r".*?Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def find_ptxas():
    return os.environ.get("GACC_PTXAS") or shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")


def version(ptxas):
    found = re.search(r"release \S+, (V\S+)", subprocess.check_output([ptxas, "--version"], text=True))
    return f"ptxas {found[1] if found else 'unknown'}"


def read(log):
    """What `ptxas -v` wrote: {kernel without its number: cell}, and the spills that may not be."""
    most, spills = {}, []
    for name, _, stores, loads, registers, shared in (m.groups(default="0") for m in KERNEL.finditer(log)):
        spilled = int(stores) + int(loads)
        if spilled > 0:
            spills.append(f"{name}: {stores} bytes spilled, {loads} read back")
        if COLD.match(name):
            continue
        old = most.get(re.sub(r"_\d+$", "", name), (0, 0, 0))
        most[re.sub(r"_\d+$", "", name)] = tuple(max(pair) for pair in zip(old, (int(registers), int(shared), spilled)))
    cells = {name: str(registers) + (f"/{shared}" if shared else "") + (f"+{spilled}" if spilled else "")
             for name, (registers, shared, spilled) in most.items()}
    return cells, spills


def load():
    """The golden table: its first line, and {model: {kernel: [cell of each target]}}."""
    lines = TABLE.read_text().splitlines() if TABLE.exists() else ["none"]
    table = {}
    for line in lines[3:]:
        model, kernel, *cells = line.split()
        table.setdefault(model, {})[kernel] = cells
    return lines[0], table


def differences(model, target, cells):
    """Lines that say how a model's cells differ from the golden ones."""
    at = TARGETS.index(target)
    golden = {kernel: row[at] for kernel, row in load()[1].get(model, {}).items() if row[at] != "-"}
    return [f"{model} {target} {kernel}: {golden.get(kernel, 'not there')} in the table, "
            f"now {cells.get(kernel, 'not there')}"
            for kernel in sorted(golden.keys() | cells.keys()) if golden.get(kernel) != cells.get(kernel)]


def measure(bin, ptxas, name):
    model, settings = MODELS[name]
    rows, spills = {}, []
    with tempfile.TemporaryDirectory() as folder:
        artifact = pathlib.Path(folder, "step.ptx")
        for at, target in enumerate(TARGETS):
            words = [word for setting in settings for word in ("--set", setting)]
            compiler = [bin / "gaccc", ROOT / f"examples/{model}.toml", "--target", target, "-o", artifact, *words]
            subprocess.run(compiler, check=True)
            assembler = [ptxas, "-v", f"-arch={target}", artifact, "-o", "/dev/null"]
            log = subprocess.run(assembler, check=True, capture_output=True, text=True).stderr
            cells, found = read(log)
            if not cells:
                raise SystemExit(f"registers.py: ptxas -v has another form:\n{log[:500]}")
            spills += [f"{name} {target} {line}" for line in found]
            for kernel, cell in cells.items():
                rows.setdefault(kernel, ["-"] * len(TARGETS))[at] = cell
    return rows, spills


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--bless", action="store_true")
    parser.add_argument("models", nargs="*", help="mnist_mlp, gpt2_124m_f16, ...")
    arguments = parser.parse_args()
    ptxas = find_ptxas()
    if not ptxas:
        print("skipped: no ptxas on PATH, in /usr/local/cuda/bin or in GACC_PTXAS")
        return 77
    table, spills = load()[1] if arguments.models else {}, []
    for name in MODELS:
        if not arguments.models or name in arguments.models:
            table[name], found = measure(arguments.bin, ptxas, name)
            spills += found
    width = max(len(kernel) for rows in table.values() for kernel in rows)
    line = "{:<20} {:<" + str(width) + "} {:>12} {:>12} {:>12}"
    lines = [version(ptxas), "registers/bytes of shared memory+bytes spilled and read back",
             line.format("model", "kernel", *TARGETS)]
    for model in sorted(table, key=list(MODELS).index):
        lines += [line.format(model, kernel, *table[model][kernel]) for kernel in sorted(table[model])]
    text = "\n".join(lines) + "\n"
    print(text)
    if spills:
        print("\n".join(spills))
        return 1
    if arguments.bless:
        TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
