"""Attention: memory linear in the length, equal results on the CPU and under emulation, bits that depend on no
thread."""
import array
import json
import math

import harness
from harness import expect, layer, model_text, run

MODEL = harness.ROOT / "tests/parity/models/attention.toml"


def test_memory_is_linear(folder):
    """Twice the positions, twice the bytes, up to 4,096 and 16,384, for the whole step and for activations alone."""
    model = folder / "long.toml"
    wide = {"shape": [1024, 16]}
    model.write_text(model_text(
        layer("attention", name="a", heads=2, causal=True, dropout=0.1), layer("attention", name="b", heads=4),
        model={"name": "long"}, inputs={"x": wide, "y": wide}, loss={"type": "mse", "target": "y"},
        optimizer={"type": "sgd"}))
    bytes_of = {}
    for length in (1024, 2048, 4096, 16384):
        plan = run("gaccc", model, "--set", f"inputs.x.shape=[{length},16]", "--set", f"inputs.y.shape=[{length},16]",
                   "--plan", "--json")
        bytes_of[length] = json.loads(plan.stdout)["bytes"]
        print(length, bytes_of[length]["peak"])
    for key in ("peak", "activations"):
        step = bytes_of[2048][key] - bytes_of[1024][key]
        for length in (4096, 16384):
            line = bytes_of[1024][key] + step * (length // 1024 - 1)
            expect(bytes_of[length][key] <= 1.001 * line,
                   f"{key} at {length} positions: {bytes_of[length][key]}, a line gives {line}")


def trained(folder, name, spec, artifact, *options):
    weights, log = folder / f"{name}.safetensors", folder / f"{name}.jsonl"
    run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--save", weights, "--log", log, "--updates", 2,
        *options)
    return weights, [(e["loss"], e["grad_norm"]) for e in harness.updates_of(log)]


def test_devices_and_threads(folder):
    spec = harness.make_data(MODEL, 42, folder)
    artifact = harness.compile_model(MODEL, folder / "step.ptx", layers__fixed__dropout=0.2, train__micro_batch=3)
    weights, losses = trained(folder, "cpu", spec, artifact, "--device", "cpu", "--threads", 1)
    for threads in (2, 3):
        again, same = trained(folder, f"threads{threads}", spec, artifact, "--device", "cpu", "--threads", threads)
        expect(again.read_bytes() == weights.read_bytes() and same == losses, f"{threads} threads give other bits")
    emulated, other = trained(folder, "emulated", spec, artifact, "--device", "emulate")
    worst, who = harness.far_apart(harness.read_safetensors(emulated), harness.read_safetensors(weights))
    print(f"emulated against the CPU: {worst:.2e} ({who})")
    expect(worst <= 1e-6, f"{who} is {worst:.2e} away from the CPU's")
    for a, b in zip(losses, other):
        expect(all(abs(x - y) <= 1e-5 * abs(x) for x, y in zip(a, b)), f"loss and norm {a} on the CPU, {b} emulated")


def later(length, width, compute):
    shape = {"shape": [length, width]}
    return model_text(
        layer("attention", name="a", heads=1, causal=True), model={"name": "later", "seed": 1},
        inputs={"x": shape, "y": shape}, loss={"type": "mse", "target": "y"}, optimizer={"type": "sgd", "lr": 0.1},
        train={"micro_batch": 1}, precision={"compute": compute})


def test_a_later_position_changes_no_earlier_one(folder):
    """Also where its values overflow: what is masked is left out, and 0 times infinity is not added."""
    def square(n, diagonal):
        return [diagonal if i % n == i // n else 0.0 for i in range(n * n)]

    # By lanes and teams of threads, with steps and blocks that are not full; by tensor cores.
    for compute, length, width, devices in (("f16", 4, 2, ("cpu", "emulate")), ("f16", 21, 6, ("cpu", "emulate")),
                                            ("f32", 13, 4, ("cpu", "emulate")), ("f16", 70, 16, ("cpu", "emulate")),
                                            ("bf16", 40, 16, ("emulate",))):
        artifact = harness.compile_text(folder, later(length, width, compute))
        big = 30000.0 if compute == "f16" else 3e38
        harness.write_safetensors(folder / "w", {"a.qkv.weight": ([3 * width, width],
                                                                  square(width, .5) * 2 + square(width, 4.0)),
                                                                  "a.qkv.bias": ([3 * width], [0.0] * 3 * width),
                                                 "a.proj.weight": ([width, width], square(width, 1.0)),
                                                 "a.proj.bias": ([width], [0.0] * width)})
        first = array.array("f", [(i * 37 % 19 - 9) / 16 for i in range(length * width)])
        last = length - 2  # the one after it sees it, too
        for device in devices:
            outputs = []
            for value in (1.0, big, -big):
                harness.write_npy(folder / "x.npy", first[:last * width] + array.array("f", [value] * width)
                                  + first[(last + 1) * width:], [1, length, width])
                done = run("gacc-exec", artifact, "--data", f"npy:x={folder}/x.npy", "--load", folder / "w",
                           "--predict", folder / "out.npy", "--device", device)
                expect(("not finite" in done.stderr) == (value != 1), f"{value}: {done.stderr}")
                outputs.append(array.array("f", (folder / "out.npy").read_bytes()[-4 * length * width:]))
            for output in outputs[1:]:
                expect(output[:last * width] == outputs[0][:last * width],
                       f"{compute} {length} {width} {device}: {list(output[:4])} and {list(outputs[0][:4])}")
                expect(not any(map(math.isfinite, output[last * width:(last + 1) * width])),
                       "what the position itself sees is infinite")


harness.main(globals())
