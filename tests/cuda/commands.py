"""gacc-exec on machines without a usable GPU, played by the fake driver (tests/cuda/fake_driver.cpp), and the same
artifact on the CPU, in the emulator and on a GPU. Each test_* function is a ctest."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import harness
from harness import expect, run

FAKE = os.environ.get("GACC_FAKE_FOLDER", "")
CASES = [  # what the machine is like, words of the sentence
    ({"GACC_FAKE_INIT_ERROR": "100"}, "the NVIDIA driver finds no GPU"),
    ({"GACC_FAKE_INIT_ERROR": "34"}, "stub library"),
    ({"GACC_FAKE_VERSION": "10010"}, "the NVIDIA driver is too old: the artifact is PTX"),
    ({"GACC_FAKE_CAPABILITY": "61"}, "GPU 0 (Fake 0) has compute capability 6.1, which cannot run an artifact for sm_80"),
]


def machine(**settings):
    return {**os.environ, "LD_LIBRARY_PATH": FAKE, **settings}


def artifact_of(folder):
    return harness.compile_model(harness.example("regression"), folder / "step.ptx")


def test_cuda_without_a_gpu_is_one_sentence(folder):
    artifact = artifact_of(folder)
    for settings, words in CASES:
        done = run("gacc-exec", artifact, "--init-only", "--device", "cuda", "--save", folder / "w", code=1,
                   env=machine(**settings))
        harness.one_error(done, words)
        expect(not (folder / "w").exists(), "something was written")
    done = run("gacc-exec", artifact, "--init-only", "--device", "cuda:3", code=1, env=machine())
    harness.one_error(done, "there is no GPU 3: this machine has 1")


def test_auto_falls_back_to_the_cpu(folder):
    artifact = artifact_of(folder)
    for settings, words in CASES:
        done = run("gacc-exec", artifact, "--init-only", "--log", folder / "log", env=machine(**settings))
        lines = done.stderr.splitlines()
        expect(len(lines) == 1 and words in lines[0] and lines[0].endswith(": using the CPU"), done.stderr)
        expect('"device":"cpu"' in (folder / "log").read_text().replace(" ", ""), "the log names another device")


def losses(artifact, folder, spec, *options):
    log = folder / "log.jsonl"
    done = run("gacc-exec", artifact, "--data", spec, "--updates", 3, "--no-shuffle", "--log", log, *options, timeout=600)
    events = harness.read_log(log)
    return [e["loss"] for e in events if e["event"] == "update"], events[0]["device"], done


def compare(folder, device, *options):
    model = harness.example("mnist_mlp")
    artifact, spec = harness.compile_model(model, folder / "step.ptx"), harness.make_data(model, 400, folder)
    if "builtin" in options and b'"builtin"' not in artifact.read_bytes().split(b"\n", 2)[1]:
        harness.skip("the artifact has no built-in matrix products")
    expected, _, _ = losses(artifact, folder, spec, "--device", "cpu")
    found, name, done = losses(artifact, folder, spec, "--device", device, *options)
    expect(name.startswith(device), f"the log names {name}")
    expect(len(expected) == len(found) == 3, f"{len(found)} updates")
    for a, b in zip(expected, found):
        expect(abs(a - b) <= 1e-5 * max(1, abs(a)), f"losses {found}, on the CPU {expected}")
    print(f"losses {found}, on the CPU {expected}")


def test_emulate_trains_like_the_cpu(folder):
    if not (harness.BIN / "libgacc-emu.so").exists():
        harness.skip("libgacc-emu.so is not built")
    compare(folder, "emulate", "--gemm", "builtin")


def gpu_or_skip(folder, *options):
    done = run("gacc-exec", artifact_of(folder), "--init-only", "--device", "cuda", *options, code=(0, 1))
    if done.returncode:
        harness.skip(done.stderr.strip())


def test_gpu_trains_like_the_cpu(folder):
    gpu_or_skip(folder)
    compare(folder, "cuda")


def test_gpu_trains_with_builtin_products(folder):
    gpu_or_skip(folder, "--gemm", "builtin")
    compare(folder, "cuda", "--gemm", "builtin")


if __name__ == "__main__":
    harness.main(globals())
