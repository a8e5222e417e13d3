"""scripts/gpu-check from packing to its report, with the emulator in the place of the driver: gpu_check.py BUILD
DRIVER"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

build, emulator = map(pathlib.Path, sys.argv[1:])
root = pathlib.Path(__file__).resolve().parents[2]
SANITIZER = """#!/bin/sh
while [ "$1" != --error-exitcode ]; do shift; done
shift 2
"$@" || exit
echo "========= ERROR SUMMARY: {} errors"
"""


def call(pack, out, *options, driver=emulator, code=0, env=None):
    """A call's rows by what they are about, and its output."""
    done = subprocess.run([pack / "gpu-check", "--driver", driver, "--out", out, *options], capture_output=True,
                          text=True, env=env)
    assert done.returncode == code, f"exit status {done.returncode}:\n{done.stdout[-6000:]}{done.stderr}"
    assert sorted(p.name for p in out.iterdir()) == ["report.md",
                                                     "results.tar.gz"], "a GPU machine gives few files back"
    return {f"{row['stage']}: {row['what']}": row for row in contents(out)["rows"]}, done.stdout


def contents(out):
    with tarfile.open(out / "results.tar.gz") as archive:
        names = archive.getnames()
        assert "report.md" in names and len(set(names)) == len(names), names
        assert archive.extractfile("report.md").read() == (out / "report.md").read_bytes()
        return json.load(archive.extractfile("results.json")) | {"files": names}


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def whole(folder, pack):
    """Everything that a GPU would be asked, in one call."""
    out, sanitizer = folder / "out", program(folder / "sanitizer", SANITIZER.format(0))
    dry = subprocess.run([pack / "gpu-check", "--dry", "--out", out], check=True, capture_output=True, text=True).stdout
    extra = folder / "extra"
    extra.mkdir()
    with tarfile.open(pack / "work.tar") as archive:
        (extra / "variant.ptx").write_bytes(archive.extractfile("mlp_f16.graph.sm_90a.ptx").read())
    rows, text = call(pack, out, "--only", "machine,extra,probes,parity,sanitize,profile,mlp,gpt2:b4", "--sanitizer",
                      sanitizer, "--extra", extra)
    verdicts = {what: row["verdict"] for what, row in rows.items()}
    assert "FAILED" not in verdicts.values(), verdicts
    for what in ("machine: cuda_gpu_test", "machine: the packed gaccc", "parity: regression.f32 graph builtin",
                 "parity: mlp.bf16 persistent builtin", "parity: mlp.bf16: graph and one kernel",
                 "parity: cnn.f16 graph cublas",
                 "parity: k1.f16 as k4.f16", "parity: gpt_tiny.f16 graph: launches",
                 "parity: gpt_tiny.f16 persistent: launches", "parity: lora_q4_0.bf16 graph builtin",
                 "parity: bits1.f16 as bits4.f16", "parity: gpt_tiny.f16: a text",
                 *(f"sanitize: {tool} mlp.bf16 persistent"
                   for tool in ("memcheck", "racecheck", "synccheck", "initcheck"))):
        assert verdicts.get(what) == "passed", f"{what}: {verdicts.get(what)}"
    for what in ("probes: all", "profile: products", "profile: gpt2_b16 cublas", "extra: variant speed",
                 "extra: variant profile", "mlp: mlp_f16 persistent builtin zipf",
                 "mlp: mlp_f16 graph host alone", "mlp: mlp_f16 graph cublas, tuned zipf",
                 "gpt2:b4: gpt2_b4 graph cublas zipf", "gpt2:b4: gpt2_b4 graph builtin uniform"):
        assert verdicts.get(what) == "done", f"{what}: {verdicts.get(what)}"
    assert "the emulator's bits" in rows["parity: regression.f32 graph builtin"]["detail"], rows[
        "parity: regression.f32 graph builtin"]
    # The report says what ran, and with which products.
    assert "cuBLASLt" in rows["parity: cnn.f16 graph cublas"]["detail"], rows["parity: cnn.f16 graph cublas"]
    timed = rows["mlp: mlp_f16 persistent builtin zipf"]["detail"]
    assert "built-in" in timed and "us a sample; estimate" in timed, timed
    for line in dry.splitlines():
        stage = line.split(": ")[0]
        assert stage not in ("parity", "sanitize", "profile") or line in rows, f"--dry says {line}, the call did not"
    # The table comes last, and fits what a caller keeps of the output.
    table = text.rpartition("=" * 80)[2]
    assert len(table) < 12000 and "gpt2_b4 graph cublas zipf" in table and "0 failed" in table, table
    found = contents(out)
    tables = {title: lines for title, lines in found["sections"]}
    assert any(line.startswith("product ") for line in tables["launches of char, cuBLASLt 0"]), tables.keys()
    measured = tables["launches of char, cuBLASLt 0"]
    assert "estimate" in measured[1] and measured[-1].startswith("sum "), measured
    assert all(float(line[44:].split()[1]) > 0 for line in measured[2:]), measured
    assert tables["launches of variant, cuBLASLt 0"][1].split() == ["launch", "n", "us", "share"], tables.keys()
    assert any("barrier" in line for line in tables["probes"]) and any("DRAM" in line for line in tables["probes"])
    assert "gpt_tiny.f16.graph.builtin.log" in found["files"] and "mlp_f16.algorithms" in found["files"], found["files"]


def nothing_misleads(folder, pack):
    """A wrong result is FAILED, and the exit status says so."""
    manifest = json.loads((pack / "manifest.json").read_text())
    few = {**manifest, "cases": {"regression.f32": manifest["cases"]["regression.f32"]}, "counted": [],
           "sanitized": [["regression", "f32", "graph"]]}
    other, out = folder / "other", folder / "few"
    other.mkdir()
    for path in pack.iterdir():
        if path.name != "manifest.json":
            (other / path.name).symlink_to(path)
    (other / "gpu-check").unlink()
    shutil.copy2(pack / "gpu-check", other)
    (other / "gpu_check").unlink()
    shutil.copytree(pack / "gpu_check", other / "gpu_check")

    def altered(**changes):
        (other / "manifest.json").write_text(json.dumps(few | changes))

    case = few["cases"]["regression.f32"]
    altered(cases={"regression.f32": case | {"bounds": {name: bound / 1e6 for name, bound in case["bounds"].items()}}})
    rows, text = call(other, out, "--only", "parity", code=1)
    assert rows["parity: regression.f32 graph builtin"]["verdict"] == "FAILED", rows
    assert "FAILED  parity: regression.f32 graph builtin" in text.rpartition("=" * 80)[2], text
    altered(cases={"regression.f32": case | {"bits": "0"}})
    rows, _ = call(other, out, "--only", "parity", code=1)
    assert "OTHER BITS than the emulator's" in rows["parity: regression.f32 graph builtin"]["detail"], rows
    altered()
    rows, _ = call(other, out, "--only", "sanitize", "--sanitizer", program(folder / "bad", SANITIZER.format(2)),
                   code=1)
    assert rows["sanitize: memcheck regression.f32 graph"]["verdict"] == "FAILED", rows
    # A cuBLAS that is installed and does not work.
    broken = folder / "broken"
    broken.mkdir()
    (broken / "libcublasLt.so.13").write_text("no library")
    shutil.copy2(emulator, folder / "libcuda.so.1")  # as any driver: cuBLAS is looked for, not the emulator's
    rows, _ = call(other, out, "--only", "machine", driver=folder / "libcuda.so.1", code=1,
                   env=os.environ | {"LD_LIBRARY_PATH": str(broken)})
    assert rows["machine: cuBLASLt"]["verdict"] == "FAILED" and rows["machine: cuda_gpu_test"][
        "verdict"] == "passed", rows
    # No time: nothing is started, and the report says what was not.
    rows, _ = call(other, out, "--only", "parity,mlp", "--seconds", "0.1")
    assert {row["verdict"] for row in rows.values()} <= {"SKIPPED"}, rows
    # No driver: said, and no failure.
    rows, _ = call(other, out, driver="/nowhere/libcuda.so.1")
    assert [row["verdict"] for row in rows.values()] == ["SKIPPED"], rows
    # Killed: what it had is there.
    process = subprocess.Popen([other / "gpu-check", "--driver", emulator, "--out", out, "--only", "parity,gpt2:b4"],
                               stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    rest = process.communicate()[0]
    assert process.returncode == 143 and line.startswith("passed") and "interrupted" in rest, line + rest
    assert {row["verdict"] for row in contents(out)["rows"]} <= {"passed", "SKIPPED"}, contents(out)["rows"]
    text = (pack / "bin/cuda_gpu_test").read_bytes()
    assert b"tiny.ptx" not in text, "cuda_gpu_test wants a file of the machine that built it"


def costs_are_the_plan_s(folder, pack):
    """Each launch has gaccc's own figures, FLOPs add up to what the plan says, and a profile is joined with its
    estimate."""
    sys.path.insert(0, str(root / "scripts"))
    from gpu_check import launch_costs, packing, stages
    runs = [stages.runs_on(*one) for one in (("sm_80", 90), ("sm_90a", 90), ("sm_80", 75), ("sm_90a", 100))]
    assert runs == [True, True, False, False], runs
    manifest = json.loads((pack / "manifest.json").read_text())
    for name in ("mlp_f16", "char"):
        entry = manifest["benchmarks"][name]
        costs = entry["costs"]
        assert sum(cost["flops"]
                   for cost in costs) == entry["artifacts"]["sm_90a"]["graph"]["flops"], f"{name}: {costs}"
        assert all(cost["bytes"] > 0 and cost["seconds"] > 0 for cost in costs), costs
        # The kernel behind a product that does it takes no time of its own.
        assert any(cost["builtin_seconds"] == 0 for cost in costs), costs
    # A plan of another step is not taken for this one's.
    kernels = [{"program": "step", **cost} for cost in costs]
    launches = [None if cost["name"].startswith("product ") else cost["name"] for cost in costs]
    assert packing.launch_costs(launches, {"kernels": kernels}) == costs
    assert packing.launch_costs(launches, {"kernels": kernels[1:]}) is None
    names = [cost["name"] for cost in costs]
    at = next(i for i, name in enumerate(names) if not name.startswith("product "))
    one = {"name": names[at], "program": "step", "launch": at, "microseconds": 5.0}
    costs[at] |= {"bytes": 3e6, "flops": 1, "seconds": 2e-6, "builtin_seconds": 4e-6}
    for engine, estimate, factor in (("cublas", "2.0", "2.50x"), ("builtin", "4.0", "1.25x")):
        lines, total, lost, missing = launch_costs.table({"kernels": [one]}, costs, 3e12, 7e14, engine)
        assert lines[0].split()[2:5] == ["us", "estimate", "off"] and (total, lost, missing) == (5, 4, ""), lines
        assert lines[1].split()[2:5] == ["5.0", estimate,
                                         factor] and lines[2].split()[:5] == [
                                             "sum", "1", "5.0", estimate, factor], lines
    assert "is other" in launch_costs.table({"kernels": [one | {"name": "other"}]}, costs, 3e12, 7e14, "cublas")[3]


if not emulator.exists() or build.resolve() != (root / "build").resolve():
    print("skipped: the pack is made of build/, and libgacc-emu.so must be there")
    sys.exit(0)
with tempfile.TemporaryDirectory() as name:
    temporary, pack_folder = pathlib.Path(name), pathlib.Path(name, "pack")
    begin = time.time()
    subprocess.run([root / "scripts/gpu-check", "--pack", pack_folder, "--small"], check=True)
    print(f"packed in {time.time() - begin:.0f} s")
    costs_are_the_plan_s(temporary, pack_folder)
    whole(temporary, pack_folder)
    print(f"run after {time.time() - begin:.0f} s")
    nothing_misleads(temporary, pack_folder)
    print(f"done after {time.time() - begin:.0f} s")
