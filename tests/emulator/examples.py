"""Compiles every example for every target and lets the emulator load the result: examples.py GACCC DRIVER FOLDER"""
import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
from harness import SHORTER  # noqa: E402

gaccc, driver, folder = sys.argv[1:]
models = sorted(pathlib.Path(folder).glob("*.toml"))
assert models, f"no models in {folder}"
emulator, module, context, function = ctypes.CDLL(driver), *(ctypes.c_void_p() for _ in range(3))
assert emulator.cuInit(0) == emulator.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert emulator.cuCtxSetCurrent(context) == 0
with tempfile.TemporaryDirectory() as place:
    for model in models:
        for target in ("sm_75", "sm_80", "sm_90"):
            out = pathlib.Path(place, f"{model.stem}.{target}.ptx")
            subprocess.run([gaccc, str(model), *SHORTER.get(model.stem, []), "--target", target, "-o", out], check=True)
            ptx = out.read_bytes()
            assert emulator.cuModuleLoadDataEx(ctypes.byref(module), ptx, 0, None, None) == 0, f"{out} is not read"
            entries = re.findall(rb"^\.visible \.entry (\w+)", ptx, re.M)
            for name in entries:
                assert emulator.cuModuleGetFunction(ctypes.byref(function), module, name) == 0, f"{out}: {name}"
            assert entries, f"{out}: no kernels"
            emulator.cuModuleUnload(module)
            print(f"{model.name} {target}: {len(entries)} kernels")
