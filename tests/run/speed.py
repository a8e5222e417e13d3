"""Start-up times and sizes that the project promises, and who links what. Minima of several runs; times need a release build."""
import os
import shutil
import subprocess
import time

import harness
from harness import expect, run


def release_only():
    cache = harness.BIN.parent / "CMakeCache.txt"
    text = cache.read_text() if cache.exists() else ""
    if "CMAKE_BUILD_TYPE:STRING=Release" not in text or "GACC_SANITIZE:BOOL=ON" in text:
        harness.skip("times and sizes are promised for release builds")


def fastest(repeats, *command, **options):
    """The least wall time of `repeats` runs: what the command takes when nothing else disturbs it."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run(*command, **options)
        best = min(best, time.perf_counter() - start)
    return best


def test_version_is_immediate(folder):
    release_only()
    seconds = fastest(30, "gacc-exec", "--version")
    print(f"gacc-exec --version: {1000 * seconds:.1f} ms")
    expect(seconds < 0.010, f"gacc-exec --version takes {1000 * seconds:.1f} ms, promised are 10")


def test_compile_time(folder):
    release_only()
    seconds = fastest(5, "gaccc", harness.example("mnist_mlp"), "-o", folder / "step.ptx")
    print(f"gaccc examples/mnist_mlp.toml: {seconds:.3f} s")
    expect(seconds < 0.5, f"gaccc examples/mnist_mlp.toml takes {seconds:.3f} s, promised is 0.5")


def test_time_to_first_launch(folder):
    """The whole of one launch's run: an upper bound of the time to the first launch."""
    release_only()
    model = harness.example("mnist_mlp")
    artifact, spec = harness.compile_model(model, folder / "step.ptx"), harness.make_data(model, 32, folder)
    command = ("gacc-exec", artifact, "--data", spec, "--launches", 1)
    cold = min(fastest(1, *command, env={**os.environ, "XDG_CACHE_HOME": str(folder / f"cache{i}")}) for i in range(3))
    warm = fastest(5, *command, env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache0")})
    print(f"one launch: {cold:.3f} s cold, {warm:.3f} s from the cache")
    expect(cold < 1.0, f"one launch takes {cold:.3f} s cold, promised is 1.0")
    expect(warm < 0.2, f"one launch takes {warm:.3f} s from the cache, promised is 0.2")


def test_gacc_exec_is_lean(folder):
    """Links neither LLVM nor oneDNN nor CUDA, and is under 6 MiB stripped."""
    libraries = subprocess.run(["ldd", harness.BIN / "gacc-exec"], check=True, capture_output=True, text=True).stdout
    for word in ("LLVM", "dnnl", "cuda", "cublas", "libgacc"):
        expect(word not in libraries, f"gacc-exec links {word}:\n{libraries}")
    release_only()
    if not shutil.which("strip"):
        harness.skip("no strip here")
    subprocess.run(["strip", "-o", folder / "stripped", harness.BIN / "gacc-exec"], check=True)
    size = (folder / "stripped").stat().st_size
    print(f"gacc-exec stripped: {size / 2**20:.2f} MiB")
    expect(size < 6 * 2**20, f"gacc-exec is {size / 2**20:.2f} MiB stripped, promised are 6")


def test_missing_plugin_is_named(folder):
    """gacc-exec alone in a folder starts, and names what it lacks."""
    shutil.copy2(harness.BIN / "gacc-exec", folder / "gacc-exec")
    model = harness.example("regression")
    artifact, spec = harness.compile_model(model, folder / "step.ptx"), harness.make_data(model, 50, folder)
    done = subprocess.run([folder / "gacc-exec", artifact, "--data", spec, "--device", "cpu"], capture_output=True, text=True)
    harness.one_error(done, "libgacc-host.so")


harness.main(globals())
