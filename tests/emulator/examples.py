"""Compiles every example for every target and lets gacc-emu read the result: examples.py GACCC GACC_EMU FOLDER"""
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
from harness import SHORTER  # noqa: E402

gaccc, gacc_emu, folder = sys.argv[1:]
models = sorted(pathlib.Path(folder).glob("*.toml"))
assert models, f"no models in {folder}"
with tempfile.TemporaryDirectory() as place:
    for model in models:
        for target in ("sm_75", "sm_80", "sm_90"):
            out = f"{place}/{model.stem}.{target}.ptx"
            subprocess.run([gaccc, str(model), *SHORTER.get(model.stem, []), "--target", target, "-o", out], check=True)
            listed = subprocess.run([gacc_emu, out], check=True, capture_output=True, text=True).stdout
            kernels = [line for line in listed.splitlines() if not line.startswith(" ")]
            entries = sum(".visible .entry" in line for line in open(out) if not line.startswith("//"))
            assert len(kernels) == entries > 0, f"{out}: {len(kernels)} of {entries} kernels"
            print(f"{model.name} {target}: {len(kernels)} kernels")
