"""The libraries and the size of gacc-exec. Start-up times are measured by scripts/bench/startup: no test depends on a
clock."""
import shutil
import subprocess

import harness
from harness import expect


def release_only():
    cache = harness.BIN.parent / "CMakeCache.txt"
    text = cache.read_text() if cache.exists() else ""
    if "CMAKE_BUILD_TYPE:STRING=Release" not in text or harness.sanitized():
        harness.skip("the size is promised for release builds")


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
    done = subprocess.run([folder / "gacc-exec", artifact, "--data", spec, "--device", "cpu"], capture_output=True,
                          text=True)
    harness.one_error(done, "libgacc-host.so")
    # One from before: it knows the number that is raised by hand, and has another layout of the plan.
    stale = "void *gacc_create_device(int abi, void *options) { return options == 0 || abi != 8 ? 0 : (void *)8; }"
    if subprocess.run(["cc", "-shared", "-x", "c", "-", "-o", folder / "libgacc-host.so"], input=stale,
                      text=True).returncode == 0:
        done = subprocess.run([folder / "gacc-exec", artifact, "--data", spec, "--device", "cpu"], capture_output=True,
                              text=True)
        harness.one_error(done, "libgacc-host.so was built for another version of gacc: rebuild or reinstall it")


harness.main(globals())
