"""scripts/gpu-check from packing to its report, with the emulator in the place of the driver: gpu_check.py BUILD DRIVER"""
import json
import pathlib
import subprocess
import sys
import tempfile

build, driver = map(pathlib.Path, sys.argv[1:])
root = pathlib.Path(__file__).resolve().parents[2]
if not driver.exists() or build.resolve() != (root / "build").resolve():
    print("skipped: the pack is made of build/, and libgacc-emu.so must be there")
    sys.exit(0)
with tempfile.TemporaryDirectory() as folder:
    pack, out = pathlib.Path(folder, "pack"), pathlib.Path(folder, "out")
    subprocess.run([root / "scripts/gpu-check", "--pack", pack], check=True)
    manifest = json.loads((pack / "manifest.json").read_text())
    manifest["cases"] = {name: case for name, case in manifest["cases"].items() if name != "mnist_mlp"}  # others test it
    (pack / "manifest.json").write_text(json.dumps(manifest))
    assert {"gpt2_b4", "gpt2_b16", "gpt2_b64", "char_gpt"} <= manifest["benchmarks"].keys(), manifest["benchmarks"]
    # Without a GPU every contender is a line that says why it did not run.
    for name in ("gacc graph f16, char-GPT", "torch graph AMP, gpt2 B=16"):
        line = subprocess.run([sys.executable, pack / "gpu_gpt2.py", pack, "--contender", name], check=True, capture_output=True,
                              text=True).stdout
        assert "skipped" in json.loads(line), line
    dry = subprocess.run([pack / "gpu-check", "--dry"], check=True, capture_output=True, text=True).stdout
    assert "regression persistent" in dry and "benchmarks" in dry, dry
    done = subprocess.run([pack / "gpu-check", "--driver", driver, "--out", out], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, "a step failed"
    rows = {what: verdict for what, verdict, _ in json.loads((out / "results.json").read_text())}
    for what in ("residual_mlp.persistent.auto", "regression.graph.builtin", "regression.graph.builtin: arena",
                 "regression.graph: launches", "regression.persistent: launches"):
        assert rows.get(what) == "passed", f"{what}: {rows.get(what)}"
    assert "SKIPPED" in rows.values() and "FAILED" not in rows.values(), rows
    # Without any driver it says so and is no failure.
    bare = subprocess.run([pack / "gpu-check", "--driver", "/nowhere/libcuda.so.1", "--out", out], capture_output=True,
                          text=True)
    assert bare.returncode == 0 and "SKIPPED" in bare.stdout, bare.stdout + bare.stderr
