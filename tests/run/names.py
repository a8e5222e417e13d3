"""Names, comments and paths of any characters: the artifact is ASCII, which is all that ptxas takes, and whoever
shows a name shows it as the user wrote it."""
import array
import json
import os
import shutil
import subprocess

import harness
from harness import expect, run

TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")
MODEL = harness.classifier("café", [6], 3, r"""
# für Zürich, 日本 and \xc3\xa9; a backslash that ends a line joins no other to it: \
[[layers]]
type = "linear"
name = "größe"
features = 5
activation = "relu"
[[layers]]
type = "linear"
name = 'a\x41"ж'
features = 3
""")
LAYERS = ("größe", 'a\\x41"ж')


def make(folder, *words):
    """The model in a folder `ö`, compiled as the user would."""
    (folder / "ö").mkdir(exist_ok=True)
    (folder / "ö/größe.toml").write_text(MODEL)
    run("gaccc", "ö/größe.toml", "-o", "café.ptx", *words, cwd=folder)
    return folder / "café.ptx"


def data(folder):
    harness.write_npy(folder / "é.npy", array.array("f", [i % 7 / 7 for i in range(96)]), [16, 6])
    harness.write_npy(folder / "y.npy", array.array("i", [i % 3 for i in range(16)]), [16])
    return "npy:x=é.npy,y=y.npy"


def test_artifacts_are_ascii(folder):
    ptxas = shutil.which("ptxas", path="/usr/local/cuda/bin" + os.pathsep + os.environ["PATH"])
    for words in [("--target", target) for target in TARGETS] + [("--set", "precision.compute=f16"),
                                                                 ("--set", "launch.mode=persistent")]:
        artifact = make(folder, *words)
        wrong = sorted(set(artifact.read_bytes()) - set(b"\n") - set(range(0x20, 0x7f)))
        expect(wrong in ([], [9]), f"{words}: bytes {wrong}")  # LLVM indents by tabs
        if ptxas:
            target = words[1] if words[0] == "--target" else "sm_80"
            done = subprocess.run([ptxas, f"-arch={target}", artifact, "-o", os.devnull], capture_output=True,
                                  text=True)
            expect(done.returncode == 0, f"ptxas refuses {words}: {done.stdout}{done.stderr}")
    if not ptxas:
        harness.skip("no ptxas; the artifacts are ASCII")


def test_names_show_as_they_were_written(folder):
    artifact, spec = make(folder), data(folder)
    ir = run("gaccc", "ö/größe.toml", "--emit", "ir", "-o", "-", cwd=folder).stdout
    expect(ir.startswith('module @"café" source("ö/größe.toml") '), ir[:80])
    expect('param @"größe.weight"' in ir and r'param @"a\\x41\"ж.weight"' in ir, ir)
    expect(run("gacc-opt", "-", "--passes", "", stdin=None, input=ir.encode()).stdout == ir,
           "gacc-opt writes other names")
    plan = run("gaccc", "ö/größe.toml", "--plan", "--report", "page.html", cwd=folder).stdout
    expect("plan of café for" in plan and "größe" in plan, plan)
    expect(json.loads(run("gaccc", "ö/größe.toml", "--plan", "--json", cwd=folder).stdout)["model"] == "café",
           "--plan --json")
    page = (folder / "page.html").read_text()
    expect("café" in page and "größe" in page, "the report")
    for device in ("cpu", "emulate"):
        words = ("--data", spec, "--device", device, "--log", "ü.jsonl", "--save", "w.safetensors", "--profile",
                 "p.json")
        run("gacc-exec", artifact, *words, "--updates", 2, "--checkpoint", "Größe", cwd=folder)
        start = (folder / "ü.jsonl").read_text().splitlines()[0]
        expect('"model":"café"' in start.replace(": ", ":"), start)
        tensors = harness.read_safetensors(folder / "w.safetensors")
        expect(sorted(tensors) == sorted(f"{layer}.{what}" for layer in LAYERS for what in ("bias", "weight")),
               f"{list(tensors)}")
        run("gacc-exec", artifact, *words, "--updates", 3, "--checkpoint", "Größe", "--resume", cwd=folder)
    table = run("gacc-exec", artifact, "--data", spec, "--verify", cwd=folder).stdout
    expect(all(f"{layer}.weight" in table for layer in LAYERS), table)
    other = (folder / "w.safetensors").read_bytes().replace("größe".encode(), "grösse".encode())  # as many bytes
    (folder / "other.safetensors").write_bytes(other)
    harness.one_error(run("gacc-exec", artifact, "--data", spec, "--load", "other.safetensors", cwd=folder, code=1),
                      "größe.weight", "grösse.weight")


def test_a_path_may_be_no_text(folder):
    """A file whose name is no UTF-8, and what --set says that is none."""
    model = os.fsdecode(b"\xff\\x41.toml")
    (folder / model).write_text(MODEL)
    run("gaccc", model, "-o", "m.ptx", cwd=folder)  # which does not depend on it
    run("gacc-exec", "m.ptx", "--data", data(folder), "--verify", cwd=folder)
    harness.one_error(run("gaccc", model, "--set", os.fsdecode(b"model.name=\xff"), cwd=folder, code=1), "is not TOML")
    named = run("gaccc", model, "--set", "model.name=ж", "--emit", "ir", "-o", "-", cwd=folder).stdout
    expect(named.startswith('module @"ж" '), named[:40])


harness.main(globals())
